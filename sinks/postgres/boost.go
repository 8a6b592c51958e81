package postgres

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

// Snapshot is what the promotion processor hands to the sink: a purchase as it is after one event.
type Snapshot struct {
	PurchaseID uuid.UUID
	State      *codecs.PurchaseState // read only; shared with the group table and the API
	Record     *record.Record        // the original record, for a dead letter; ReplaceBoosts needs none
}

// BoostConfig bounds a BoostSink. Zero fields take the default named beside them.
type BoostConfig struct {
	// Epoch is the projection's epoch when the sink was made (ReadProjection). Required.
	Epoch int64
	// Enabled is the feature flag catalog.promotions.enabled, asked before each pass of the recompute (D35); nil is always on.
	Enabled func() bool
	// Timeout ends one transaction from this side: 30 s. The pool's statement timeout ends it on the server.
	Timeout time.Duration
	// CardRetries is how often a card whose row version moved is read and written again at once: 3 by the specification.
	CardRetries int
	// Step is how many cards one transaction of the recompute takes, and how many rows one query of the sweep reads: 2000.
	Step int
}

// BoostMetrics are hooks of the sink; nil ones are left out. They may be called by several goroutines at once.
type BoostMetrics struct {
	CardsRecomputed func(cards int) // cards whose boost was written
	Stale           func()          // a snapshot older than the stored one
	Retry           func()          // a transaction run again after a deadlock, or cards read again after a conflict
	CardConflicts   func(cards int) // cards read again because they moved between read and write
	DirtyCards      func(cards int) // cards waiting for the recompute after a pass
}

func call[T any](hook func(T), value T) {
	if hook != nil {
		hook(value)
	}
}

// BoostSink applies purchase snapshots to contributions, target sums and cards (design E5) and recomputes cards that the
// catalog changed. It is safe for concurrent use, also by several instances on one database.
type BoostSink struct {
	pool    *pgxpool.Pool
	cfg     BoostConfig
	letters Letters
	events  EventLog
	metrics BoostMetrics

	mu    sync.Mutex
	blind string // what watchTriggers found last
}

// NewBoostSink returns a sink for one epoch of the projection. Under another one, or while a rebuild has it closed, every
// write fails with an error that wraps batch.ErrFatal: the sink must be made again.
func NewBoostSink(pool *pgxpool.Pool, cfg BoostConfig, letters Letters, events EventLog, metrics BoostMetrics) (*BoostSink, error) {
	if cfg.Epoch < 1 {
		return nil, fmt.Errorf("boost sink: the epoch (%d) must be that of projection %s", cfg.Epoch, PromotionBoost)
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 30*time.Second)
	cfg.CardRetries = cmp.Or(cfg.CardRetries, 3)
	cfg.Step = cmp.Or(cfg.Step, 2000)
	return &BoostSink{pool: pool, cfg: cfg, letters: letters, events: events, metrics: metrics}, nil
}

// Flush applies a batch; it is a batch.Flush. Each purchase's newest snapshot is applied in one transaction for the whole
// batch, so a card that many of them reach is written once. When it returns nil, every snapshot is durable, older than
// what is stored, or dead-lettered and acknowledged:
//   - OPTIMISTIC_LOCK_CONFLICT: a card moved under each try. The contributions are stored and the card is queued for the
//     recompute; the letter is for the newest event of each purchase in the batch that reaches the card.
//   - DATABASE_REJECTED: the database refuses this snapshot for good; nothing of it is stored.
//
// An error is an outage. The batch may come again whatever was applied of it: equal snapshots are applied again without effect.
func (s *BoostSink) Flush(ctx context.Context, values []Snapshot) error {
	var letters []deadletter.Letter
	apply := func(ctx context.Context, part []Snapshot) (int, error) {
		lost, err := s.apply(ctx, part)
		letters = append(letters, lost...)
		if err != nil {
			return 0, err
		}
		return len(part), nil
	}
	reject := func(v Snapshot, err error) {
		letters = append(letters, deadletter.Letter{
			Record: v.Record, Code: codecs.CodeDatabaseRejected, Attempts: 1,
			Reason: "PostgreSQL refuses purchase " + v.PurchaseID.String() + " for good: " + Explain(err),
			Attrs:  append(purchaseAttrs(v), slog.Int("cards_affected", 0)),
		})
	}
	if err := bisectLetters(ctx, values, apply, reject); err != nil {
		return fmt.Errorf("applying %d purchase snapshots: %w", len(values), err)
	}
	for _, l := range letters {
		if l.Record == nil {
			return fmt.Errorf("a snapshot without its record cannot be dead-lettered: %s", l.Reason)
		}
	}
	if len(letters) == 0 {
		return nil
	}
	if err := s.letters.Write(ctx, letters...); err != nil {
		return fmt.Errorf("writing %d dead letters of the boost sink: %w", len(letters), err)
	}
	return nil
}

