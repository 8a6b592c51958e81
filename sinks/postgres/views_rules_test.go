package postgres

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/sinks/batch"
)

const week = 7 * 24 * time.Hour

// viewRules are the rules of E4 and of section 12, rules 1 to 3. Each has a scenario that holds with the rule and that fails when
// the rule is taken out of the schema's functions: replace old by without in function.
var viewRules = []struct {
	name                   string
	function, old, without string
	scenario               func(e *viewsEnv, t require.TestingT)
}{
	{
		name:     "below the horizon a record is a duplicate, whatever its mark",
		function: "apply_views", old: "i.record_offset >= v_horizons[i.lane_of] AND ", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.countAndPrune(t)
			require.NoError(t, e.flush(view("1", "o", at(0, 0))))
			require.EqualValues(t, 1, e.objectViews(t, "o"))
		},
	},
	{
		name:     "an old mark by another record inserts nothing",
		function: "apply_views", old: " AND i.marked_at >= v_marks_before", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.countAndPrune(t)
			require.NoError(t, e.flush(marked(view("1", "o", at(0, 5)), time.Now().Add(-week))))
			require.EqualValues(t, 1, e.objectViews(t, "o"))
		},
	},
	{
		name:     "a mark of an earlier incarnation is finished and foreign",
		function: "apply_views", old: " AND i.marked_at >= v_marks_before", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.countAndPrune(t)
			again := view("1", "o", at(0, 0))
			again.Origin.Incarnation, again.Kind = 2, codecs.MarkEarlier
			require.NoError(t, e.flush(again))
			require.EqualValues(t, 1, e.objectViews(t, "o"))
		},
	},
	{
		name:     "a batch is looked through when one of its lanes has an offset below the horizon",
		function: "apply_views", old: "NOT v_above OR ", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.countAndPrune(t)
			// In the middle of the batch, and neither the least nor the greatest offset of it.
			require.NoError(t, e.flush(view("new a", "o", at(1, 0)), view("new b", "o", at(0, 3)), view("1", "o", at(0, 2)), view("new c", "o", at(0, 4))))
			require.EqualValues(t, 4, e.objectViews(t, "o"))
		},
	},
	{
		name:     "a batch is looked through when one of its marks may be too old",
		function: "apply_views", old: " OR p_marked_at IS NOT NULL", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.countAndPrune(t)
			require.NoError(t, e.flush(marked(view("new", "o", at(0, 6)), time.Now().Add(week)), marked(view("1", "o", at(0, 5)), time.Now().Add(-week))))
			require.EqualValues(t, 2, e.objectViews(t, "o"))
		},
	},
	{
		name:     "views that were refused are not among those counted",
		function: "apply_views", old: "IF o_refused IS NOT NULL THEN", without: "IF false THEN",
		scenario: func(e *viewsEnv, t require.TestingT) {
			require.NoError(t, e.flush(view("1", "o", at(0, 0))))
			require.NoError(t, e.flush(view("1", "o", at(0, 0)), view("2", "o", at(0, 1))))
			require.EqualValues(t, 2, e.objectViews(t, "o"))
			require.EqualValues(t, 2, e.projectViews(t, "p"))
		},
	},
	{
		name:     "a wrong guess that a card is Delisted is put right",
		function: "apply_views", old: "SELECT unnest(p_delisted) EXCEPT SELECT unnest(o_delisted)", without: "SELECT NULL::uuid",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.object("o", "p", "Delisted")
			require.NoError(t, e.flush(view("1", "o", at(0, 0))))
			e.object("o", "p", "Published")
			require.NoError(t, e.flush(view("2", "o", at(0, 1))))
			require.Equal(t, StateSkippedDelisted, e.state(t, "1"))
			require.Equal(t, StateCounted, e.state(t, "2"))
			require.EqualValues(t, 1, e.objectViews(t, "o"))
		},
	},
	{
		name:     "a card that is Delisted unforeseen is not counted, and its views' rows say so",
		function: "apply_views", old: "SELECT unnest(o_delisted) EXCEPT SELECT unnest(p_delisted)", without: "SELECT NULL::uuid",
		scenario: func(e *viewsEnv, t require.TestingT) {
			require.NoError(t, e.flush(view("1", "o", at(0, 0))))
			e.object("o", "p", "Delisted")
			require.NoError(t, e.flush(view("2", "o", at(0, 1))))
			require.Equal(t, StateCounted, e.state(t, "1"))
			require.Equal(t, StateSkippedDelisted, e.state(t, "2"))
			require.EqualValues(t, 1, e.objectViews(t, "o"))
		},
	},
	{
		name:     "a mark within the clocks' margin of what was pruned proves nothing",
		function: "prepare_pruning", old: "v_ledger.safe_marks + p_margin", without: "v_ledger.safe_marks",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.countAndPrune(t)
			// Made by an instance whose clock is two minutes ahead.
			require.NoError(t, e.flush(marked(view("1", "o", at(0, 5)), time.Now().Add(2*time.Minute))))
			require.EqualValues(t, 1, e.objectViews(t, "o"))
		},
	},
	{
		name:     "a dead view is not revived by its own record",
		function: "apply_views", old: "AND (v.lane, v.record_offset) <> (p_lanes[i.lane_of], i.record_offset)", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.die(t, "1", "late")
			require.NoError(t, e.flush(view("1", "late", at(0, 5))))
			require.Equal(t, StateDead, e.state(t, "1"))
		},
	},
	{
		name:     "a dead view is revived by another record, whatever its mark",
		function: "apply_views", old: "IF o_dead IS NOT NULL AND p_records IS NOT NULL THEN", without: "IF false THEN",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.countAndPrune(t)
			e.die(t, "2", "late")
			e.object("late", "p", "Published")
			require.NoError(t, e.flush(marked(view("2", "late", at(0, 8)), time.Now().Add(-week)), marked(view("2", "late", at(0, 9)), time.Now().Add(-week))))
			require.Equal(t, StateCounted, e.state(t, "2"))
			require.EqualValues(t, 1, e.objectViews(t, "late"))
			require.EqualValues(t, 2, e.projectViews(t, "p"))
		},
	},
	{
		name:     "below the horizon no record revives a dead view",
		function: "apply_views", old: "AND v.state = 'dead' AND i.record_offset >= v_horizons[i.lane_of]", without: "AND v.state = 'dead'",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.countAndPrune(t)
			e.die(t, "2", "late")
			zombie := view("2", "late", at(0, 0))
			require.NoError(t, e.flush(zombie))
			require.Equal(t, StateDead, e.state(t, "2"))
		},
	},
	{
		name:     "the reviving record becomes the row's own",
		function: "apply_views", old: "SET at = v_now, record_offset = c.record_offset, object_id = c.object_id, state = 'counted', lane = c.lane",
		without: "SET at = v_now, state = 'counted'",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.die(t, "1", "late")
			require.NoError(t, e.flush(view("1", "late", at(1, 7))))
			require.Equal(t, StatePending, e.state(t, "1"))
			e.retryAll(t, "1")
			require.NoError(t, e.flush(view("1", "late", at(1, 7))))
			require.Equal(t, StateDead, e.state(t, "1"), "its own record again")
		},
	},
	{
		name:     "the letter of a view that dies again is the record that put it back",
		function: "apply_views", old: ", record = p_records[c.ord]", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.die(t, "1", "late")
			again := view("1", "late", at(1, 7))
			require.NoError(t, e.flush(again))
			e.retryAll(t, "1")
			_, err := e.worker.WriteLetters(e.tb.Context())
			require.NoError(t, err)
			require.Len(t, e.letters.written, 1)
			require.Equal(t, again.Record.ID, e.letters.written[0].Record.ID)
		},
	},
	{
		name:     "a pending view that comes by another record waits on",
		function: "apply_views", old: "AND l.next_try IS NULL", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			require.NoError(t, e.flush(view("1", "late", at(0, 0))))
			require.NoError(t, e.flush(view("1", "late", at(1, 0))))
			require.Equal(t, 1, e.counts.get("not found"))
			require.Equal(t, 1, e.counts.get("duplicates"))
			// The mutant takes it for a dead one; only the row's state keeps it from harm.
			var dead [][16]byte
			require.NoError(t, e.pool.QueryRow(e.tb.Context(), `SELECT o_dead FROM vitrina.apply_views($1, $2, '{false}', '{5}', '{1}', '{5}', $3, $4, NULL, $4, '{1}', NULL, false, NULL, NULL, NULL, '1s')`,
				e.sink.cfg.Epoch, []int32{e.sink.lanes.of(at(0, 0))}, [][16]byte{named("1")}, [][16]byte{named("late")}).Scan(&dead))
			require.Empty(t, dead)
		},
	},
	{
		name:     "the note that a letter was sent matches the generation",
		function: "note_letters", old: "AND i.generation = l.generation", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.die(t, "1", "late")
			e.letters.before = func() { // revived and dead again while the letter is on its way
				e.letters.before = nil
				require.NoError(t, e.flush(view("1", "late", at(1, 7))))
				e.retryAll(t, "1")
			}
			_, err := e.worker.WriteLetters(e.tb.Context())
			require.NoError(t, err)
			_, err = e.worker.WriteLetters(e.tb.Context())
			require.NoError(t, err)
			require.Len(t, e.letters.keys(), 2, "two deaths, two letters")
			late, err := ReadLateViews(e.tb.Context(), e.pool)
			require.NoError(t, err)
			require.Zero(t, late.LettersDue)
		},
	},
	{
		name:     "a revived view owes no letter",
		function: "apply_views", old: "letter_due = NULL, ", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.die(t, "1", "late")
			require.NoError(t, e.flush(view("1", "late", at(1, 7))))
			_, err := e.worker.WriteLetters(e.tb.Context())
			require.NoError(t, err)
			require.Empty(t, e.letters.keys())
		},
	},
	{
		name:     "pruning waits for views that are being judged, and they for it",
		function: "enter_ledger", old: "IF p_alone THEN", without: "IF true THEN RETURN; END IF; IF p_alone THEN",
		scenario: pruningRace,
	},
	{
		name:     "nothing is pruned that a record processed before its mark was durable still needs",
		function: "prepare_pruning",
		old:      "IF v_ledger.previous_at IS NOT NULL THEN\n            v_ledger.safe_before := v_ledger.previous_at;",
		without:  "IF true THEN\n            v_ledger.safe_before := v_ledger.checkpoint_at;",
		scenario: func(e *viewsEnv, t require.TestingT) {
			pruner := e.newPruner(time.Hour)
			require.NoError(t, e.flush(view("1", "o", at(0, 0)))) // counted, but its mark is lost with the instance
			e.progress.set([2]int64{0, 1}, [2]int64{0, 0})
			e.prune(t, pruner)
			e.shift(time.Minute)
			// Another record of the view is appended and processed while there is no mark; it waits in a frozen instance.
			zombie := view("1", "o", at(1, 0))
			// The first one comes again, and is finished.
			require.NoError(t, e.flush(marked(view("1", "o", at(0, 0)), time.Now())))
			e.progress.set([2]int64{1, 1}, [2]int64{0, 1})
			e.shift(week)
			e.prune(t, pruner)
			e.shift(time.Minute)
			e.prune(t, pruner)
			require.NoError(t, e.flush(zombie))
			require.EqualValues(t, 1, e.objectViews(t, "o"))
			require.Equal(t, StateCounted, e.state(t, "1"))
			// Once that one is finished too, the row goes.
			e.progress.set([2]int64{1, 1}, [2]int64{1, 1})
			for range 3 {
				e.shift(time.Minute)
				e.prune(t, pruner)
			}
			require.Empty(t, e.state(t, "1"))
		},
	},
	{
		name:     "rows of a topic that was recreated stay until it is long gone",
		function: "prune_views", old: " AND v.record_offset < v_horizons[v.lane]", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			pruner := e.newPruner(week)
			require.NoError(t, e.flush(view("1", "o", at(0, 0))))
			e.progress.set([2]int64{0, 1}) // never finished
			e.prune(t, pruner)
			e.shift(week - time.Hour)
			e.prune(t, pruner)
			e.shift(2 * time.Hour)
			e.progress.lanes = []LaneProgress{{Lane: Lane{Incarnation: 2, Topic: "views"}}}
			for range 4 {
				e.shift(time.Minute)
				e.prune(t, pruner)
			}
			require.NoError(t, e.flush(view("1", "o", at(0, 0)))) // from the buffer of a frozen instance
			require.EqualValues(t, 1, e.objectViews(t, "o"))
			e.shift(week)
			e.prune(t, pruner)
			e.prune(t, pruner)
			require.Empty(t, e.state(t, "1"))
			require.NoError(t, e.flush(view("1", "o", at(0, 0))))
			require.EqualValues(t, 1, e.objectViews(t, "o"))
		},
	},
	{
		name:     "what is younger than the window is kept",
		function: "prepare_pruning", old: "least(v_ledger.safe_before, v_now - p_window)", without: "v_ledger.safe_before",
		scenario: func(e *viewsEnv, t require.TestingT) {
			require.NoError(t, e.flush(view("1", "o", at(0, 0))))
			e.progress.set([2]int64{1, 1})
			pruner := e.newPruner(week)
			for range 5 {
				e.shift(time.Hour)
				require.Zero(t, e.prune(t, pruner).Rows)
			}
			require.Equal(t, StateCounted, e.state(t, "1"))
		},
	},
	{
		name:     "pending and dead views are never pruned",
		function: "prune_views", old: "v.state IN ('counted', 'skipped_delisted') AND ", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.die(t, "dead", "late")
			require.NoError(t, e.flush(view("pending", "late", at(0, 1))))
			e.countAndPrune(t)
			require.Equal(t, StateDead, e.state(t, "dead"))
			require.Equal(t, StatePending, e.state(t, "pending"))
		},
	},
	{
		name:     "a card's status is judged in the version that is written",
		function: "add_popularity",
		old:      "FROM unnest(v_ids, v_counts) AS u (id, n)\n        WHERE c.id = u.id AND c.status <> 'Delisted'\n        RETURNING c.id, c.project_id, u.n",
		without: "FROM unnest(v_ids, v_counts) AS u (id, n)\n        WHERE c.id = u.id AND c.id IN (SELECT x.id FROM catalog.property_object_cards x WHERE x.status <> 'Delisted')\n" +
			"        RETURNING c.id, c.project_id, u.n",
		scenario: delistedMeanwhile,
	},
	{
		name:     "a view is dead only after its last try",
		function: "retry_views", old: "i.attempts + 1 >= pg_catalog.cardinality(p_delays)", without: "i.attempts + 2 >= pg_catalog.cardinality(p_delays)",
		scenario: func(e *viewsEnv, t require.TestingT) {
			require.NoError(t, e.flush(view("1", "late", at(0, 0))))
			for _, delay := range viewDelays {
				require.Equal(t, StatePending, e.state(t, "1"))
				e.shift(delay - 5*time.Second)
				n, _, err := e.worker.Retry(e.tb.Context())
				require.NoError(t, err)
				require.Zero(t, n, "not due yet")
				e.shift(5 * time.Second)
				n, _, err = e.worker.Retry(e.tb.Context())
				require.NoError(t, err)
				require.Equal(t, 1, n)
			}
			require.Equal(t, StateDead, e.state(t, "1"))
			require.Equal(t, 1+len(viewDelays), e.counts.get("not found"))
			require.Equal(t, len(viewDelays), e.counts.get("retries"))
		},
	},
	{
		name:     "a dead view that two records revive at once counts once",
		function: "apply_views", old: "AND v.state = 'dead' AND i.record_offset", without: "AND i.record_offset",
		scenario: revivedTwice,
	},
	{
		name:     "who revives a dead view waits for another who does",
		function: "apply_views", old: "PERFORM v.view_id FROM vitrina.views AS v WHERE v.view_id = ANY (o_dead) ORDER BY v.view_id FOR UPDATE;", without: "",
		scenario: revivedTwice,
	},
	{
		name:     "a view is not dead by a record that has been finished meanwhile",
		function: "reject_view", old: "IF p_offset < (SELECT h.horizon_offset FROM vitrina.horizons AS h WHERE h.lane = p_lane) THEN", without: "IF false THEN",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.countAndPrune(t)
			require.NoError(t, e.bury(view("1", "o", at(0, 0))))
			require.Empty(t, e.state(t, "1"))
		},
	},
	{
		name:     "a view is not dead by another record once its mark is old",
		function: "reject_view",
		old:      "WHERE NOT pg_catalog.isfinite(l.marks_before) OR p_marked_at >= pg_catalog.ceil(pg_catalog.date_part('epoch', l.marks_before))", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.countAndPrune(t)
			require.NoError(t, e.bury(marked(view("1", "o", at(0, 5)), time.Now().Add(-week))))
			require.Empty(t, e.state(t, "1"))
			require.NoError(t, e.bury(marked(view("2", "o", at(0, 6)), time.Now().Add(time.Hour))))
			require.Equal(t, StateDead, e.state(t, "2"))
		},
	},
	{
		name:     "a second refusal owes a second letter",
		function: "reject_view", old: "SET since = v_now, letter_due = v_now,", without: "SET since = v_now,",
		scenario: func(e *viewsEnv, t require.TestingT) {
			for offset := range int64(2) {
				require.NoError(t, e.bury(view("1", "o", at(0, 5+offset))))
				_, err := e.worker.WriteLetters(e.tb.Context())
				require.NoError(t, err)
			}
			require.Equal(t, []string{"1", "1"}, e.letters.keys())
		},
	},
	{
		name:     "a refusal that comes again by its own record owes no second letter",
		function: "reject_view", old: " AND (v.lane, v.record_offset) <> (p_lane, p_offset)", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			for range 2 {
				require.NoError(t, e.bury(view("1", "o", at(0, 5))))
				_, err := e.worker.WriteLetters(e.tb.Context())
				require.NoError(t, err)
			}
			require.Equal(t, []string{"1"}, e.letters.keys())
		},
	},
	{
		name:     "a view is not made dead under an old epoch",
		function: "reject_view", old: "PERFORM vitrina.require_epoch('popularity', p_epoch);", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			require.NoError(t, e.flush(view("1", "o", at(0, 0))))
			_, err := RaiseEpoch(e.tb.Context(), e.pool, Popularity, "test")
			require.NoError(t, err)
			require.ErrorIs(t, e.bury(view("2", "o", at(0, 1))), batch.ErrFatal)
			require.Empty(t, e.state(t, "2"))
		},
	},
	{
		name:     "a view that is made dead waits for pruning",
		function: "reject_view", old: "PERFORM vitrina.enter_ledger(false);", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			ctx, cancel := context.WithTimeout(e.tb.Context(), 30*time.Second)
			defer cancel()
			require.NoError(t, e.flush(view("1", "o", at(0, 0))))
			pruner, err := e.pool.Begin(ctx)
			require.NoError(t, err)
			_, err = pruner.Exec(ctx, `SELECT vitrina.enter_ledger(true)`)
			require.NoError(t, err)
			buried := make(chan error, 1)
			go func() { buried <- e.bury(view("2", "o", at(0, 1))) }()
			select {
			case err = <-buried: // the mutant does not wait
				buried <- err
			case <-e.locksWaiting(ctx, 1):
			}
			_, err = pruner.Exec(ctx, `UPDATE vitrina.horizons SET horizon_offset = 2`)
			require.NoError(t, err)
			require.NoError(t, pruner.Commit(ctx))
			require.NoError(t, <-buried)
			require.Empty(t, e.state(t, "2"), "its record has been finished")
		},
	},
	{
		name:     "no late view is made dead under an old epoch",
		function: "bury_view", old: "PERFORM vitrina.require_epoch('popularity', p_epoch);", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			require.NoError(t, e.flush(view("1", "late", at(0, 0))))
			_, err := RaiseEpoch(e.tb.Context(), e.pool, Popularity, "test")
			require.NoError(t, err)
			require.ErrorIs(t, e.worker.bury(e.tb.Context(), named("1"), errors.New("refused")), batch.ErrFatal)
			require.Equal(t, StatePending, e.state(t, "1"))
		},
	},
	{
		name:     "no letter is claimed under an old epoch",
		function: "claim_letters", old: "PERFORM vitrina.require_epoch('popularity', p_epoch);", without: "",
		scenario: func(e *viewsEnv, t require.TestingT) {
			e.die(t, "1", "late")
			_, err := RaiseEpoch(e.tb.Context(), e.pool, Popularity, "test")
			require.NoError(t, err)
			_, err = e.worker.WriteLetters(e.tb.Context())
			require.ErrorIs(t, err, batch.ErrFatal)
			require.Empty(t, e.letters.keys())
		},
	},
}

