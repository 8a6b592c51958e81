package postgres

import (
	"context"
	"fmt"
	"iter"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pin-marketplace/vitrina/codecs"
)

// LaneOffset is an offset in one partition of the source or the loop topic.
type LaneOffset struct {
	Lane
	Offset int64
}

// ViewMark is one record of the popularity group's table topic: the mark of a view. Of several of one view the last holds.
type ViewMark struct {
	ViewID uuid.UUID
	Mark   codecs.Mark
}

// PopularityReset says what a reset changed.
type PopularityReset struct {
	Marks      int64 // views with a mark (from the marks only)
	Unfinished int64 // of them, those whose record comes again and counts then
	Pending    int64 // kept
	Dead       int64 // kept
	Objects    int64 // object cards whose counter changed
	Projects   int64 // project cards whose counter changed
}

// ResetPopularityFromTopic prepares the replay of the topic: the counters of all cards but the Delisted ones (D37) go to 0, the
// ledger keeps its pending and dead rows, and starts are the offsets from which each lane is read again: of the source
// topic, those of the replay; of the loop topic, the committed ones. Until FinishReplay no view is skipped on its mark alone
// and nothing is pruned. It belongs in one transaction with Reopen, after RaiseEpoch has stopped the writers.
func ResetPopularityFromTopic(ctx context.Context, tx pgx.Tx, starts []LaneOffset) (PopularityReset, error) {
	r, err := beginReset(ctx, tx)
	if err != nil {
		return r, err
	}
	if r.Objects, r.Projects, err = rewriteCounters(ctx, tx, `SELECT NULL::uuid AS id, 0::bigint AS views WHERE false`, `SELECT NULL::uuid AS id, 0::bigint AS views WHERE false`); err != nil {
		return r, err
	}
	// The records of all others come again and are judged anew, by the status that their cards have then.
	if err := emptyLedger(ctx, tx, starts, "pending", "dead"); err != nil {
		return r, err
	}
	if err := run(ctx, tx, `DELETE FROM vitrina.moved_views m WHERE NOT EXISTS (SELECT FROM vitrina.views v WHERE v.view_id = m.view_id)`); err != nil {
		return r, err
	}
	return r, run(ctx, tx, `UPDATE vitrina.views_ledger SET replaying = true, pruned_before = '-infinity', marks_before = '-infinity',
		previous_at = NULL, checkpoint_at = NULL, checkpoint_marks = NULL, safe_before = '-infinity', safe_marks = '-infinity'`)
}

// FinishReplay ends the replay of the topic: pruning begins again. Call it once the group has caught up with the ends that
// the source topic had at the start, and then with the end of the loop topic read after that. The ledger is complete for every
// view counted since the reset, so marks go on proving nothing until rows are pruned again.
func FinishReplay(ctx context.Context, tx pgx.Tx) error {
	if err := run(ctx, tx, `SELECT vitrina.enter_ledger(true)`); err != nil {
		return err
	}
	return run(ctx, tx, `UPDATE vitrina.views_ledger SET replaying = false`)
}

// ResetPopularityFromMarks sets the counters to what the marks say, in the caller's transaction: readers see the old counters until
// the commit. A mark whose record lies below the committed offset of its lane, or in an earlier incarnation, is finished and
// counts for its object, or the one that vitrina.moved_views names, unless the ledger holds the view as pending, dead or skipped because its card
// was Delisted; any other view's record comes again and counts then. A project's counter is the sum of its objects' counters. Delisted
// cards keep theirs (D37). The ledger keeps all rows but the counted ones.
//
// It belongs in one transaction with Reopen, after RaiseEpoch; committed (of all partitions of both topics, the first offset where
// nothing is committed) and marks are read after that. A deadlock with a rival writer of the cards means that the whole is
// run again.
func ResetPopularityFromMarks(ctx context.Context, tx pgx.Tx, committed []LaneOffset, marks iter.Seq2[ViewMark, error]) (PopularityReset, error) {
	r, err := beginReset(ctx, tx)
	if err != nil {
		return r, err
	}
	if r.Marks, r.Unfinished, err = loadMarks(ctx, tx, committed, marks); err != nil {
		return r, err
	}
	r.Objects, r.Projects, err = rewriteCounters(ctx, tx,
		`SELECT coalesce(o.object_id, m.object_id) AS id, count(*) AS views FROM vitrina_marks m LEFT JOIN vitrina.moved_views o ON o.view_id = m.view_id
			WHERE m.finished AND NOT EXISTS (SELECT FROM vitrina.views v WHERE v.view_id = m.view_id AND v.state <> 'counted') GROUP BY 1`,
		`SELECT o.project_id AS id, sum(o.popularity_views)::bigint AS views FROM catalog.property_object_cards o GROUP BY o.project_id`)
	if err != nil {
		return r, err
	}
	// A skipped row stays: its mark does not tell it from a counted one, and once its card is published again the next rebuild would count it.
	if err := emptyLedger(ctx, tx, committed, "pending", "dead", "skipped_delisted"); err != nil {
		return r, err
	}
	// clock_timestamp, not now(): the transaction began before the marks were read. A mark as old as that belongs to a view that is
	// counted above or comes again by the mark's own record, so it proves any other record a duplicate.
	return r, run(ctx, tx, `UPDATE vitrina.views_ledger SET replaying = false, pruned_before = clock_timestamp(), marks_before = clock_timestamp() + interval '5 minutes',
		previous_at = NULL, checkpoint_at = NULL, checkpoint_marks = NULL, safe_before = '-infinity', safe_marks = '-infinity'`)
}

