package postgres

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/sinks/batch"
)

// The model knows Kafka (lanes, deliveries, commits, marks that a crash may lose, instances that freeze and come back), the catalog,
// and what should have become of each view. It knows nothing of how the ledger finds out: no windows, no checkpoints. A view is
// applied when its row is seen for the first time, and from then on it must never be applied again, row or no row.

const (
	modelWindow = 6 * time.Hour
	modelStep   = 30 * time.Minute // far more than a test takes in real time
)

var modelDelays = []time.Duration{time.Hour, 2 * time.Hour}

type modelLane struct {
	Lane
	records   []string // view names
	next      int
	finished  []bool
	committed int64
	horizon   int64 // committed, as of the last pruning pass
}

type modelMark struct {
	origin  codecs.Origin
	at      time.Duration // model time
	durable bool
}

type modelItem struct {
	view   string
	origin codecs.Origin
	kind   codecs.MarkKind
	markAt time.Duration
}

type modelView struct {
	state    string // empty: not applied
	own      codecs.Origin
	attempts int
	due      time.Duration
	gone     bool // its row was pruned
}

type viewWorld struct {
	e           *viewsEnv
	t           *rapid.T
	now         time.Duration
	lanes       []*modelLane
	incarnation uint32
	marks       map[string]*modelMark
	views       map[string]*modelView
	objects     map[string][2]string // project, status; absent: no card
	projects    map[string]string
	want        map[string]int64 // counters by card name
	buffers     [2][]modelItem
	zombies     [][]modelItem
	lost        map[string]bool // views some record of which went with its topic
}

func objectOfView(view string) string { return "o" + view[1:2] }

func TestTheLedgerAgreesWithTheModel(t *testing.T) {
	pool := migrated(t)
	rapid.Check(t, func(rt *rapid.T) {
		_, err := pool.Exec(t.Context(), `TRUNCATE vitrina.views, vitrina.late_views, vitrina.horizons, vitrina.views_ledger, catalog.property_object_cards, catalog.project_cards RESTART IDENTITY;
			INSERT INTO vitrina.views_ledger DEFAULT VALUES; UPDATE vitrina.projections SET state = 'open' WHERE name = 'popularity'`, pgx.QueryExecModeSimpleProtocol)
		require.NoError(rt, err)
		w := &viewWorld{
			t: rt, incarnation: 1, marks: map[string]*modelMark{}, views: map[string]*modelView{}, objects: map[string][2]string{},
			projects: map[string]string{}, want: map[string]int64{}, lost: map[string]bool{},
		}
		w.e = newViewsEnvOn(t, pool)
		w.restart()
		w.lanes = []*modelLane{{Lane: lane(0, false)}, {Lane: lane(1, false)}, {Lane: lane(0, true)}}
		rt.Repeat(map[string]func(*rapid.T){
			"":                    func(*rapid.T) { w.check() },
			"append":              w.append,
			"append again":        w.append,
			"deliver":             w.deliver,
			"deliver more":        func(rt *rapid.T) { w.deliver(rt); w.deliver(rt); w.deliver(rt) },
			"flush":               w.flush,
			"flush both at once":  w.flushBoth,
			"crash":               w.crash,
			"zombie":              w.zombie,
			"object card":         w.objectCard,
			"project card":        w.projectCard,
			"time":                func(rt *rapid.T) { w.pass(time.Duration(rapid.IntRange(1, 16).Draw(rt, "steps")) * modelStep) },
			"retry":               w.retry,
			"prune":               func(*rapid.T) { w.prune() },
			"finish, wait, prune": func(*rapid.T) { w.drain(); w.prune(); w.pass(modelWindow + modelStep); w.prune(); w.prune() },
			"consume all again":   w.consumeAgain,
			"recreate the topic":  w.recreate,
			"rebuild from marks":  w.rebuildFromMarks,
			"rebuild from topic":  w.rebuildFromTopic,
		})
		w.drain()
		w.check()
		for name := range w.known() {
			if w.views[name] == nil && !w.lost[name] {
				rt.Fatalf("view %s is finished and was never applied", name)
			}
		}
	})
}

func (w *viewWorld) restart() {
	w.e.restart()
	w.e.sink.cfg.FirstTry = modelDelays[0]
	w.e.worker.cfg.Delays = modelDelays
}

// known are the views of the records that the topics hold.
func (w *viewWorld) known() map[string]bool {
	known := map[string]bool{}
	for _, l := range w.lanes {
		for _, view := range l.records {
			known[view] = true
		}
	}
	return known
}

