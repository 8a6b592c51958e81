package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Report says what a pass of the recompute found and changed.
type Report struct {
	Off       bool          // the feature flag is off: nothing was done (D35)
	Examined  int           // cards looked at
	Written   int           // cards whose boost was changed
	Remaining int           // cards that moved under each try, and wait for the next pass
	Rejected  int           // cards that the database refuses to change (SQLSTATE classes 22 and 23); they wait too
	Conflicts int           // cards read again because they moved between read and write
	Targets   int           // target sums that were wrong (sweep only)
	Swept     bool          // a whole sweep was completed
	Dirty     int           // dirty cards left after the pass
	Blind     string        // why changes of some cards are not noted; only the sweep finds those
	Took      time.Duration // of the pass
}

func (r *Report) add(o Report) {
	r.Examined += o.Examined
	r.Written += o.Written
	r.Remaining += o.Remaining
	r.Rejected += o.Rejected
	r.Conflicts += o.Conflicts
	r.Targets += o.Targets
}

func (r *Report) attrs() []slog.Attr {
	return []slog.Attr{
		slog.Int("examined", r.Examined), slog.Int("cards_affected", r.Written), slog.Int("remaining", r.Remaining), slog.Int("rejected", r.Rejected),
		slog.Int("conflicts", r.Conflicts), slog.Int("targets", r.Targets), slog.Int("dirty", r.Dirty), slog.Int64("took_ms", r.Took.Milliseconds()),
	}
}

// card is one card to recompute, with the seq of its marks as they were read.
type card struct {
	kind           int16
	id             uuid.UUID
	changed, dirty *int64
}

func (s *BoostSink) enabled() bool { return s.cfg.Enabled == nil || s.cfg.Enabled() }

// Reconcile is one pass of the cursor recompute: cards that came, or changed status or project, and cards that a sink could
// not write are brought to the boost that the replica says. Its cursor is what the triggers and sinks have noted, so an idle
// pass costs three small queries; a note becomes visible when the catalog's transaction commits, however long that
// took (D36). Where a sweep is owed (the triggers were just put on a table), it sweeps. Call it every
// promotion.reconcile_interval; several instances may run at once.
func (s *BoostSink) Reconcile(ctx context.Context) (Report, error) {
	var r Report
	if !s.enabled() {
		r.Off = true
		return r, nil
	}
	start := time.Now()
	if err := s.watchTriggers(ctx, &r); err != nil {
		return r, err
	}
	if err := s.drain(ctx, &r); err != nil {
		return r, err
	}
	var owed bool
	if err := s.pool.QueryRow(ctx, `SELECT due <> done FROM vitrina.card_sweep`).Scan(&owed); err != nil {
		return r, fmt.Errorf("reading vitrina.card_sweep: %w", err)
	}
	if owed {
		if err := s.sweep(ctx, &r); err != nil {
			return r, err
		}
	}
	err := s.finish(ctx, &r, start, "reconciled")
	return r, err
}

// Sweep looks at every target and card and mends what differs, whatever made it so. It reads in steps without locks and
// takes locks only for what it mends: a full sweep over a catalog at rest writes nothing. Call it every few minutes to hours.
func (s *BoostSink) Sweep(ctx context.Context) (Report, error) {
	var r Report
	if !s.enabled() {
		r.Off = true
		return r, nil
	}
	start := time.Now()
	if err := s.watchTriggers(ctx, &r); err != nil {
		return r, err
	}
	if err := s.drain(ctx, &r); err != nil {
		return r, err
	}
	if err := s.sweep(ctx, &r); err != nil {
		return r, err
	}
	err := s.finish(ctx, &r, start, "swept")
	return r, err
}

// watchTriggers puts the triggers back where they are missing, and says so when some cannot be.
func (s *BoostSink) watchTriggers(ctx context.Context, r *Report) error {
	states, err := InstallCardTriggers(ctx, s.pool)
	if err != nil {
		return err
	}
	r.Blind = blindness(states)
	s.mu.Lock()
	news := r.Blind != s.blind
	s.blind = r.Blind
	s.mu.Unlock()
	switch {
	case news && r.Blind != "":
		s.events.Log(ctx, slog.LevelWarn, "card-triggers-missing",
			"changes of some cards are not noted, so their boosts wait for the sweep; give the role the TRIGGER privilege or map simple views",
			slog.String("reason", r.Blind))
	case news:
		s.events.Log(ctx, slog.LevelInfo, "card-triggers-present", "changes of all cards are noted again")
	}
	for _, state := range states {
		if state.State == TriggersInstalled {
			s.events.Log(ctx, slog.LevelInfo, "card-triggers-installed", "changes of these cards are noted from now on, a sweep looks at those before",
				slog.String("card", state.Card), slog.String("table", state.Table))
		}
	}
	return nil
}