// run executes one statement of a reset and names it in the error.
func run(ctx context.Context, tx pgx.Tx, statement string, args ...any) error {
	if _, err := tx.Exec(ctx, statement, args...); err != nil {
		return fmt.Errorf("resetting popularity (%.60s…): %w", statement, err)
	}
	return nil
}

// beginReset makes sure that no writer can be at work, and counts what is kept.
func beginReset(ctx context.Context, tx pgx.Tx) (PopularityReset, error) {
	var r PopularityReset
	for _, statement := range []string{`SET LOCAL statement_timeout = 0`, `SET LOCAL plan_cache_mode = auto`} {
		if err := run(ctx, tx, statement); err != nil {
			return r, err
		}
	}
	var open bool
	if err := tx.QueryRow(ctx, `SELECT state = 'open' FROM vitrina.projections WHERE name = $1 FOR UPDATE`, Popularity).Scan(&open); err != nil {
		return r, fmt.Errorf("resetting popularity: reading its projection: %w", err)
	}
	if open {
		return r, fmt.Errorf("resetting popularity: its projection is open; raise its epoch first, or running instances would count into the reset")
	}
	if err := run(ctx, tx, `SELECT vitrina.enter_ledger(true)`); err != nil {
		return r, err
	}
	late, err := ReadLateViews(ctx, tx)
	r.Pending, r.Dead = late.Pending, late.Dead
	return r, err
}

// rewriteCounters sets the counters of all cards that are not Delisted to what two queries (id, views) say, 0 where they say nothing: objects
// first, each kind in the order of the locks. Cards that have the right counter are not written.
func rewriteCounters(ctx context.Context, tx pgx.Tx, objects, projects string) (objectCards, projectCards int64, err error) {
	changed := [2]int64{}
	for i, kind := range [][2]string{{"catalog.property_object_cards", objects}, {"catalog.project_cards", projects}} {
		table, wanted := kind[0], kind[1]
		for _, statement := range []string{
			// Locked first, judged in a later statement: a card Delisted meanwhile keeps what it has.
			`SELECT count(*) FROM (SELECT FROM ` + table + ` c ORDER BY c.id FOR NO KEY UPDATE) locked`,
			`UPDATE ` + table + ` AS c SET popularity_views = x.views
			FROM (SELECT c.id, coalesce(w.views, 0) AS views FROM ` + table + ` c LEFT JOIN (` + wanted + `) w ON w.id = c.id) x
			WHERE c.id = x.id AND c.status <> 'Delisted' AND c.popularity_views <> x.views`,
		} {
			tag, err := tx.Exec(ctx, statement)
			if err != nil {
				return 0, 0, fmt.Errorf("setting the counters of %s: %w", table, err)
			}
			changed[i] = tag.RowsAffected()
		}
	}
	return changed[0], changed[1], nil
}