func (w *viewWorld) append(rt *rapid.T) {
	l := rapid.SampledFrom(w.lanes).Draw(rt, "lane")
	l.records = append(l.records, fmt.Sprintf("v%d%d", rapid.IntRange(0, 2).Draw(rt, "object"), rapid.IntRange(0, 3).Draw(rt, "view")))
	l.finished = append(l.finished, false)
}

// deliver hands the next record of a lane to an instance: the rules of processors/popularity, and its buffer.
func (w *viewWorld) deliver(rt *rapid.T) {
	w.deliverTo(rapid.SampledFrom(w.lanes).Draw(rt, "lane"), rapid.IntRange(0, 1).Draw(rt, "instance"))
}

func (w *viewWorld) deliverTo(l *modelLane, instance int) {
	if l.next == len(l.records) {
		return
	}
	item := modelItem{view: l.records[l.next], kind: codecs.MarkNone}
	item.origin = codecs.Origin{Incarnation: l.Incarnation, Loop: l.Loop, Partition: l.Partition, Offset: int64(l.next)}
	l.next++
	mark := w.marks[item.view]
	switch {
	case mark == nil:
		w.marks[item.view] = &modelMark{origin: item.origin, at: w.now}
	case mark.origin == item.origin:
		item.kind = codecs.MarkOwn
	case mark.origin.Loop == item.origin.Loop && mark.origin.Incarnation != item.origin.Incarnation:
		item.kind = codecs.MarkEarlier
	default:
		item.kind, item.markAt = codecs.MarkForeign, mark.at
	}
	w.buffers[instance] = append(w.buffers[instance], item)
}

func (w *viewWorld) items(items []modelItem) []ViewItem {
	out := make([]ViewItem, 0, len(items))
	for _, m := range items {
		item := view(m.view, objectOfView(m.view), m.origin)
		item.Kind, item.MarkAt = m.kind, time.Now().Add(m.markAt-w.now)
		out = append(out, item)
	}
	return out
}

func (w *viewWorld) flush(rt *rapid.T) {
	w.flushInstance(rapid.IntRange(0, 1).Draw(rt, "instance"))
}

func (w *viewWorld) flushInstance(instance int) {
	items := w.buffers[instance]
	w.buffers[instance] = nil
	require.NoError(w.t, w.e.flush(w.items(items)...))
	w.applied(items, true)
	w.finish(items)
}

func (w *viewWorld) flushBoth(*rapid.T) {
	var g errgroup.Group
	for _, items := range w.buffers {
		values := w.items(items)
		g.Go(func() error { return w.e.flush(values...) })
	}
	require.NoError(w.t, g.Wait())
	items := slices.Concat(w.buffers[0], w.buffers[1])
	w.buffers = [2][]modelItem{}
	w.applied(items, false)
	w.finish(items)
}

// finish settles records: their marks are durable, and each lane is committed up to its first unfinished record.
func (w *viewWorld) finish(items []modelItem) {
	for _, item := range items {
		if mark := w.marks[item.view]; mark != nil {
			mark.durable = true
		}
		for _, l := range w.lanes {
			if l.key() != laneOf(item.origin) {
				continue
			}
			if i := int(item.origin.Offset); i < l.next {
				l.finished[i] = true
			}
			for l.committed < int64(len(l.finished)) && l.finished[l.committed] {
				l.committed++
			}
		}
	}
}

// applied follows what a flush did, by the rows it left.
func (w *viewWorld) applied(items []modelItem, inOrder bool) {
	rows := w.rows()
	byView := map[string][]modelItem{}
	for _, item := range items {
		byView[item.view] = append(byView[item.view], item)
	}
	for name, items := range byView {
		v, row := w.views[name], rows[name]
		switch {
		case v == nil && row == nil:
			for _, item := range items {
				if item.origin.Offset >= w.horizon(item.origin) {
					require.Contains(w.t, []codecs.MarkKind{codecs.MarkForeign, codecs.MarkEarlier}, item.kind, "view %s: a record without foreign mark was not applied", name)
				}
				if item.kind == codecs.MarkEarlier {
					w.lost[name] = true
				}
			}
		case v == nil:
			require.True(w.t, slices.ContainsFunc(items, func(i modelItem) bool { return i.origin == row.own }), "view %s has a row by a record that never came", name)
			w.views[name] = &modelView{own: row.own}
			w.count(name)
		case v.state == StateDead:
			var revivers []codecs.Origin
			for _, item := range items {
				if item.origin != v.own && item.origin.Offset >= w.horizon(item.origin) {
					revivers = append(revivers, item.origin)
				}
			}
			if len(revivers) == 0 {
				continue
			}
			require.NotNil(w.t, row)
			if inOrder {
				require.Equal(w.t, revivers[0], row.own, "view %s: who revived it", name)
			}
			require.Contains(w.t, revivers, row.own)
			v.own = row.own
			w.count(name)
		}
	}
}

