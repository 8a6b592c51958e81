package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// States of a view in the ledger, as the database names them.
const (
	StateCounted         = "counted"
	StatePending         = "pending"
	StateDead            = "dead"
	StateSkippedDelisted = "skipped_delisted"
)

// View is what the ledger knows about a view.
type View struct {
	ViewID, ObjectID uuid.UUID
	State            string
	Since            time.Time // when the state was reached; of pending views, when they became so
	// Where the record lies that made the row. A looped record's place is in the loop topic.
	Topic     string
	Partition int32
	Offset    int64
	Loop      bool
	Late      *LateView // pending and dead views only
}

// LateView is the rest of a pending or dead view.
type LateView struct {
	Retries    int
	NextTry    time.Time // zero when dead
	LetterDue  bool      // dead, and its letter not yet noted as sent
	Code       string    // why it is dead
	Reason     string
	Generation int // how often it was put back
}

const readView = `
	SELECT v.object_id, v.state::text, coalesce(l.since, v.at), h.topic, h.partition, v.record_offset, h.is_loop,
		l.view_id IS NOT NULL, coalesce(l.attempts, 0), l.next_try, l.letter_due IS NOT NULL, coalesce(l.code, ''), coalesce(l.reason, ''), coalesce(l.generation, 0)
	FROM vitrina.views v
	JOIN vitrina.horizons h ON h.lane = v.lane
	LEFT JOIN vitrina.late_views l ON l.view_id = v.view_id
	WHERE v.view_id = $1`

// ReadView returns a view's ledger row; false where there is none: the view never came, or its row was pruned and its mark in
// the group table is all that is left.
func ReadView(ctx context.Context, q Querier, id uuid.UUID) (View, bool, error) {
	v := View{ViewID: id}
	var object [16]byte
	var late LateView
	var isLate bool
	var nextTry *time.Time
	err := q.QueryRow(ctx, readView, [16]byte(id)).Scan(&object, &v.State, &v.Since, &v.Topic, &v.Partition, &v.Offset, &v.Loop,
		&isLate, &late.Retries, &nextTry, &late.LetterDue, &late.Code, &late.Reason, &late.Generation)
	if errors.Is(err, pgx.ErrNoRows) {
		return v, false, nil
	}
	if err != nil {
		return v, false, fmt.Errorf("reading view %s: %w", id, err)
	}
	v.ObjectID = object
	if nextTry != nil {
		late.NextTry = *nextTry
	}
	if isLate {
		v.Late = &late
	}
	return v, true, nil
}

// LateViews are the numbers of views that wait for a card or have given up.
type LateViews struct {
	Pending       int64
	Dead          int64
	LettersDue    int64     // of the dead, those whose letter is not yet noted as sent
	OldestPending time.Time // when the oldest pending view became so; zero when none is
}

// ReadLateViews counts pending and dead views. It reads their table whole, which is small unless the catalog is far behind.
func ReadLateViews(ctx context.Context, q Querier) (LateViews, error) {
	var late LateViews
	var oldest *time.Time
	err := q.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE next_try IS NOT NULL), count(*) FILTER (WHERE next_try IS NULL),
			count(*) FILTER (WHERE letter_due IS NOT NULL), min(since) FILTER (WHERE next_try IS NOT NULL)
		FROM vitrina.late_views`).Scan(&late.Pending, &late.Dead, &late.LettersDue, &oldest)
	if err != nil {
		return late, fmt.Errorf("counting late views: %w", err)
	}
	if oldest != nil {
		late.OldestPending = *oldest
	}
	return late, nil
}

// Ledger says how far back the ledger reaches.
type Ledger struct {
	Replaying    bool      // a rebuild from the topic is under way
	PrunedBefore time.Time // counted and skipped rows older than this may be gone; zero when nothing was ever pruned
	PassedAt     time.Time // the last pruning pass of any instance; zero when none was
	Horizons     []Horizon
}

// Horizon is the offset below which every record of a lane is finished.
type Horizon struct {
	Lane
	Offset int64
}

// ReadLedger returns the ledger's horizons, sorted by topic and partition.
func ReadLedger(ctx context.Context, q Querier) (Ledger, error) {
	var l Ledger
	var before, passed *time.Time
	err := q.QueryRow(ctx, `SELECT replaying, nullif(pruned_before, '-infinity'), nullif(passed_at, '-infinity') FROM vitrina.views_ledger`).
		Scan(&l.Replaying, &before, &passed)
	if err != nil {
		return l, fmt.Errorf("reading vitrina.views_ledger: %w", err)
	}
	if before != nil {
		l.PrunedBefore = *before
	}
	if passed != nil {
		l.PassedAt = *passed
	}
	rows, err := q.Query(ctx, `SELECT incarnation, is_loop, partition, topic, horizon_offset FROM vitrina.horizons ORDER BY topic, incarnation, partition`)
	if err != nil {
		return l, fmt.Errorf("reading vitrina.horizons: %w", err)
	}
	l.Horizons, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (h Horizon, err error) {
		err = row.Scan(&h.Incarnation, &h.Loop, &h.Partition, &h.Topic, &h.Offset)
		return h, err
	})
	if err != nil {
		return l, fmt.Errorf("reading vitrina.horizons: %w", err)
	}
	return l, nil
}