func TestEachRuleOfTheLedgerIsNeeded(t *testing.T) {
	for _, rule := range viewRules {
		t.Run(rule.name, func(t *testing.T) {
			e := newViewsEnv(t)
			e.project("p", "Published")
			e.object("o", "p", "Published")
			require.NoError(t, outcome(func(r require.TestingT) { rule.scenario(e, r) }))

			e = newViewsEnv(t)
			e.project("p", "Published")
			e.object("o", "p", "Published")
			mutate(t, e.pool, rule.function, rule.old, rule.without)
			require.Error(t, outcome(func(r require.TestingT) { rule.scenario(e, r) }), "without the rule the scenario must fail")
		})
	}
}

func (e *viewsEnv) prune(t require.TestingT, p *Pruner) PruneReport {
	r, err := p.Prune(e.tb.Context())
	require.NoError(t, err)
	return r
}

// countAndPrune counts view 1 of object o by record 0 of partition 0 and lets its row be pruned.
func (e *viewsEnv) countAndPrune(t require.TestingT) {
	require.NoError(t, e.flush(view("1", "o", at(0, 0))))
	e.progress.set([2]int64{3, 3}, [2]int64{0, 0})
	e.shift(week + time.Hour)
	pruner := e.newPruner(week)
	for range 3 {
		e.prune(t, pruner)
	}
	require.Empty(t, e.state(t, "1"))
}

