package postgres

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/pin-marketplace/vitrina/codecs"
)

// lateBytes bounds the records that one transaction carries.
const lateBytes = 8 << 20

const applyViews = `SELECT o_refused, o_dead, o_applied, o_applied_lanes, o_applied_offsets, o_revived,
	o_counted, o_projects, o_delisted, o_missing, o_projects_missing, o_delisted_projects
	FROM vitrina.apply_views($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)`

// apply is one to three kinds of transactions, each for all of its items at once:
//   - new views, which are nearly all: inserted without ON CONFLICT, at half the cost;
//   - views that were marked before;
//   - the few left over: without card, dead, or a view's second item in the batch. Only these carry their records.
//
// Each item is applied in one of them, so an error between them leaves nothing half done. It returns how many views it counted, or had
// counted when the batch came before.
func (s *ViewsSink) apply(ctx context.Context, values []ViewItem) (taken int, err error) {
	fresh, known, repeats := divide(values)
	plain := s.plain.next()
	settled := make(map[[16]byte]bool, len(repeats)) // of each view that is repeated, whether a repeat cannot change it any more
	for _, item := range repeats {
		settled[item.ViewID] = false
	}
	of, err := s.count(ctx, fresh, plain, settled)
	if err != nil {
		return 0, err
	}
	s.plain.saw(plain, of.refused)
	more, err := s.count(ctx, known, false, settled)
	if err != nil {
		return of.taken, err
	}
	left := slices.Concat(of.left, more.left)
	taken = of.taken + more.taken
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
	counted, err := s.settleAll(ctx, left, false)
	return taken + counted, err
}

// settleAll settles items of any number, as many at once as one transaction carries.
func (s *ViewsSink) settleAll(ctx context.Context, left []*ViewItem, locked bool) (counted int, err error) {
	sortItems(left)
	for len(left) > 0 {
		n, size := 0, 0
		for n < len(left) && (n == 0 || size < lateBytes) {
			size += len(left[n].Record.Key) + len(left[n].Record.Value)
			n++
		}
		of, err := s.settle(ctx, left[:n], locked)
		if err != nil {
			return counted, err
		}
		counted += of
		left = left[n:]
	}
	return counted, nil
}

// countResult is what became of the items that count was given.
type countResult struct {
	left    []*ViewItem // settle must apply them
	refused int
	taken   int // counted now, or by the same record before
}

// count applies items of distinct views, sorted, without their records. Of the views in settled, it notes those that are final.
func (s *ViewsSink) count(ctx context.Context, items []*ViewItem, plain bool, settled map[[16]byte]bool) (out countResult, err error) {
	if len(items) == 0 {
		return out, nil
	}
	b := s.batch(items, &s.delisted)
	defer s.release(b)
	var r viewsApplied
	args := b.arguments(s.cfg.Epoch, plain)
	if err := s.transact(ctx, func(ctx context.Context) error { return r.scan(s.pool.QueryRow(ctx, applyViews, args...)) }); err != nil {
		return out, err
	}
	b.judge(&r)
	s.delisted.learn(b, &r)
	refusals := uuidCursor{ids: r.refused}
	dead := newUUIDSet(r.dead)
	noProject := newUUIDSet(r.noProject)
	t := viewTally{at: s.log.now()}
	for i, item := range items {
		isRefused := refusals.reach(item.ViewID)
		switch {
		case isRefused && !dead.has(item.ViewID):
			s.log.duplicate(ctx, item)
			t.duplicates++
			if item.Kind == codecs.MarkNone || item.Kind == codecs.MarkOwn {
				out.taken++
			}
			continue // a repeat of it may be a record that this one's horizon or mark says nothing about
		case isRefused || b.fate(i) == fateMissing:
			out.left = append(out.left, item)
			continue
		case b.fate(i) == fateDelisted:
			s.log.delisted(ctx, item.ViewID, item.ObjectID, item.ViewSource, item.DurationSeconds, r.projectOf)
			t.delisted++
		default:
			s.counted(ctx, &t, &r, noProject, item)
			out.taken++
		}
		if len(settled) == 0 {
			continue
		}
		if _, repeated := settled[item.ViewID]; repeated {
			settled[item.ViewID] = true
		}
	}
	s.metrics.add(&t)
	out.refused = r.refused.len()
	return out, nil
}