// apply is one transaction for a batch (of one round, the rule), its metrics and log lines. It returns the letters about
// cards that it lost.
func (s *BoostSink) apply(ctx context.Context, values []Snapshot) ([]deadletter.Letter, error) {
	rounds, stale := plan(values)
	var letters []deadletter.Letter
	for _, round := range rounds {
		result, busy, err := s.write(ctx, round)
		if err != nil {
			return letters, err
		}
		s.report(ctx, round, result)
		if busy {
			s.reportBusy(ctx, result)
		} else {
			letters = append(letters, s.lettersFor(round, result)...)
		}
	}
	for _, v := range stale {
		s.skipStale(ctx, v)
	}
	return letters, nil
}

// write is the transaction; busy says that it left out cards that were locked.
func (s *BoostSink) write(ctx context.Context, round []entry) (result *applyResult, busy bool, err error) {
	args := newApplyArgs(round)
	result = new(applyResult)
	busy, err = s.aroundLocks(ctx, func(ctx context.Context, skipLocked bool) error {
		return result.scan(s.pool.QueryRow(ctx, applyPurchases, args.list(s.cfg.Epoch, true, s.cfg.CardRetries, skipLocked)...))
	})
	return result, busy, err
}

// aroundLocks runs a transaction, and once more (busy) without the cards that are locked when it waited too long: a card that
// another transaction keeps locked must not stop all the others.
func (s *BoostSink) aroundLocks(ctx context.Context, do func(ctx context.Context, skipLocked bool) error) (busy bool, err error) {
	err = s.transact(ctx, func(ctx context.Context) error { return do(ctx, false) })
	if !lockTimedOut(err) {
		return false, err
	}
	s.retried()
	return true, s.transact(ctx, func(ctx context.Context) error { return do(ctx, true) })
}

func (s *BoostSink) reportBusy(ctx context.Context, r *applyResult) {
	if r.Lost > 0 {
		s.events.Log(ctx, slog.LevelWarn, "cards-locked",
			"another transaction kept cards locked; their contributions are stored, the recompute writes them once they are free", slog.Int("cards", r.Lost))
	}
}

// report counts and logs what became of each snapshot of a committed transaction.
func (s *BoostSink) report(ctx context.Context, round []entry, r *applyResult) {
	s.count(Report{Written: r.Written, Conflicts: r.Conflicts})
	for i, e := range round {
		if r.Affected[i] == superseded {
			for _, v := range append(e.coalesced, e.Snapshot) {
				s.skipStale(ctx, v)
			}
			continue
		}
		for _, v := range e.coalesced {
			s.events.Log(ctx, slog.LevelInfo, "recomputed", "purchase applied as part of a newer snapshot in the same batch", append(snapshotAttrs(v),
				slog.Int("cards_affected", 0), slog.Int64("coalesced_into", e.State.Version))...)
		}
		s.events.Log(ctx, slog.LevelInfo, "recomputed", "purchase applied", append(snapshotAttrs(e.Snapshot),
			slog.Int("cards_affected", int(r.Affected[i])))...)
	}
}

func (s *BoostSink) skipStale(ctx context.Context, v Snapshot) {
	if s.metrics.Stale != nil {
		s.metrics.Stale()
	}
	s.events.Log(ctx, slog.LevelInfo, "skipped-stale", "a newer snapshot of the purchase is stored", snapshotAttrs(v)...)
}

func purchaseAttrs(v Snapshot) []slog.Attr {
	p := codecs.Purchase{PurchaseID: v.PurchaseID, Version: v.State.Version}
	return p.LogAttrs()
}

func snapshotAttrs(v Snapshot) []slog.Attr {
	attrs := purchaseAttrs(v)
	if v.Record != nil {
		attrs = append(attrs, slog.String("record", v.Record.ID.String()))
	}
	return attrs
}

// lettersFor makes one letter for each purchase of the batch that reaches a card that was lost.
func (s *BoostSink) lettersFor(round []entry, r *applyResult) []deadletter.Letter {
	var letters []deadletter.Letter
	for n, e := range round {
		i, lost := slices.BinarySearchFunc(r.LostPurchases, e.PurchaseID, compareUUID)
		if !lost {
			continue
		}
		reason := fmt.Sprintf("other writers changed cards that purchase %s reaches (%s among them) each time between reading and writing them; "+
			"its contributions are stored and the cards are queued for the recompute", e.PurchaseID, r.LostCards[i])
		letters = append(letters, deadletter.Letter{
			Record: e.Record, Code: codecs.CodeOptimisticLockConflict, Reason: reason, Attempts: 1 + s.cfg.CardRetries,
			Attrs: append(purchaseAttrs(e.Snapshot), slog.Int("cards_affected", max(0, int(r.Affected[n])))),
		})
	}
	return letters
}
