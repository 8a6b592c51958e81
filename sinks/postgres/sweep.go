package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// sweep goes through targets, then cards: a sum is mended with the cards it reaches before the cards are compared.
func (s *BoostSink) sweep(ctx context.Context, r *Report) error {
	var due int64
	if err := s.pool.QueryRow(ctx, `SELECT due FROM vitrina.card_sweep`).Scan(&due); err != nil {
		return fmt.Errorf("reading vitrina.card_sweep: %w", err)
	}
	for _, function := range []string{"sweep_sums", "sweep_targets"} {
		if err := s.walk(ctx, function, func(cards []card) error { return s.resum(ctx, cards, r) }, nil); err != nil {
			return fmt.Errorf("sweeping the target sums: %w", err)
		}
	}
	for _, function := range []string{"sweep_objects", "sweep_projects"} {
		if err := s.walk(ctx, function, func(cards []card) error { return s.recompute(ctx, cards, r) }, &r.Examined); err != nil {
			return fmt.Errorf("sweeping the cards: %w", err)
		}
	}
	if !s.enabled() {
		return nil
	}
	if _, err := s.pool.Exec(ctx, `UPDATE vitrina.card_sweep SET done = greatest(done, $1), finished_at = now()`, due); err != nil {
		return fmt.Errorf("noting the end of a sweep: %w", err)
	}
	r.Swept = true
	return nil
}

// walk reads one table step by step, without locks, and mends what differs.
func (s *BoostSink) walk(ctx context.Context, function string, mend func([]card) error, examined *int) error {
	query := `SELECT rows, last_kind, last_id, kinds, ids FROM vitrina.` + function + `($1, $2, $3)`
	from := card{}
	for s.enabled() {
		var (
			count int
			kind  *int16
			id    *uuid.UUID
			kinds []int16
			ids   []uuid.UUID
		)
		if err := s.pool.QueryRow(ctx, query, from.kind, from.id, s.cfg.Step).Scan(&count, &kind, &id, &kinds, &ids); err != nil {
			return fmt.Errorf("in vitrina.%s: %w", function, err)
		}
		if examined != nil {
			*examined += count
		}
		if len(ids) > 0 {
			cards := make([]card, len(ids))
			for i := range ids {
				cards[i] = card{kind: kinds[i], id: ids[i]}
			}
			if err := mend(cards); err != nil {
				return err
			}
		}
		if count < s.cfg.Step || kind == nil || id == nil {
			return nil
		}
		from = card{kind: *kind, id: *id}.next()
	}
	return nil
}

// next is the smallest (kind, id) above c.
func (c card) next() card {
	n := card{kind: c.kind, id: c.id}
	for i := len(n.id) - 1; i >= 0; i-- {
		n.id[i]++
		if n.id[i] != 0 {
			return n
		}
	}
	n.kind++ // the highest id of all
	return n
}

// resum mends target sums and the cards that they reach.
func (s *BoostSink) resum(ctx context.Context, targets []card, r *Report) error {
	apply := func(ctx context.Context, part []card) error {
		kinds, ids := make([]int16, len(part)), make([]uuid.UUID, len(part))
		for i, c := range part {
			kinds[i], ids[i] = c.kind, c.id
		}
		done := Report{Targets: len(part)}
		_, err := s.aroundLocks(ctx, func(ctx context.Context, skipLocked bool) error {
			return s.pool.QueryRow(ctx, `SELECT written, remaining, conflicts FROM vitrina.resum_targets($1, $2, $3, $4, $5)`,
				s.cfg.Epoch, kinds, ids, s.cfg.CardRetries, skipLocked).Scan(&done.Written, &done.Remaining, &done.Conflicts)
		})
		if err != nil {
			return err
		}
		s.count(done)
		r.add(done)
		return nil
	}
	return Bisect(ctx, targets, apply, func(c card, err error) { s.refuse(ctx, c, err, r) })
}
