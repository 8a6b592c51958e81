package postgres

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pin-marketplace/vitrina/codecs"
)

// lateBytes bounds the records that one transaction carries.
const lateBytes = 8 << 20

const applyViews = `SELECT o_refused, o_dead, o_applied, o_applied_lanes, o_applied_offsets, o_revived,
	o_counted, o_projects, o_delisted, o_missing, o_projects_missing
	FROM vitrina.apply_views($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`

// apply is one to three kinds of transactions, each for all of its items at once:
//   - new views, which are nearly all: inserted without ON CONFLICT, at half the cost;
//   - views that were marked before;
//   - the few left over: without card, dead, or a view's second item in the batch. Only these carry their records.
//
// Each item is applied in one of them, so an error between them leaves nothing half done.
func (s *ViewsSink) apply(ctx context.Context, values []ViewItem) error {
	fresh, known, repeats := divide(values)
	plain := s.plain.next()
	settled := make(map[[16]byte]bool) // views that a repeat cannot change any more
	watch := func(item *ViewItem) {
		if len(repeats) > 0 {
			settled[item.ViewID] = true
		}
	}
	left, refused, err := s.count(ctx, fresh, plain, watch)
	if err != nil {
		return err
	}
	s.plain.saw(plain, refused)
	more, _, err := s.count(ctx, known, false, watch)
	if err != nil {
		return err
	}
	left = append(left, more...)
	duplicates := 0
	for _, item := range repeats {
		if settled[item.ViewID] {
			s.log.duplicate(ctx, item)
			duplicates++
			continue
		}
		left = append(left, item)
	}
	s.metrics.add(&viewTally{duplicates: duplicates})
	sortItems(left)
	for len(left) > 0 {
		n, size := 0, 0
		for n < len(left) && (n == 0 || size < lateBytes) {
			size += len(left[n].Record.Key) + len(left[n].Record.Value)
			n++
		}
		if err := s.settle(ctx, left[:n]); err != nil {
			return err
		}
		left = left[n:]
	}
	return nil
}

// divide sorts items by view, and those of one view as they came. The first of each view is fresh or known; others repeat it.
func divide(values []ViewItem) (fresh, known, repeats []*ViewItem) {
	sorted := make([]*ViewItem, len(values))
	for i := range values {
		sorted[i] = &values[i]
	}
	sortItems(sorted)
	fresh = make([]*ViewItem, 0, len(values))
	for i, item := range sorted {
		switch {
		case i > 0 && sorted[i-1].ViewID == item.ViewID:
			repeats = append(repeats, item)
		case item.Kind == MarkNone:
			fresh = append(fresh, item)
		default:
			known = append(known, item)
		}
	}
	return fresh, known, repeats
}

func sortItems(items []*ViewItem) {
	slices.SortStableFunc(items, func(a, b *ViewItem) int { return bytes.Compare(a.ViewID[:], b.ViewID[:]) })
}

// count applies items of distinct views without their records. It returns those that settle must apply, and how many views
// were refused. settled hears of each view that is final.
func (s *ViewsSink) count(ctx context.Context, items []*ViewItem, plain bool, settled func(*ViewItem)) (left []*ViewItem, refused int, err error) {
	if len(items) == 0 {
		return nil, 0, nil
	}
	var r viewsApplied
	args := s.arguments(items, plain)
	if err := s.transact(ctx, func(ctx context.Context) error { return r.scan(s.pool.QueryRow(ctx, applyViews, args...)) }); err != nil {
		return nil, 0, err
	}
	r.index()
	var t viewTally
	for _, item := range items {
		id, object := [16]byte(item.ViewID), [16]byte(item.ObjectID)
		switch {
		case r.refused.has(id) && r.dead.has(id), !r.refused.has(id) && r.missing.has(object):
			left = append(left, item)
			continue
		case r.refused.has(id):
			s.log.duplicate(ctx, item)
			t.duplicates++
			continue // a repeat of it may be a record that this one's horizon or mark says nothing about
		case r.delisted.has(object):
			s.log.delisted(ctx, item.ViewID, item.ObjectID, item.ViewSource, item.DurationSeconds)
			t.delisted++
		default:
			s.counted(ctx, &t, &r, item)
		}
		settled(item)
	}
	s.metrics.add(&t)
	return left, len(r.Refused), nil
}

