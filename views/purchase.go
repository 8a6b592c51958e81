package views

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// Purchase is the replica of a purchase, from the group table of the promotion consumer.
type Purchase struct {
	PurchaseID  uuid.UUID        `json:"purchaseId"`
	Version     int64            `json:"version"`
	Status      codecs.Status    `json:"status"`
	BoostWeight int32            `json:"boostWeight"`
	EndsAt      time.Time        `json:"endsAt"`
	Targets     []PurchaseTarget `json:"targets"`
	Source      Source           `json:"source"`
	Freshness   Freshness        `json:"freshness"`
}

// PurchaseTarget is a target that the purchase names, or named in an earlier version and then dropped.
type PurchaseTarget struct {
	Kind   codecs.TargetKind `json:"kind"`
	ID     uuid.UUID         `json:"id"`
	Active bool              `json:"active"` // it counts
	Named  bool              `json:"named"`  // by the present version
}

// Source is the record that something comes from.
type Source struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// Purchase answers from the owner of the purchase's partition if that is this instance, else from the copy of the whole table. A
// purchase that never named a project or an object does not exist here.
func (s *Service) Purchase(ctx context.Context, id uuid.UUID) (*Purchase, error) {
	if s.rebuilding(postgres.PromotionBoost) {
		return nil, unavailable("projection %s is being rebuilt; GET /admin/operations/{id} says how far it is", postgres.PromotionBoost)
	}
	value, f, err := s.lookup(ctx, s.purchases, config.RolePromotion, id.String())
	if err != nil {
		return nil, err
	}
	none := &NotFoundError{Reason: fmt.Sprintf("no purchase %s ever named a project or an object%s", id, f.unseen())}
	if len(value) == 0 {
		return nil, none
	}
	state, err := codecs.DecodePurchaseState(value)
	if err != nil {
		return nil, fmt.Errorf("purchase %s in the group table: %w", id, err)
	}
	if !state.EverKnown {
		return nil, none
	}
	p := &Purchase{
		PurchaseID: id, Version: state.Version, Status: state.Status, BoostWeight: state.BoostWeight, EndsAt: state.EndsAt.UTC(),
		Targets: make([]PurchaseTarget, 0, len(state.EverTargets)), Freshness: f,
		Source: Source{Topic: state.Topic, Partition: state.SourcePartition, Offset: state.SourceOffset},
	}
	for _, t := range state.EverTargets {
		_, named := slices.BinarySearchFunc(state.Targets, t, codecs.CompareTargets)
		p.Targets = append(p.Targets, PurchaseTarget{Kind: t.Kind, ID: t.ID, Named: named, Active: named && state.Status == codecs.StatusActive})
	}
	return p, nil
}

// lookup reads a key of a group table from whoever can answer, and says how old the answer may be. An answer whose age cannot be
// told is refused.
func (s *Service) lookup(ctx context.Context, copied *table, role, key string) ([]byte, Freshness, error) {
	// The lag is read first: what is finished by then is in the answer, so the stated lag is never too small.
	at, err := s.samplers[role].now(ctx)
	if err != nil {
		return nil, Freshness{}, unavailable("the broker does not answer, so nobody can say how old the %s replica is", role)
	}
	lag := at.lag(s.samplers[role].inputs()...)
	f := Freshness{AsOf: at.at.UTC(), ServedBy: "owner", Lag: map[string]*int64{role: &lag}}
	value, err := s.host.Lookup(role, key)
	if err == nil {
		return value, f, nil
	}
	if !notHere(err) {
		return nil, f, err
	}
	if copied == nil {
		return nil, f, err
	}
	viewLag, total, stuck := copied.behind(at.topics[stream.TableTopic(copied.opts.Group)]) // before the read, as above
	value, err = copied.get(key)
	f.ServedBy, f.ViewLag = "view", &viewLag
	switch {
	case notHere(err):
		return nil, f, unavailable("the copy of %s is being read: %d of %d records are left", stream.TableTopic(copied.opts.Group), viewLag, total)
	case err != nil:
		return nil, f, err
	case stuck:
		return nil, f, unavailable("the copy of %s is %d records behind and has not moved for %s: its connection to Kafka is broken",
			stream.TableTopic(copied.opts.Group), viewLag, patience)
	}
	return value, f, nil
}
