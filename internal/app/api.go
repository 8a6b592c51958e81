package app

import (
	"context"
	"fmt"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/views"
)

// newQueries makes what the role api runs.
func (a *App) newQueries() (*views.Service, error) {
	o := views.Options{
		Config: a.cfg, Instance: a.instance, Host: host{a}, Pool: a.pool, Admin: a.admin, Kafka: a.kafka,
		Logger: a.deps.Logger, Events: a.events, Clock: a.deps.Clock,
	}
	if a.reads != nil {
		o.Facts = a.reads
	}
	s, err := views.New(o)
	if err != nil {
		return nil, fmt.Errorf("make the API: %w", err)
	}
	return s, nil
}

// runQueries runs the role api, if it is one of this instance's.
func (a *App) runQueries(ctx context.Context) error {
	if a.queries == nil {
		return nil
	}
	return a.queries.Run(ctx)
}

// host is what the API sees of its instance.
type host struct{ a *App }

// Role describes a consumer role of this instance.
func (h host) Role(name string) (views.RoleState, bool) {
	for _, r := range h.a.roles {
		if r.name == name {
			s := r.Status()
			return views.RoleState{Ready: s.Ready, State: s.State, Reason: detail(s), Stream: s.Stream}, true
		}
	}
	return views.RoleState{}, false
}

// Lookup reads a group table where this instance owns the key's partition.
func (h host) Lookup(role, key string) ([]byte, error) {
	runtime := h.a.Runtime(role)
	if runtime == nil {
		return nil, &stream.NotHereError{Partition: -1}
	}
	value, err := runtime.Get(key)
	if err != nil || value == nil {
		return nil, err
	}
	data, ok := value.([]byte)
	if !ok {
		return nil, fmt.Errorf("the table of role %s has a value of type %T", role, value)
	}
	return data, nil
}

// Retries is how often a role tried again since the start; the role api has nothing to try again.
func (h host) Retries(role string) int64 {
	switch role {
	case config.RolePromotion:
		return value(h.a.promotion.Retries)
	case config.RolePopularity:
		return value(h.a.views.Retries)
	case config.RolePrice:
		return value(h.a.price.Retries)
	default:
		return 0
	}
}

func (h host) PromotionsEnabled() bool { return h.a.PromotionsEnabled() }