// emptyLedger keeps the rows of the given states and sets the horizons. TRUNCATE, because the ledger may hold a hundred million rows.
func emptyLedger(ctx context.Context, tx pgx.Tx, horizons []LaneOffset, keep ...string) error {
	if err := run(ctx, tx, `CREATE TEMP TABLE vitrina_kept ON COMMIT DROP AS SELECT v.* FROM vitrina.views v WHERE v.state = ANY ($1::vitrina.view_state[])`, keep); err != nil {
		return err
	}
	for _, statement := range []string{
		`TRUNCATE vitrina.views`,
		`INSERT INTO vitrina.views (at, record_offset, view_id, object_id, state, lane)
			SELECT at, record_offset, view_id, object_id, state, lane FROM vitrina_kept ORDER BY view_id`,
		`UPDATE vitrina.horizons SET checkpoint_end = NULL`,
	} {
		if err := run(ctx, tx, statement); err != nil {
			return err
		}
	}
	lanes, offsets := make([]Lane, len(horizons)), make([]int64, len(horizons))
	for i, h := range horizons {
		lanes[i], offsets[i] = h.Lane, h.Offset
	}
	numbers, err := ensureLanes(ctx, tx, lanes)
	if err != nil {
		return err
	}
	return run(ctx, tx, `UPDATE vitrina.horizons AS h SET horizon_offset = i.horizon FROM unnest($1::integer[], $2::bigint[]) AS i (lane, horizon)
		WHERE h.lane = i.lane`, numbers, offsets)
}

// loadMarks copies the last mark of each view into the temporary table vitrina_marks (view_id, object_id, finished).
func loadMarks(ctx context.Context, tx pgx.Tx, committed []LaneOffset, marks iter.Seq2[ViewMark, error]) (views, unfinished int64, err error) {
	if err := run(ctx, tx, `CREATE TEMP TABLE vitrina_marks_read (seq bigint NOT NULL, view_id uuid NOT NULL, object_id uuid NOT NULL, finished boolean NOT NULL) ON COMMIT DROP`); err != nil {
		return 0, 0, err
	}
	next, stop := iter.Pull2(marks)
	defer stop()
	source := &markRows{next: next, finished: finishedBelow(committed)}
	if _, err := tx.CopyFrom(ctx, pgx.Identifier{"vitrina_marks_read"}, []string{"seq", "view_id", "object_id", "finished"}, source); err != nil {
		return 0, 0, fmt.Errorf("loading the marks: %w", err)
	}
	for _, statement := range []string{
		`CREATE TEMP TABLE vitrina_marks ON COMMIT DROP AS
			SELECT DISTINCT ON (view_id) view_id, object_id, finished FROM vitrina_marks_read ORDER BY view_id, seq DESC`,
		`DROP TABLE vitrina_marks_read`,
		`ANALYZE vitrina_marks`,
	} {
		if err := run(ctx, tx, statement); err != nil {
			return 0, 0, err
		}
	}
	if err := tx.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE NOT finished) FROM vitrina_marks`).Scan(&views, &unfinished); err != nil {
		return 0, 0, fmt.Errorf("counting the marks: %w", err)
	}
	return views, unfinished, nil
}

// finishedBelow says of an origin whether its record is finished.
func finishedBelow(committed []LaneOffset) func(codecs.Origin) (bool, error) {
	offsets := make(map[laneKey]int64, len(committed))
	type incarnation struct {
		id   uint32
		loop bool
	}
	current := make(map[incarnation]bool)
	for _, c := range committed {
		offsets[c.key()] = c.Offset
		current[incarnation{c.Incarnation, c.Loop}] = true
	}
	return func(o codecs.Origin) (bool, error) {
		offset, ok := offsets[laneOf(o)]
		switch {
		case ok:
			return o.Offset < offset, nil
		case current[incarnation{o.Incarnation, o.Loop}]:
			return false, fmt.Errorf("a mark names partition %d, whose committed offset was not given", o.Partition)
		default:
			return true, nil // of a topic that is gone (section 12, rule 3)
		}
	}
}

// markRows feeds COPY.
type markRows struct {
	next     func() (ViewMark, error, bool)
	finished func(codecs.Origin) (bool, error)
	seq      int64
	row      [4]any
	err      error
}

// Next reads one mark.
func (m *markRows) Next() bool {
	mark, err, ok := m.next()
	if !ok || err != nil {
		m.err = err
		return false
	}
	finished, err := m.finished(mark.Mark.Origin)
	if err != nil {
		m.err = err
		return false
	}
	m.seq++
	m.row = [4]any{m.seq, [16]byte(mark.ViewID), [16]byte(mark.Mark.ObjectID), finished}
	return true
}

// Values returns the mark read last.
func (m *markRows) Values() ([]any, error) { return m.row[:], nil }

// Err is why Next ended early.
func (m *markRows) Err() error { return m.err }
