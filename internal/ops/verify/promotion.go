package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// contribution is what counts of a row of vitrina.contributions.
type contribution struct {
	active bool
	weight int32
}

// promotion compares group table and contributions, contributions and sums, sums and cards; the latter three in one snapshot.
func (v *Verifier) promotion(ctx context.Context) (*look, error) {
	l := newLook()
	c := config.PromotionConsumer()
	states := make(map[uuid.UUID]*codecs.PurchaseState)
	err := v.readTopic(ctx, c.TableTopic(), func(rec *kgo.Record) error {
		id, err := tableKey(rec)
		if err != nil {
			return err
		}
		if rec.Value == nil {
			delete(states, id)
			return nil
		}
		s, err := codecs.DecodePurchaseState(rec.Value)
		if err != nil {
			return fmt.Errorf("purchase %s in the group table: %w", id, err)
		}
		s.MessageIDs = nil // they are most of its size
		states[id] = s
		return nil
	}, nil)
	if err != nil {
		return nil, err
	}
	// After the table and before the database: what is finished here is in the database there.
	done, err := v.committed(ctx, c)
	if err != nil {
		return nil, err
	}
	l.checked["purchases"] = int64(len(states))
	v.Progress("compares with PostgreSQL")
	err = v.inSnapshot(ctx, func(tx pgx.Tx) error {
		if err := v.compareContributions(ctx, tx, states, done, l); err != nil {
			return err
		}
		if err := compareSums(ctx, tx, l); err != nil {
			return err
		}
		return compareCards(ctx, tx, l)
	})
	if !v.PromotionsEnabled {
		l.notes = append(l.notes, "catalog.promotions.enabled is off: cards are not recomputed, so they may differ")
	}
	return l, err
}

func (v *Verifier) compareContributions(ctx context.Context, tx pgx.Tx, states map[uuid.UUID]*codecs.PurchaseState, done committed, l *look) error {
	stored := make(map[uuid.UUID]map[codecs.Target]contribution)
	versions := make(map[uuid.UUID][2]int64)
	rows, err := tx.Query(ctx, `SELECT purchase_id, version, revision FROM vitrina.purchases`)
	if err != nil {
		return fmt.Errorf("read vitrina.purchases: %w", err)
	}
	var id, target uuid.UUID
	var version [2]int64
	if _, err = pgx.ForEachRow(rows, []any{&id, &version[0], &version[1]}, func() error { versions[id] = version; return nil }); err != nil {
		return fmt.Errorf("read vitrina.purchases: %w", err)
	}
	rows, err = tx.Query(ctx, `SELECT purchase_id, kind, target_id, active, boost_weight FROM vitrina.contributions`)
	if err != nil {
		return fmt.Errorf("read vitrina.contributions: %w", err)
	}
	var kind int16
	var got contribution
	_, err = pgx.ForEachRow(rows, []any{&id, &kind, &target, &got.active, &got.weight}, func() error {
		l.checked["contributions"]++
		if stored[id] == nil {
			stored[id] = make(map[codecs.Target]contribution)
		}
		stored[id][codecs.Target{Kind: postgres.KindName(kind), ID: target}] = got
		return nil
	})
	if err != nil {
		return fmt.Errorf("read vitrina.contributions: %w", err)
	}
	for id, s := range states {
		if !done.finished(s.Origin) {
			l.inFlight++
			continue
		}
		v.comparePurchase(id, s, versions, stored[id], l)
	}
	for id := range versions {
		if states[id] == nil {
			l.differ(Difference{What: "purchase", ID: id.String(), Expected: "not in the group table", Actual: fmt.Sprintf("version %d", versions[id][0]),
				Cause: "the group table was made anew or restored without it: `vitrina rebuild promotion-boost` applies the topic from its beginning"})
		}
	}
	return nil
}