// horizon is that of an origin's lane; of a topic that is gone, the database's.
func (w *viewWorld) horizon(o codecs.Origin) int64 {
	for _, l := range w.lanes {
		if l.key() == laneOf(o) {
			return l.horizon
		}
	}
	var horizon int64
	require.NoError(w.t, w.e.pool.QueryRow(w.e.tb.Context(), `SELECT horizon_offset FROM vitrina.horizons WHERE incarnation = $1 AND is_loop = $2 AND partition = $3`,
		int64(o.Incarnation), o.Loop, o.Partition).Scan(&horizon))
	return horizon
}

// count is what the specification says of a view that is processed now.
func (w *viewWorld) count(name string) {
	v := w.views[name]
	object := objectOfView(name)
	card, ok := w.objects[object]
	switch {
	case !ok:
		v.state, v.attempts, v.due = StatePending, 0, w.now+modelDelays[0]
	case card[1] == "Delisted":
		v.state = StateSkippedDelisted
	default:
		v.state = StateCounted
		w.want[object]++
		if status, ok := w.projects[card[0]]; ok && status != "Delisted" {
			w.want[card[0]]++
		}
	}
}

func (w *viewWorld) crash(rt *rapid.T) {
	i := rapid.IntRange(0, 1).Draw(rt, "instance")
	// Partitions move as a whole: all instances give up what is not committed; this one may be frozen and flush later.
	if len(w.buffers[i]) > 0 && rapid.Bool().Draw(rt, "comes back") {
		w.zombies = append(w.zombies, w.buffers[i])
	}
	w.buffers = [2][]modelItem{}
	for _, name := range slices.Sorted(maps.Keys(w.marks)) {
		if !w.marks[name].durable && rapid.Bool().Draw(rt, "mark lost") {
			delete(w.marks, name)
		}
	}
	w.redeliver()
}

// redeliver begins anew behind the committed offsets.
func (w *viewWorld) redeliver() {
	for _, l := range w.lanes {
		l.next = int(l.committed)
		clear(l.finished[l.next:])
	}
}

// zombie flushes what a frozen instance held; it can commit nothing.
func (w *viewWorld) zombie(*rapid.T) {
	if len(w.zombies) == 0 {
		return
	}
	items := w.zombies[0]
	w.zombies = w.zombies[1:]
	require.NoError(w.t, w.e.flush(w.items(items)...))
	w.applied(items, true)
}

func (w *viewWorld) objectCard(rt *rapid.T) {
	name := fmt.Sprint("o", rapid.IntRange(0, 2).Draw(rt, "object"))
	project := rapid.SampledFrom([]string{"p", "q", "nowhere"}).Draw(rt, "project")
	status := rapid.SampledFrom([]string{"Published", "Published", "Hidden", "Delisted"}).Draw(rt, "status")
	w.e.object(name, project, status)
	w.objects[name] = [2]string{project, status}
}

func (w *viewWorld) projectCard(rt *rapid.T) {
	name := rapid.SampledFrom([]string{"p", "q"}).Draw(rt, "project")
	w.projects[name] = rapid.SampledFrom([]string{"Published", "Published", "Delisted"}).Draw(rt, "status")
	w.e.project(name, w.projects[name])
}

func (w *viewWorld) pass(d time.Duration) {
	w.now += d
	w.e.shift(d)
}

func (w *viewWorld) retry(*rapid.T) {
	var g errgroup.Group
	for range 2 {
		g.Go(func() error { _, _, err := w.e.worker.Retry(w.e.tb.Context()); return err })
	}
	require.NoError(w.t, g.Wait())
	for _, name := range slices.Sorted(maps.Keys(w.views)) {
		v := w.views[name]
		if v.state != StatePending || v.due > w.now {
			continue
		}
		attempts := v.attempts + 1
		w.count(name)
		if v.state != StatePending {
			continue
		}
		v.attempts = attempts
		if attempts == len(modelDelays) {
			v.state = StateDead
		} else {
			v.due = w.now + modelDelays[attempts]
		}
	}
}