// die lets a view die whose object has no card; its record is 5 of partition 0.
func (e *viewsEnv) die(t require.TestingT, name, object string) {
	require.NoError(t, e.flush(view(name, object, at(0, 5))))
	e.retryAll(t, name)
	require.Equal(t, StateDead, e.state(t, name))
}

// pruningRace: a view is judged young, then its transaction waits for a rival's lock. Meanwhile its row is pruned, and the
// transaction goes on and inserts it again.
func pruningRace(e *viewsEnv, t require.TestingT) {
	ctx, cancel := context.WithTimeout(e.tb.Context(), 30*time.Second)
	defer cancel()
	first := ViewItem{}
	for i := 0; first.Record == nil; i++ { // a view that is inserted before view 1
		if candidate := view(string(rune('a'+i)), "o", at(0, 1)); candidate.ViewID.String() < named("1").String() {
			first = candidate
		}
	}
	require.NoError(t, e.flush(view("1", "o", at(0, 0))))
	e.progress.set([2]int64{1, 1}, [2]int64{0, 0})
	pruner := e.newPruner(week)
	e.prune(t, pruner)
	e.prune(t, pruner)
	e.shift(week + time.Hour)

	rival, err := e.pool.Begin(ctx)
	require.NoError(t, err)
	_, err = rival.Exec(ctx, `INSERT INTO vitrina.views (at, record_offset, view_id, object_id, state, lane) VALUES (now(), 0, $1, $1, 'counted', 1)`, first.ViewID)
	require.NoError(t, err)
	flushed, pruned := make(chan error, 1), make(chan error, 1)
	go func() {
		flushed <- e.sink.Flush(ctx, []ViewItem{marked(first, time.Now()), marked(view("1", "o", at(1, 3)), time.Now().Add(time.Minute))})
	}()
	e.waitForLocks(ctx, t, 1)
	go func() {
		_, err := pruner.Prune(ctx)
		pruned <- err
	}()
	select {
	case err = <-pruned: // the mutant does not wait
		pruned <- err
	case <-e.locksWaiting(ctx, 2):
	}
	require.NoError(t, rival.Rollback(ctx))
	require.NoError(t, <-flushed)
	require.NoError(t, <-pruned)
	require.EqualValues(t, 2, e.objectViews(t, "o"))
}