func (v *Verifier) comparePurchase(id uuid.UUID, s *codecs.PurchaseState, versions map[uuid.UUID][2]int64, stored map[codecs.Target]contribution, l *look) {
	again := &postgres.Snapshot{PurchaseID: id, State: s}
	has, ok := versions[id]
	want := [2]int64{s.Version, s.Revision}
	switch {
	case !ok:
		l.differ(Difference{What: "purchase", ID: id.String(), Expected: fmt.Sprintf("version %d", s.Version), Actual: "none", purchase: again,
			Cause: "PostgreSQL was restored from a backup, the row was deleted, or the snapshot was dead-lettered as DATABASE_REJECTED (`vitrina dlq list --consumer promotion`)"})
		return
	case has != want:
		d := Difference{What: "purchase", ID: id.String(), Expected: fmt.Sprintf("version %d.%d", s.Version, s.Revision), Actual: fmt.Sprintf("version %d.%d", has[0], has[1]),
			Cause: "PostgreSQL was restored from a backup, or the snapshot was dead-lettered", purchase: again}
		if has[0] > want[0] || has[0] == want[0] && has[1] > want[1] {
			d.Cause, d.purchase = "the group table is older than the database: it was restored, or rows were changed by hand; `vitrina rebuild promotion-boost` mends it", nil
		}
		l.differ(d)
		return
	}
	for _, t := range s.EverTargets {
		expected := "inactive"
		got, ok := stored[t]
		active := s.Status == codecs.StatusActive && slices.Contains(s.Targets, t)
		if active {
			expected = fmt.Sprintf("active %d", s.BoostWeight)
		}
		actual := "inactive"
		if got.active {
			actual = fmt.Sprintf("active %d", got.weight)
		}
		if !ok {
			actual = "none"
		}
		if actual != expected {
			l.differ(Difference{What: "contribution", ID: fmt.Sprintf("%s to %s %s", id, t.Kind, t.ID), Expected: expected, Actual: actual,
				Cause: "the row was changed or deleted by hand, or restored from a backup", purchase: again})
		}
	}
	for t, got := range stored {
		if got.active && !slices.Contains(s.EverTargets, t) {
			l.differ(Difference{What: "contribution", ID: fmt.Sprintf("%s to %s %s", id, t.Kind, t.ID), Expected: "none", Actual: fmt.Sprintf("active %d", got.weight),
				Cause: "the row was added by hand; `vitrina rebuild promotion-boost` removes it", purchase: again})
		}
	}
}

// compareSums compares each target's sum with its contributions.
func compareSums(ctx context.Context, tx pgx.Tx, l *look) error {
	rows, err := tx.Query(ctx, `
		SELECT coalesce(t.kind, c.kind), coalesce(t.id, c.target_id), coalesce(c.boost, 0), coalesce(t.boost, -1)
		FROM vitrina.promotion_targets t
		FULL JOIN (SELECT kind, target_id, coalesce(sum(boost_weight) FILTER (WHERE active), 0) AS boost FROM vitrina.contributions GROUP BY kind, target_id) c
			ON c.kind = t.kind AND c.target_id = t.id
		WHERE t.id IS NULL OR t.boost <> coalesce(c.boost, 0) OR t.named <> (c.target_id IS NOT NULL)`)
	if err != nil {
		return fmt.Errorf("compare the sums: %w", err)
	}
	var kind int16
	var id uuid.UUID
	var want, has int64
	_, err = pgx.ForEachRow(rows, []any{&kind, &id, &want, &has}, func() error {
		l.differ(Difference{What: "target", ID: fmt.Sprintf("%s %s", postgres.KindName(kind), id), Expected: fmt.Sprint(want), Actual: fmt.Sprint(has),
			Cause: "vitrina.promotion_targets or vitrina.contributions was changed by hand; the sweep mends the sum (promotion.sweep_interval, or --repair now)"})
		return nil
	})
	if err != nil {
		return fmt.Errorf("compare the sums: %w", err)
	}
	return nil
}