// settle applies items with their records, several of one view among them.
func (s *ViewsSink) settle(ctx context.Context, items []*ViewItem) error {
	args := s.arguments(items, false)
	records, sources, durations := make([][]byte, len(items)), make([]string, len(items)), make([]int64, len(items))
	for i, item := range items {
		records[i], sources[i], durations[i] = codecs.EncodeRecord(item.Record), item.ViewSource, item.DurationSeconds
	}
	args = append(args[:8], records, sources, durations, s.cfg.FirstTry)
	var r viewsApplied
	if err := s.transact(ctx, func(ctx context.Context) error { return r.scan(s.pool.QueryRow(ctx, applyViews, args...)) }); err != nil {
		return err
	}
	r.index()
	type row struct {
		lane   int32
		offset int64
	}
	applied := make(map[[16]byte]row, len(r.Applied))
	for i, id := range r.Applied {
		applied[id] = row{r.AppliedLanes[i], r.AppliedOffsets[i]}
	}
	var t viewTally
	for _, item := range items {
		id, object := [16]byte(item.ViewID), [16]byte(item.ObjectID)
		if own, ok := applied[id]; !ok || own != (row{s.lanes.of(item.Origin), item.Origin.Offset}) {
			s.log.duplicate(ctx, item)
			t.duplicates++
			continue
		}
		delete(applied, id) // the same record twice in one batch
		if r.revived.has(id) {
			s.log.revived(ctx, item)
			t.revived++
		}
		switch {
		case r.missing.has(object):
			s.log.notFound(ctx, item.ViewID, item.ObjectID, item.ViewSource, item.DurationSeconds, 1)
			t.notFound++
		case r.delisted.has(object):
			s.log.delisted(ctx, item.ViewID, item.ObjectID, item.ViewSource, item.DurationSeconds)
			t.delisted++
		default:
			s.counted(ctx, &t, &r, item)
		}
	}
	s.metrics.add(&t)
	return nil
}

func (s *ViewsSink) counted(ctx context.Context, t *viewTally, r *viewsApplied, item *ViewItem) {
	t.count(item.ViewSource)
	s.log.incremented(ctx, item.ViewID, item.ObjectID, item.ViewSource, item.DurationSeconds, r.projectOf)
	if len(r.projectsMissing) == 0 {
		return
	}
	if project := r.projectOf(item.ObjectID); r.projectsMissing.has(project) {
		s.log.projectMissing(ctx, item.ViewID, item.ObjectID, project, item.ViewSource)
		t.projectMissing++
	}
}

// arguments are those of apply_views; without records.
func (s *ViewsSink) arguments(items []*ViewItem, plain bool) []any {
	n := len(items)
	lanes := make([]int32, 0, 16)
	laneOf := make([]int16, n)
	offsets, marked := make([]int64, n), make([]int64, n)
	views, objects := make([][16]byte, n), make([][16]byte, n)
	position := make(map[int32]int16, 16)
	for i, item := range items {
		number := s.lanes.of(item.Origin)
		at, ok := position[number]
		if !ok {
			lanes = append(lanes, number)
			at = int16(len(lanes)) //nolint:gosec // a batch has fewer lanes than items, and those are some thousands
			position[number] = at
		}
		laneOf[i], offsets[i], marked[i] = at, item.Origin.Offset, item.markedAt()
		views[i], objects[i] = item.ViewID, item.ObjectID
	}
	return []any{s.cfg.Epoch, lanes, laneOf, offsets, views, objects, marked, plain, nil, nil, nil, time.Duration(0)}
}

// viewsApplied is the answer of apply_views.
type viewsApplied struct {
	Refused, Dead, Applied                                   [][16]byte
	AppliedLanes                                             []int32
	AppliedOffsets                                           []int64
	Revived, Counted, Projects, Delisted, Missing, NoProject [][16]byte

	refused, dead, revived, delisted, missing, projectsMissing uuidSet
	projects                                                   map[[16]byte][16]byte // built at the first question
}

func (r *viewsApplied) scan(row pgx.Row) error {
	*r = viewsApplied{}
	return row.Scan(&r.Refused, &r.Dead, &r.Applied, &r.AppliedLanes, &r.AppliedOffsets, &r.Revived,
		&r.Counted, &r.Projects, &r.Delisted, &r.Missing, &r.NoProject)
}

func (r *viewsApplied) index() {
	r.refused, r.dead, r.revived = newUUIDSet(r.Refused), newUUIDSet(r.Dead), newUUIDSet(r.Revived)
	r.delisted, r.missing, r.projectsMissing = newUUIDSet(r.Delisted), newUUIDSet(r.Missing), newUUIDSet(r.NoProject)
}

// projectOf returns the project that the object's card named when it was counted.
func (r *viewsApplied) projectOf(object [16]byte) [16]byte {
	if r.projects == nil {
		r.projects = make(map[[16]byte][16]byte, len(r.Counted))
		for i, id := range r.Counted {
			r.projects[id] = r.Projects[i]
		}
	}
	return r.projects[object]
}

type uuidSet map[[16]byte]struct{}

func newUUIDSet(ids [][16]byte) uuidSet {
	if len(ids) == 0 {
		return nil
	}
	set := make(uuidSet, len(ids))
	for _, id := range ids {
		set[id] = struct{}{}
	}
	return set
}

func (s uuidSet) has(id [16]byte) bool {
	if len(s) == 0 {
		return false
	}
	_, ok := s[id]
	return ok
}

// plainInserts says whether the next batch of fresh views is inserted without ON CONFLICT. A batch that held a known view fails
// and is inserted twice, so after one the next few go with it: repeats come in bursts, when a group table was lost or an
// instance came back after a long pause.
type plainInserts struct{ wait atomic.Int32 }

const plainPause = 16

func (p *plainInserts) next() bool {
	if p.wait.Load() <= 0 {
		return true
	}
	p.wait.Add(-1)
	return false
}

func (p *plainInserts) saw(plain bool, refused int) {
	if plain && refused > 0 {
		p.wait.Store(plainPause)
	}
}