// delistedMeanwhile: the catalog delists a card in a transaction that commits while the sink waits for the row.
func delistedMeanwhile(e *viewsEnv, t require.TestingT) {
	ctx, cancel := context.WithTimeout(e.tb.Context(), 30*time.Second)
	defer cancel()
	catalog, err := e.pool.Begin(ctx)
	require.NoError(t, err)
	_, err = catalog.Exec(ctx, `UPDATE catalog.property_object_cards SET status = 'Delisted', row_version = row_version + 1 WHERE id = $1`, named("o"))
	require.NoError(t, err)
	flushed := make(chan error, 1)
	go func() { flushed <- e.sink.Flush(ctx, []ViewItem{view("1", "o", at(0, 0))}) }()
	e.waitForLocks(ctx, t, 1)
	require.NoError(t, catalog.Commit(ctx))
	require.NoError(t, <-flushed)
	require.EqualValues(t, 0, e.objectViews(t, "o"))
	require.Equal(t, StateSkippedDelisted, e.state(t, "1"))
}

// revivedTwice: two instances have both found a view dead that two records put back, before either of them has its row.
func revivedTwice(e *viewsEnv, t require.TestingT) {
	ctx, cancel := context.WithTimeout(e.tb.Context(), 30*time.Second)
	defer cancel()
	e.die(t, "1", "late")
	e.object("late", "p", "Published")
	rival, err := e.pool.Begin(ctx)
	require.NoError(t, err)
	_, err = rival.Exec(ctx, `SELECT FROM vitrina.views WHERE view_id = $1 FOR UPDATE`, named("1"))
	require.NoError(t, err)
	flushed := make(chan error, 2)
	for i := range 2 {
		go func() {
			flushed <- e.sink.Flush(ctx, []ViewItem{marked(view("1", "late", at(1, int64(7+i))), time.Now())})
		}()
		e.waitForLocks(ctx, t, i+1)
	}
	require.NoError(t, rival.Rollback(ctx))
	require.NoError(t, <-flushed)
	require.NoError(t, <-flushed)
	require.EqualValues(t, 1, e.objectViews(t, "late"))
	require.EqualValues(t, 1, e.projectViews(t, "p"))
	require.Equal(t, StateCounted, e.state(t, "1"))
}

// bury makes a view dead as Flush does when the database refuses to count it.
func (e *viewsEnv) bury(item ViewItem) error {
	return e.sink.bury(e.tb.Context(), &item, errors.New("refused"))
}

// waitForLocks returns when n sessions of the database wait for a lock.
func (e *viewsEnv) waitForLocks(ctx context.Context, t require.TestingT, n int) {
	select {
	case <-e.locksWaiting(ctx, n):
	case <-ctx.Done():
	}
	require.NoError(t, ctx.Err())
}

func (e *viewsEnv) locksWaiting(ctx context.Context, n int) <-chan struct{} {
	reached := make(chan struct{})
	go func() {
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			var waiting int
			err := e.pool.QueryRow(ctx, `SELECT count(DISTINCT l.pid) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
				WHERE NOT l.granted AND a.datname = current_database()`).Scan(&waiting)
			if err == nil && waiting >= n {
				close(reached)
				return
			}
		}
	}()
	return reached
}
