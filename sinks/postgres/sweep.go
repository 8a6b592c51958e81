package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// The sweep's queries read one step in key order without locks and return how many rows it had, the last key, and what
// differs from the replica. What they find is judged again under locks before it is written. The limits are literals: with
// a parameter a generic plan expects a tenth of the table and sorts it all.
const (
	// sweepSums finds sums that are not those of the contributions.
	sweepSums = `
		SELECT count(*), coalesce((array_agg(x.kind ORDER BY x.kind DESC, x.id DESC))[1], 0), (array_agg(x.id ORDER BY x.kind DESC, x.id DESC))[1],
			coalesce(array_agg(x.kind) FILTER (WHERE x.differs), '{}'), coalesce(array_agg(x.id) FILTER (WHERE x.differs), '{}')
		FROM (
			SELECT t.kind, t.id,
				t.boost <> coalesce((SELECT sum(c.boost_weight) FROM vitrina.contributions c WHERE c.kind = t.kind AND c.target_id = t.id AND c.active), 0)
				OR t.named <> EXISTS (SELECT FROM vitrina.contributions c WHERE c.kind = t.kind AND c.target_id = t.id) AS differs
			FROM (
				SELECT p.kind, p.id, p.boost, p.named FROM vitrina.promotion_targets p
				WHERE (p.kind, p.id) >= ($1::smallint, $2::uuid) ORDER BY p.kind, p.id LIMIT %d
			) t
		) x`
	// sweepTargets finds contributions whose target has no row.
	sweepTargets = `
		SELECT count(*), coalesce((array_agg(x.kind ORDER BY x.kind DESC, x.id DESC))[1], 0), (array_agg(x.id ORDER BY x.kind DESC, x.id DESC))[1],
			coalesce(array_agg(x.kind) FILTER (WHERE x.differs), '{}'), coalesce(array_agg(x.id) FILTER (WHERE x.differs), '{}')
		FROM (
			SELECT c.kind, c.id, NOT EXISTS (SELECT FROM vitrina.promotion_targets t WHERE t.kind = c.kind AND t.id = c.id) AS differs
			FROM (
				SELECT DISTINCT c.kind, c.target_id AS id FROM vitrina.contributions c
				WHERE (c.kind, c.target_id) >= ($1::smallint, $2::uuid) ORDER BY 1, 2 LIMIT %d
			) c
		) x`
	sweepProjects = `
		SELECT count(*), 1::smallint, (array_agg(x.id ORDER BY x.id DESC))[1],
			coalesce(array_agg(1::smallint) FILTER (WHERE x.differs), '{}'), coalesce(array_agg(x.id) FILTER (WHERE x.differs), '{}')
		FROM (
			SELECT c.id, c.status <> 'Delisted' AND (c.status = 'Published' OR coalesce(own.named, false))
				AND c.promotion_boost IS DISTINCT FROM coalesce(own.boost, 0) AS differs
			FROM (
				SELECT p.id, p.status, p.promotion_boost FROM catalog.project_cards p
				WHERE $1::smallint <= 1 AND p.id >= $2::uuid ORDER BY p.id LIMIT %d
			) c
			LEFT JOIN vitrina.promotion_targets own ON own.kind = 1 AND own.id = c.id
		) x`
	sweepObjects = `
		SELECT count(*), 2::smallint, (array_agg(x.id ORDER BY x.id DESC))[1],
			coalesce(array_agg(2::smallint) FILTER (WHERE x.differs), '{}'), coalesce(array_agg(x.id) FILTER (WHERE x.differs), '{}')
		FROM (
			SELECT c.id, c.status <> 'Delisted' AND (c.status = 'Published' OR coalesce(own.named, false))
				AND c.promotion_boost IS DISTINCT FROM coalesce(own.boost, 0) + coalesce(project.boost, 0) AS differs
			FROM (
				SELECT o.id, o.status, o.project_id, o.promotion_boost FROM catalog.property_object_cards o
				WHERE $1::smallint <= 2 AND o.id >= $2::uuid ORDER BY o.id LIMIT %d
			) c
			LEFT JOIN vitrina.promotion_targets own ON own.kind = 2 AND own.id = c.id
			LEFT JOIN vitrina.promotion_targets project ON project.kind = 1 AND project.id = c.project_id
		) x`
)

// sweep goes through targets, then cards: a sum is mended with the cards it reaches before the cards are compared.
func (s *BoostSink) sweep(ctx context.Context, r *Report) error {
	var due int64
	if err := s.pool.QueryRow(ctx, `SELECT due FROM vitrina.card_sweep`).Scan(&due); err != nil {
		return fmt.Errorf("reading vitrina.card_sweep: %w", err)
	}
	for _, q := range []string{sweepSums, sweepTargets} {
		if err := s.walk(ctx, q, func(cards []card) error { return s.resum(ctx, cards, r) }, nil); err != nil {
			return fmt.Errorf("sweeping the target sums: %w", err)
		}
	}
	for _, q := range []string{sweepObjects, sweepProjects} {
		if err := s.walk(ctx, q, func(cards []card) error { return s.recompute(ctx, cards, r) }, &r.Examined); err != nil {
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

// walk reads one table step by step and mends what differs.
func (s *BoostSink) walk(ctx context.Context, query string, mend func([]card) error, examined *int) error {
	query = fmt.Sprintf(query, s.cfg.Step)
	from := card{}
	for s.enabled() {
		var (
			count int
			last  card
			id    *uuid.UUID
			kinds []int16
			ids   []uuid.UUID
		)
		if err := s.pool.QueryRow(ctx, query, from.kind, from.id).Scan(&count, &last.kind, &id, &kinds, &ids); err != nil {
			return fmt.Errorf("reading a step: %w", err)
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
		if count < s.cfg.Step || id == nil {
			return nil
		}
		last.id = *id
		from = last.next()
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
