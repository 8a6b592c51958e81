package views

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// Freshness says how old an answer may be.
type Freshness struct {
	AsOf     time.Time `json:"asOf"`
	ServedBy string    `json:"servedBy"` // owner, view, postgresql, clickhouse
	// Lag is, by consumer, how many records of its topics are not finished yet and so cannot be in the answer; null while the
	// broker does not say.
	Lag map[string]*int64 `json:"lag"`
	// ViewLag is how many records of the table topic the copy that answered has not read.
	ViewLag *int64 `json:"viewLag,omitempty"`
	Note    string `json:"note,omitempty"` // what else a reader must know
}

// freshness states the lag of consumers. It never fails: a lag that nobody knows is null and the note says why.
func (s *Service) freshness(ctx context.Context, servedBy string, roles ...string) Freshness {
	f := Freshness{AsOf: s.clock().UTC(), ServedBy: servedBy, Lag: make(map[string]*int64, len(roles))}
	unknown := false
	for role, read := range s.ask(ctx, roles...) {
		if read.err != nil {
			f.Lag[role], unknown = nil, true
			continue
		}
		lag := read.lag(s.samplers[role].inputs()...)
		f.Lag[role] = &lag
		if read.at.Before(f.AsOf) {
			f.AsOf = read.at.UTC()
		}
	}
	if unknown {
		f.note("the broker does not say how many records are not finished yet")
	}
	for role, projection := range map[string]string{config.RolePromotion: postgres.PromotionBoost, config.RolePopularity: postgres.Popularity} {
		if _, asked := f.Lag[role]; asked && s.rebuilding(projection) {
			f.note("projection " + projection + " is being rebuilt: its numbers may be partial")
		}
	}
	return f
}

// reading is what a sampler answered.
type reading struct {
	sample
	err error
}

// ask asks the samplers of several consumers side by side: while the broker is away each of them waits.
func (s *Service) ask(ctx context.Context, roles ...string) map[string]reading {
	out := make(map[string]reading, len(roles))
	var mu sync.Mutex
	var wait sync.WaitGroup
	for _, role := range roles {
		wait.Go(func() {
			var r reading
			r.sample, r.err = s.samplers[role].now(ctx)
			mu.Lock()
			defer mu.Unlock()
			out[role] = r
		})
	}
	wait.Wait()
	return out
}

func (f *Freshness) note(text string) {
	if f.Note != "" {
		f.Note += "; "
	}
	f.Note += text
}

// unseen is the rest of "does not exist": what may still make it exist.
func (f *Freshness) unseen() string {
	var sum int64
	for _, lag := range f.Lag {
		if lag == nil {
			return "; how many events are still to be processed is unknown"
		}
		sum += *lag
	}
	if f.ViewLag != nil {
		sum += *f.ViewLag
	}
	if sum == 0 {
		return ""
	}
	return fmt.Sprintf("; %d events are still to be processed", sum)
}