// finish counts what is left and logs a pass that found anything.
func (s *BoostSink) finish(ctx context.Context, r *Report, start time.Time, event string) error {
	if err := s.pool.QueryRow(ctx, `SELECT count(*) FROM vitrina.dirty_cards`).Scan(&r.Dirty); err != nil {
		return fmt.Errorf("counting vitrina.dirty_cards: %w", err)
	}
	r.Took = time.Since(start)
	call(s.metrics.DirtyCards, r.Dirty)
	level := slog.LevelDebug
	if r.Written+r.Remaining+r.Rejected+r.Targets > 0 || event == "swept" {
		level = slog.LevelInfo
	}
	s.events.Log(ctx, level, event, "cards recomputed", r.attrs()...)
	return nil
}

// readMarks reads a step of what the triggers and sinks have noted, in key order and without locks. The order keeps a pass from
// reading marks twice that it could not delete; what commits behind the cursor is for the next pass.
const readMarks = `
	SELECT m.kind, m.id, max(m.changed), max(m.dirty) FROM (
		(SELECT c.kind, c.id, c.seq AS changed, NULL::bigint AS dirty FROM vitrina.changed_cards c
			WHERE (c.kind, c.id) > ($1::smallint, $2::uuid) ORDER BY c.kind, c.id LIMIT %[1]d)
		UNION ALL
		(SELECT d.kind, d.id, NULL, d.seq FROM vitrina.dirty_cards d
			WHERE (d.kind, d.id) > ($1::smallint, $2::uuid) ORDER BY d.kind, d.id LIMIT %[1]d)
	) m GROUP BY m.kind, m.id ORDER BY m.kind, m.id LIMIT %[1]d`

func (s *BoostSink) drain(ctx context.Context, r *Report) error {
	query := fmt.Sprintf(readMarks, s.cfg.Step)
	var last card
	for s.enabled() {
		rows, err := s.pool.Query(ctx, query, last.kind, last.id)
		if err != nil {
			return fmt.Errorf("reading the changed cards: %w", err)
		}
		cards, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (card, error) {
			var c card
			err := row.Scan(&c.kind, &c.id, &c.changed, &c.dirty)
			return c, err
		})
		if err != nil {
			return fmt.Errorf("reading the changed cards: %w", err)
		}
		if len(cards) == 0 {
			return nil
		}
		r.Examined += len(cards)
		if err := s.recompute(ctx, cards, r); err != nil {
			return err
		}
		if len(cards) < s.cfg.Step {
			return nil
		}
		last = cards[len(cards)-1]
	}
	return nil
}

// recompute brings cards along in one transaction; a card that the database refuses is left with its marks, the others are
// written without it.
func (s *BoostSink) recompute(ctx context.Context, cards []card, r *Report) error {
	apply := func(ctx context.Context, part []card) error { return s.recomputeOnce(ctx, part, r) }
	if err := Bisect(ctx, cards, apply, func(c card, err error) { s.refuse(ctx, c, err, r) }); err != nil {
		return fmt.Errorf("recomputing %d cards: %w", len(cards), err)
	}
	return nil
}

func (s *BoostSink) refuse(ctx context.Context, c card, err error, r *Report) {
	r.Rejected++
	s.events.Log(ctx, slog.LevelError, "card-rejected", "PostgreSQL refuses the boost of a card: "+Explain(err),
		slog.String("kind", string(KindName(c.kind))), slog.String("card_id", c.id.String()))
}

func (s *BoostSink) recomputeOnce(ctx context.Context, cards []card, r *Report) error {
	kinds, ids := make([]int16, len(cards)), make([]uuid.UUID, len(cards))
	changed, dirty := make([]*int64, len(cards)), make([]*int64, len(cards))
	for i, c := range cards {
		kinds[i], ids[i], changed[i], dirty[i] = c.kind, c.id, c.changed, c.dirty
	}
	var part Report
	_, err := s.aroundLocks(ctx, func(ctx context.Context, skipLocked bool) error {
		return s.pool.QueryRow(ctx, `SELECT written, remaining, conflicts FROM vitrina.recompute_cards($1, $2, $3, $4, $5, $6, $7)`,
			s.cfg.Epoch, kinds, ids, changed, dirty, s.cfg.CardRetries, skipLocked).Scan(&part.Written, &part.Remaining, &part.Conflicts)
	})
	if err != nil {
		return err
	}
	s.count(part)
	r.add(part)
	return nil
}

// transact is Transact with the sink's timeout and metrics.
func (s *BoostSink) transact(ctx context.Context, do func(context.Context) error) error {
	return Transact(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		return do(ctx)
	}, func(error) { s.retried() })
}

func (s *BoostSink) retried() {
	if s.metrics.Retry != nil {
		s.metrics.Retry()
	}
}

func (s *BoostSink) count(part Report) {
	if part.Written > 0 {
		call(s.metrics.CardsRecomputed, part.Written)
	}
	if part.Conflicts > 0 {
		call(s.metrics.CardConflicts, part.Conflicts)
		s.retried()
	}
}