// compareCards compares each card with the sums that reach it.
func compareCards(ctx context.Context, tx pgx.Tx, l *look) error {
	var cards int64
	if err := tx.QueryRow(ctx, `SELECT (SELECT count(*) FROM catalog.project_cards) + (SELECT count(*) FROM catalog.property_object_cards)`).Scan(&cards); err != nil {
		return fmt.Errorf("count the cards: %w", err)
	}
	l.checked["cards"] = cards
	rows, err := tx.Query(ctx, `
		SELECT x.kind, x.id, x.want, x.has,
			EXISTS (SELECT FROM vitrina.changed_cards m WHERE m.kind = x.kind AND m.id = x.id) OR EXISTS (SELECT FROM vitrina.dirty_cards m WHERE m.kind = x.kind AND m.id = x.id)
		FROM (
			SELECT 1::smallint AS kind, p.id, coalesce(own.boost, 0) AS want, p.promotion_boost AS has
			FROM catalog.project_cards p LEFT JOIN vitrina.promotion_targets own ON own.kind = 1 AND own.id = p.id
			WHERE p.status <> 'Delisted' AND (p.status = 'Published' OR own.named)
			UNION ALL
			SELECT 2::smallint, o.id, coalesce(own.boost, 0) + coalesce(project.boost, 0), o.promotion_boost
			FROM catalog.property_object_cards o
			LEFT JOIN vitrina.promotion_targets own ON own.kind = 2 AND own.id = o.id
			LEFT JOIN vitrina.promotion_targets project ON project.kind = 1 AND project.id = o.project_id
			WHERE o.status <> 'Delisted' AND (o.status = 'Published' OR own.named)
		) x WHERE x.want <> x.has`)
	if err != nil {
		return fmt.Errorf("compare the cards: %w", err)
	}
	var kind int16
	var id uuid.UUID
	var want, has int64
	var queued bool
	_, err = pgx.ForEachRow(rows, []any{&kind, &id, &want, &has, &queued}, func() error {
		cause := "another writer changed promotion_boost, or the card triggers were off for a while; the sweep mends it (promotion.sweep_interval, or --repair now)"
		if queued {
			cause = "it waits for the recompute (promotion.reconcile_interval): is an instance running, and is the card locked by somebody?"
		}
		l.differ(Difference{What: "card", ID: fmt.Sprintf("%s %s", postgres.KindName(kind), id), Expected: fmt.Sprint(want), Actual: fmt.Sprint(has), Cause: cause})
		return nil
	})
	if err != nil {
		return fmt.Errorf("compare the cards: %w", err)
	}
	return nil
}

// noLetters refuses dead letters: a snapshot of the group table has no record to make one of.
type noLetters struct{}

func (noLetters) Write(context.Context, ...deadletter.Letter) error {
	return fmt.Errorf("a repair writes no dead letters")
}

// repairBoost applies the snapshots again that differ, and sweeps.
func (v *Verifier) repairBoost(ctx context.Context, found map[string]Difference) error {
	p, err := postgres.ReadProjection(ctx, v.Pool, postgres.PromotionBoost)
	if err != nil {
		return err
	}
	sink, err := postgres.NewBoostSink(v.Pool, postgres.BoostConfig{Epoch: p.Epoch}, noLetters{}, telemetry.NewEventLog(v.Logger, 10, v.Clock), postgres.BoostMetrics{})
	if err != nil {
		return err
	}
	again := make(map[uuid.UUID]postgres.Snapshot)
	for _, d := range found {
		if d.purchase != nil {
			again[d.purchase.PurchaseID] = *d.purchase
		}
	}
	for chunk := range slices.Chunk(slices.Collect(maps.Values(again)), 1000) {
		if err := sink.Flush(ctx, chunk); err != nil {
			return err
		}
	}
	_, err = sink.Sweep(ctx)
	return err
}