func (w *viewWorld) progress() (lanes []LaneProgress) {
	for _, l := range w.lanes {
		lanes = append(lanes, LaneProgress{Lane: l.Lane, Committed: l.committed, End: int64(len(l.records))})
	}
	return lanes
}

func (w *viewWorld) prune() {
	w.e.progress.lanes = w.progress()
	before := w.rows()
	_, err := w.e.newPruner(modelWindow).Prune(w.e.tb.Context())
	require.NoError(w.t, err)
	after := w.rows()
	for name := range before {
		if after[name] == nil {
			require.Contains(w.t, []string{StateCounted, StateSkippedDelisted}, w.views[name].state, "view %s was pruned", name)
			w.views[name].gone = true
		}
	}
	ledger, err := ReadLedger(w.e.tb.Context(), w.e.pool)
	require.NoError(w.t, err)
	if !ledger.Replaying {
		for _, l := range w.lanes {
			l.horizon = max(l.horizon, l.committed)
		}
	}
}

// drain delivers and flushes everything.
func (w *viewWorld) drain() {
	for _, l := range w.lanes {
		for l.next < len(l.records) {
			w.deliverTo(l, 0)
		}
	}
	w.flushInstance(0)
	w.flushInstance(1)
	for _, l := range w.lanes {
		require.EqualValues(w.t, len(l.records), l.committed)
	}
	require.NoError(w.t, pgx.BeginFunc(w.e.tb.Context(), w.e.pool, func(tx pgx.Tx) error { return FinishReplay(w.e.tb.Context(), tx) }))
}

// consumeAgain sets the group's offsets of a lane back by hand.
func (w *viewWorld) consumeAgain(rt *rapid.T) {
	w.drain()
	rewind(rapid.SampledFrom(w.lanes).Draw(rt, "lane"))
}

func rewind(l *modelLane) {
	l.next, l.committed = 0, 0
	clear(l.finished)
}

// recreate replaces the source topic by an empty one of the same name. What was not finished is gone with it.
func (w *viewWorld) recreate(*rapid.T) {
	w.buffers = [2][]modelItem{}
	w.redeliver()
	w.incarnation++
	for i, l := range w.lanes {
		if l.Loop {
			continue
		}
		for i, view := range l.records {
			if !l.finished[i] {
				w.lost[view] = true
			}
		}
		w.lanes[i] = &modelLane{Lane: Lane{Incarnation: w.incarnation, Partition: l.Partition, Topic: "views"}}
	}
}

// closed makes all instances leave; what they held never comes back.
func (w *viewWorld) closed() Projection {
	p, err := RaiseEpoch(w.e.tb.Context(), w.e.pool, Popularity, "model")
	require.NoError(w.t, err)
	for _, items := range append(w.zombies, w.buffers[:]...) {
		if len(items) > 0 {
			require.ErrorIs(w.t, w.e.flush(w.items(items)...), batch.ErrFatal)
		}
	}
	w.zombies, w.buffers = nil, [2][]modelItem{}
	w.redeliver()
	return p
}

func (w *viewWorld) rebuildFromMarks(*rapid.T) {
	p := w.closed()
	var committed []LaneOffset
	for _, l := range w.lanes {
		committed = append(committed, LaneOffset{l.Lane, l.committed})
		l.horizon = l.committed
	}
	var marks []ViewMark
	counts := map[string]int64{}
	for name, m := range w.marks {
		m.durable = true // it was read from the topic
		marks = append(marks, ViewMark{ViewID: named(name), Mark: codecs.Mark{Origin: m.origin, ObjectID: named(objectOfView(name))}})
		finished := true
		for _, l := range w.lanes {
			if l.key() == laneOf(m.origin) {
				finished = m.origin.Offset < l.committed
			}
		}
		v := w.views[name]
		switch {
		case v != nil && (v.state == StatePending || v.state == StateDead || v.state == StateSkippedDelisted && !v.gone):
		case finished:
			counts[objectOfView(name)]++
			w.views[name] = &modelView{state: StateCounted, own: m.origin, gone: true}
		default:
			delete(w.views, name)
		}
	}
	for name, v := range w.views {
		if _, has := w.marks[name]; !has && v.state == StateCounted {
			delete(w.views, name)
		}
	}
	require.NoError(w.t, pgx.BeginFunc(w.e.tb.Context(), w.e.pool, func(tx pgx.Tx) error {
		if _, err := ResetPopularityFromMarks(w.e.tb.Context(), tx, committed, seq(marks, nil)); err != nil {
			return err
		}
		return Reopen(w.e.tb.Context(), tx, Popularity, p.Epoch)
	}))
	sums := map[string]int64{}
	for object, card := range w.objects {
		if card[1] != "Delisted" {
			w.want[object] = counts[object]
		}
		sums[card[0]] += w.want[object]
	}
	for project, status := range w.projects {
		if status != "Delisted" {
			w.want[project] = sums[project]
		}
	}
	w.restart()
}