// settle applies items with their records, several of one view among them. It returns how many it counted. With locked their cards
// are not touched: those that the ledger takes are pending.
func (s *ViewsSink) settle(ctx context.Context, items []*ViewItem, locked bool) (counted int, err error) {
	b := s.batch(items, new(delistedObjects))
	defer s.release(b)
	args := b.arguments(s.cfg.Epoch, false)
	records, sources, durations := make([][]byte, len(items)), make([]string, len(items)), make([]int64, len(items))
	for i, item := range items {
		records[i], sources[i], durations[i] = codecs.EncodeRecord(item.Record), item.ViewSource, item.DurationSeconds
	}
	args = append(args[:13], records, sources, durations, s.cfg.FirstTry)
	if locked {
		args[10] = nil // p_counts
	}
	var r viewsApplied
	if err := s.transact(ctx, func(ctx context.Context) error { return r.scan(s.pool.QueryRow(ctx, applyViews, args...)) }); err != nil {
		return 0, err
	}
	b.judge(&r)
	revived, noProject := newUUIDSet(r.revived), newUUIDSet(r.noProject)
	type row struct {
		lane   int32
		offset int64
	}
	applied := make(map[[16]byte]row, r.applied.len())
	for i := range r.applied.len() {
		applied[r.applied.at(i)] = row{r.appliedLanes[i], r.appliedOffsets[i]}
	}
	t := viewTally{at: s.log.now()}
	for i, item := range items {
		id := [16]byte(item.ViewID)
		if own, ok := applied[id]; !ok || own != (row{s.lanes.of(item.Origin), item.Origin.Offset}) {
			s.log.duplicate(ctx, item)
			t.duplicates++
			continue
		}
		delete(applied, id) // the same record twice in one batch
		if revived.has(id) {
			s.log.revived(ctx, item)
		}
		switch b.fate(i) {
		case fateMissing:
			if locked {
				continue
			}
			s.log.notFound(ctx, item.ViewID, item.ObjectID, item.ViewSource, item.DurationSeconds, 1)
			t.notFound++
		case fateDelisted:
			s.log.delisted(ctx, item.ViewID, item.ObjectID, item.ViewSource, item.DurationSeconds, r.projectOf)
			t.delisted++
		default:
			s.counted(ctx, &t, &r, noProject, item)
			counted++
		}
	}
	s.metrics.add(&t)
	return counted, nil
}

func (s *ViewsSink) counted(ctx context.Context, t *viewTally, r *viewsApplied, noProject uuidSet, item *ViewItem) {
	item.Counted = true
	t.count(item.ViewSource)
	s.log.incremented(ctx, t.at, item.ViewID, item.ObjectID, item.ViewSource, item.DurationSeconds, r.projectOf)
	if len(noProject) == 0 {
		return
	}
	if project := r.projectOf(item.ObjectID); noProject.has(project) {
		s.log.projectMissing(ctx, item.ViewID, item.ObjectID, project, item.ViewSource)
		t.projectMissing++
	}
}

// viewsApplied is the answer of apply_views.
type viewsApplied struct {
	refused, dead, applied                                   uuidArray
	appliedLanes                                             []int32
	appliedOffsets                                           []int64
	revived, counted, projects, delisted, missing, noProject uuidArray
	delistedProjects                                         uuidArray

	projectsOf map[[16]byte][16]byte // built at the first question
}

func (r *viewsApplied) scan(row pgx.Row) error {
	*r = viewsApplied{}
	err := row.Scan(r.refused.target(), r.dead.target(), r.applied.target(), &r.appliedLanes, &r.appliedOffsets, r.revived.target(),
		r.counted.target(), r.projects.target(), r.delisted.target(), r.missing.target(), r.noProject.target(), r.delistedProjects.target())
	if err != nil {
		return err
	}
	for _, ids := range []*uuidArray{&r.refused, &r.dead, &r.applied, &r.revived, &r.counted, &r.projects, &r.delisted, &r.missing, &r.noProject, &r.delistedProjects} {
		err = errors.Join(err, ids.check())
	}
	return err
}

// projectOf returns the project that the object's card named when it was counted, or found Delisted.
func (r *viewsApplied) projectOf(object [16]byte) [16]byte {
	if r.projectsOf == nil {
		r.projectsOf = make(map[[16]byte][16]byte, r.counted.len()+r.delisted.len())
		for i := range r.counted.len() {
			r.projectsOf[r.counted.at(i)] = r.projects.at(i)
		}
		for i := range r.delisted.len() {
			r.projectsOf[r.delisted.at(i)] = r.delistedProjects.at(i)
		}
	}
	return r.projectsOf[object]
}

// uuidCursor walks sorted ids beside a walk over other sorted ids.
type uuidCursor struct {
	ids  uuidArray
	next int
}

// reach says whether id is one of them. It must not be less than the id before.
func (c *uuidCursor) reach(id [16]byte) bool {
	for ; c.next < c.ids.len(); c.next++ {
		at := c.ids.at(c.next)
		if order := bytes.Compare(at[:], id[:]); order >= 0 {
			return order == 0
		}
	}
	return false
}

type uuidSet map[[16]byte]struct{}

func newUUIDSet(ids uuidArray) uuidSet {
	if ids.len() == 0 {
		return nil
	}
	set := make(uuidSet, ids.len())
	for i := range ids.len() {
		set[ids.at(i)] = struct{}{}
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
