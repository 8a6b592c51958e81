package postgres

import (
	"context"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"
)

// ResetReport says what a reset or replacement of the replica changed.
type ResetReport struct {
	Purchases     int64 // purchases forgotten
	Contributions int64 // contributions forgotten
	Snapshots     int64 // snapshots loaded (ReplaceBoosts)
	Cards         int64 // cards whose boost changed
}

// ResetBoosts empties the replica and sets the boosts of all cards but the Delisted ones, which are frozen, to 0 (design,
// section 12, rule 10). It belongs in one transaction with Reopen, after RaiseEpoch has stopped the writers; a deadlock with
// a rival writer (40P01) means that the whole transaction is run again. Readers see the old boosts until the commit.
func ResetBoosts(ctx context.Context, tx pgx.Tx) (ResetReport, error) {
	r, err := forget(ctx, tx)
	if err != nil {
		return r, err
	}
	r.Cards, err = rewriteCards(ctx, tx)
	return r, err
}

// ReplaceBoosts builds the replica anew from snapshots (those of the group table) and brings every card to it, in the
// caller's transaction: readers see the old boosts until the commit and never a zero between. Cards whose boost stays the
// same are not touched. Call it after Reopen in the same transaction, with that epoch. Cards end as ResetBoosts and a
// replay would leave them: a Hidden card that no purchase ever named has 0.
func ReplaceBoosts(ctx context.Context, tx pgx.Tx, epoch int64, snapshots iter.Seq2[Snapshot, error]) (ResetReport, error) {
	r, err := forget(ctx, tx)
	if err != nil {
		return r, err
	}
	const step = 5000
	chunk := make([]Snapshot, 0, step)
	load := func() error {
		rounds, _ := plan(chunk)
		for _, round := range rounds {
			var result applyResult
			if err := result.scan(tx.QueryRow(ctx, applyPurchases, newApplyArgs(round).list(epoch, false, 0, false)...)); err != nil {
				return fmt.Errorf("loading %d snapshots: %w", len(chunk), err)
			}
		}
		r.Snapshots += int64(len(chunk))
		chunk = chunk[:0]
		return nil
	}
	for s, err := range snapshots {
		if err != nil {
			return r, fmt.Errorf("reading the snapshots: %w", err)
		}
		if chunk = append(chunk, s); len(chunk) == step {
			if err := load(); err != nil {
				return r, err
			}
		}
	}
	if len(chunk) > 0 {
		if err := load(); err != nil {
			return r, err
		}
	}
	r.Cards, err = rewriteCards(ctx, tx)
	return r, err
}

// forget deletes the replica. DELETE, not TRUNCATE: readers of the API go on with what they see.
func forget(ctx context.Context, tx pgx.Tx) (ResetReport, error) {
	var r ResetReport
	for _, step := range []struct {
		statement string
		count     *int64
	}{
		{`SET LOCAL statement_timeout = 0`, nil},
		{`SET LOCAL plan_cache_mode = auto`, nil},
		{`DELETE FROM vitrina.contributions`, &r.Contributions},
		{`DELETE FROM vitrina.purchases`, &r.Purchases},
		{`DELETE FROM vitrina.promotion_targets`, nil},
		{`DELETE FROM vitrina.dirty_cards`, nil},
	} {
		tag, err := tx.Exec(ctx, step.statement)
		if err != nil {
			return r, fmt.Errorf("emptying the replica (%s): %w", step.statement, err)
		}
		if step.count != nil {
			*step.count = tag.RowsAffected()
		}
	}
	return r, nil
}

// rewriteCards brings all cards that are not Delisted to what the replica says, in the order of the locks. OFFSET 0 keeps the
// lookups from becoming joins, which the statistics of a replica loaded a moment ago would make quadratic.
func rewriteCards(ctx context.Context, tx pgx.Tx) (int64, error) {
	var cards int64
	for _, statement := range []string{`
		UPDATE catalog.property_object_cards AS c SET promotion_boost = x.boost, row_version = c.row_version + 1, updated_at = now()
		FROM (
			SELECT o.id, CASE WHEN o.status = 'Published' OR own.named THEN coalesce(own.boost, 0) + coalesce(project.boost, 0) ELSE 0 END AS boost
			FROM catalog.property_object_cards o
			LEFT JOIN LATERAL (SELECT t.boost, t.named FROM vitrina.promotion_targets t WHERE t.kind = 2 AND t.id = o.id OFFSET 0) own ON true
			LEFT JOIN LATERAL (SELECT t.boost FROM vitrina.promotion_targets t WHERE t.kind = 1 AND t.id = o.project_id OFFSET 0) project ON true
			WHERE o.status <> 'Delisted' AND o.promotion_boost IS DISTINCT FROM
				CASE WHEN o.status = 'Published' OR own.named THEN coalesce(own.boost, 0) + coalesce(project.boost, 0) ELSE 0 END
			ORDER BY o.id FOR NO KEY UPDATE OF o
		) x
		WHERE c.id = x.id`, `
		UPDATE catalog.project_cards AS c SET promotion_boost = x.boost, row_version = c.row_version + 1, updated_at = now()
		FROM (
			SELECT p.id, CASE WHEN p.status = 'Published' OR own.named THEN coalesce(own.boost, 0) ELSE 0 END AS boost
			FROM catalog.project_cards p
			LEFT JOIN LATERAL (SELECT t.boost, t.named FROM vitrina.promotion_targets t WHERE t.kind = 1 AND t.id = p.id OFFSET 0) own ON true
			WHERE p.status <> 'Delisted' AND p.promotion_boost IS DISTINCT FROM
				CASE WHEN p.status = 'Published' OR own.named THEN coalesce(own.boost, 0) ELSE 0 END
			ORDER BY p.id FOR NO KEY UPDATE OF p
		) x
		WHERE c.id = x.id`,
	} {
		tag, err := tx.Exec(ctx, statement)
		if err != nil {
			return cards, fmt.Errorf("rewriting the cards: %w", err)
		}
		cards += tag.RowsAffected()
	}
	return cards, nil
}