func (w *viewWorld) rebuildFromTopic(*rapid.T) {
	p := w.closed()
	var starts []LaneOffset
	for _, l := range w.lanes {
		starts = append(starts, LaneOffset{l.Lane, 0})
		l.horizon = 0
		rewind(l)
	}
	require.NoError(w.t, pgx.BeginFunc(w.e.tb.Context(), w.e.pool, func(tx pgx.Tx) error {
		if _, err := ResetPopularityFromTopic(w.e.tb.Context(), tx, starts); err != nil {
			return err
		}
		return Reopen(w.e.tb.Context(), tx, Popularity, p.Epoch)
	}))
	known := w.known()
	for name := range w.marks {
		if !known[name] { // its record went with the topic, its count goes with the counters, and its mark stays
			w.lost[name] = true
		}
	}
	for name, v := range w.views {
		if v.state != StatePending && v.state != StateDead {
			delete(w.views, name)
		}
	}
	for object, card := range w.objects {
		if card[1] != "Delisted" {
			w.want[object] = 0
		}
	}
	for project, status := range w.projects {
		if status != "Delisted" {
			w.want[project] = 0
		}
	}
	w.restart()
}

type modelRow struct {
	state    string
	own      codecs.Origin
	attempts int
}

// rows are the ledger's, by view name.
func (w *viewWorld) rows() map[string]*modelRow {
	names := map[uuid.UUID]string{}
	for o := range 3 {
		for v := range 4 {
			name := fmt.Sprintf("v%d%d", o, v)
			names[named(name)] = name
		}
	}
	rows, err := w.e.pool.Query(w.e.tb.Context(), `SELECT v.view_id, v.state::text, h.incarnation, h.is_loop, h.partition, v.record_offset, coalesce(l.attempts, 0),
		(v.state = 'pending') = (l.next_try IS NOT NULL) AND (v.state IN ('pending', 'dead')) = (l.view_id IS NOT NULL)
		FROM vitrina.views v JOIN vitrina.horizons h USING (lane) LEFT JOIN vitrina.late_views l USING (view_id)`)
	require.NoError(w.t, err)
	got := map[string]*modelRow{}
	var view [16]byte
	var r modelRow
	var agree bool
	_, err = pgx.ForEachRow(rows, []any{&view, &r.state, &r.own.Incarnation, &r.own.Loop, &r.own.Partition, &r.own.Offset, &r.attempts, &agree}, func() error {
		require.True(w.t, agree, "vitrina.views and vitrina.late_views disagree about view %s", names[view])
		row := r
		got[names[view]] = &row
		return nil
	})
	require.NoError(w.t, err)
	return got
}

// check compares the database with the model.
func (w *viewWorld) check() {
	rows := w.rows()
	for name, row := range rows {
		v := w.views[name]
		require.NotNil(w.t, v, "view %s has a row", name)
		require.False(w.t, v.gone, "view %s came back after it was pruned", name)
		require.Equal(w.t, v.state, row.state, "view %s", name)
		require.Equal(w.t, v.own, row.own, "view %s", name)
		if v.state == StatePending {
			require.Equal(w.t, v.attempts, row.attempts, "view %s", name)
		}
	}
	for name, v := range w.views {
		if !v.gone {
			require.NotNil(w.t, rows[name], "view %s has no row", name)
		}
	}
	counters := map[[16]byte]int64{}
	got, err := w.e.pool.Query(w.e.tb.Context(), `SELECT id, popularity_views FROM catalog.property_object_cards UNION ALL SELECT id, popularity_views FROM catalog.project_cards`)
	require.NoError(w.t, err)
	var card [16]byte
	var n int64
	_, err = pgx.ForEachRow(got, []any{&card, &n}, func() error { counters[card] = n; return nil })
	require.NoError(w.t, err)
	for _, name := range append(slices.Collect(maps.Keys(w.objects)), slices.Collect(maps.Keys(w.projects))...) {
		require.Equal(w.t, w.want[name], counters[named(name)], "counter of %s", name)
	}
}
