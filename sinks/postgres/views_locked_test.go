package postgres

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
)

// newLockEnv is a ledger whose waits for locks are short, with a project of two cards and a card without project.
func newLockEnv(t *testing.T) *viewsEnv {
	pool := migrated(t)
	e := newViewsEnvOn(t, newPool(t, pool.Config().ConnString(), PoolOptions{LockTimeout: 100 * time.Millisecond}))
	e.project("p", "Published")
	e.project("q", "Published")
	e.object("hot", "p", "Published")
	e.object("beside", "p", "Published")
	e.object("other", "q", "Published")
	e.object("frozen", "p", "Delisted")
	return e
}

func (e *viewsEnv) hold(t *testing.T, table, name string) (release func()) {
	tx, err := e.pool.Begin(t.Context())
	require.NoError(t, err)
	exec(t, tx, `SET LOCAL idle_in_transaction_session_timeout = 0`)
	_, err = tx.Exec(t.Context(), `UPDATE catalog.`+table+` SET row_version = row_version + 1 WHERE id = $1`, named(name))
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // of a test that failed
	return func() { require.NoError(t, tx.Commit(t.Context())) }
}

func (e *viewsEnv) pending(t *testing.T) (pending, tries int64) {
	require.NoError(t, e.pool.QueryRow(t.Context(), `SELECT count(*), coalesce(sum(attempts), 0) FROM vitrina.late_views WHERE next_try IS NOT NULL`).Scan(&pending, &tries))
	return pending, tries
}

// A transaction that kept one popular card locked stopped the counting of all views.
func TestALockedCardDelaysItsOwnViewsOnly(t *testing.T) {
	for name, held := range map[string]struct {
		table, card string
		waiting     []string // objects whose views wait
	}{
		"an object's":  {"property_object_cards", "hot", []string{"hot"}},
		"a project's":  {"project_cards", "p", []string{"beside", "hot"}},
		"a Delisted's": {"property_object_cards", "frozen", nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := newLockEnv(t)
			release := e.hold(t, held.table, held.card)
			objects := []string{"hot", "beside", "other", "frozen"}
			var items []ViewItem
			for round := range 2 { // the second one knows of the rival
				var batch []ViewItem
				for i, object := range objects {
					batch = append(batch, viewsOf(object, 100*i+10*round, 3)...)
				}
				batch = append(batch, batch[0]) // a record that comes twice
				require.NoError(t, e.flush(batch...))
				items = append(items, batch...)
			}
			require.Equal(t, held.waiting != nil, e.sink.rival.Load())
			for _, object := range objects[:3] {
				want := 6
				if slices.Contains(held.waiting, object) {
					want = 0
				}
				require.EqualValues(t, want, e.objectViews(t, object), object)
			}
			pending, _ := e.pending(t)
			require.EqualValues(t, 6*len(held.waiting), pending)
			require.Zero(t, e.counts.get("not found"), "their cards are there")

			// The worker goes around them too, however often, and uses up no try of theirs.
			require.NoError(t, e.flush(viewsOf("late", 900, 2)...))
			e.object("late", "q", "Published")
			for range 2 * len(viewDelays) {
				e.shift(viewDelays[0])
				_, _, err := e.worker.Retry(t.Context())
				require.NoError(t, err)
			}
			require.EqualValues(t, 2, e.objectViews(t, "late"))
			pending, tries := e.pending(t)
			require.EqualValues(t, 6*len(held.waiting), pending)
			require.Zero(t, tries)

			release()
			e.shift(viewDelays[0])
			_, _, err := e.worker.Retry(t.Context())
			require.NoError(t, err)
			for i := range items {
				items[i].Kind = codecs.MarkOwn
			}
			require.NoError(t, e.flush(items...), "the batch comes again")
			for _, object := range objects[:3] {
				require.EqualValues(t, 6, e.objectViews(t, object), object)
			}
			require.EqualValues(t, 12, e.projectViews(t, "p"))
			require.EqualValues(t, 8, e.projectViews(t, "q"))
			require.Zero(t, e.objectViews(t, "frozen"))
			require.False(t, e.sink.rival.Load(), "batches wait for locks again")
			late, err := ReadLateViews(t.Context(), e.pool)
			require.NoError(t, err)
			require.Equal(t, LateViews{}, late)
			require.Empty(t, e.letters.keys())
		})
	}
}

// A trigger that raised an exception for one card stopped the partitions of all others, without a dead letter, until it was dropped.
func TestACardThatATriggerGuardsDelaysItsOwnViewsOnly(t *testing.T) {
	for table, waiting := range map[string][]string{"property_object_cards": {"hot"}, "project_cards": {"beside", "hot"}} {
		t.Run(table, func(t *testing.T) {
			e := newLockEnv(t)
			card := "hot"
			if table == "project_cards" {
				card = "p"
			}
			exec(t, e.pool, `CREATE FUNCTION catalog.guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the card is frozen by finance'; END $$`)
			exec(t, e.pool, `CREATE TRIGGER guard BEFORE UPDATE ON catalog.`+table+` FOR EACH ROW WHEN (old.id = '`+named(card).String()+`') EXECUTE FUNCTION catalog.guard()`)
			objects := []string{"other", "hot", "beside"}
			var items []ViewItem
			for i, object := range objects {
				items = append(items, viewsOf(object, 100*i, refusesAll+1)...)
			}
			items = append(items, items[refusesAll+2]) // a record that comes twice
			require.NoError(t, e.flush(items...))
			require.NoError(t, e.flush(items...), "a batch whose acknowledgement was lost")
			e.shift(viewDelays[0])
			_, _, err := e.worker.Retry(t.Context())
			require.NoError(t, err, "more views than it takes to call the database at fault")
			for _, object := range objects {
				want := refusesAll + 1
				if slices.Contains(waiting, object) {
					want = 0
				}
				require.EqualValues(t, want, e.objectViews(t, object), object)
			}
			pending, tries := e.pending(t)
			require.EqualValues(t, (refusesAll+1)*len(waiting), pending)
			require.Zero(t, tries)

			exec(t, e.pool, `DROP TRIGGER guard ON catalog.`+table)
			e.shift(viewDelays[0])
			_, _, err = e.worker.Retry(t.Context())
			require.NoError(t, err)
			require.NoError(t, e.flush(items...))
			for _, object := range objects {
				require.EqualValues(t, refusesAll+1, e.objectViews(t, object), object)
			}
			require.EqualValues(t, 2*(refusesAll+1), e.projectViews(t, "p"))
			require.EqualValues(t, refusesAll+1, e.projectViews(t, "q"))
			late, err := ReadLateViews(t.Context(), e.pool)
			require.NoError(t, err)
			require.Equal(t, LateViews{}, late)
			require.Empty(t, e.letters.keys())
		})
	}
}

// One that raises for every card is an outage, as a maintenance window is: no view is moved into the database for it.
func TestATriggerThatGuardsEveryCardIsAnOutage(t *testing.T) {
	e := newLockEnv(t)
	exec(t, e.pool, `CREATE FUNCTION catalog.guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the catalog is frozen'; END $$`)
	exec(t, e.pool, `CREATE TRIGGER guard BEFORE UPDATE ON catalog.property_object_cards FOR EACH ROW EXECUTE FUNCTION catalog.guard()`)
	items := append(viewsOf("hot", 0, refusesAll), viewsOf("other", 100, 3)...)
	require.ErrorContains(t, e.flush(items...), "the catalog is frozen")
	late, err := ReadLateViews(t.Context(), e.pool)
	require.NoError(t, err)
	require.Equal(t, LateViews{}, late)
	exec(t, e.pool, `DROP TRIGGER guard ON catalog.property_object_cards`)
	require.NoError(t, e.flush(items...))
	require.EqualValues(t, refusesAll, e.objectViews(t, "hot"))
	require.EqualValues(t, 3, e.objectViews(t, "other"))
}

// A dead view that is put back while its card is locked is revived, and waits like any other.
func TestADeadViewPutBackForALockedCardCountsOnce(t *testing.T) {
	e := newLockEnv(t)
	require.NoError(t, e.flush(view("1", "late", at(0, 0))))
	e.retryAll(t, "1")
	require.Equal(t, StateDead, e.state(t, "1"))
	e.object("late", "p", "Published")
	release := e.hold(t, "property_object_cards", "late")
	again := marked(view("1", "late", at(0, 9)), time.Now())
	require.NoError(t, e.flush(again))
	require.Equal(t, StatePending, e.state(t, "1"))
	require.NoError(t, e.flush(again), "the same record again")
	release()
	e.shift(viewDelays[0])
	_, _, err := e.worker.Retry(t.Context())
	require.NoError(t, err)
	require.Equal(t, StateCounted, e.state(t, "1"))
	require.EqualValues(t, 1, e.objectViews(t, "late"))
	require.EqualValues(t, 1, e.projectViews(t, "p"))
}

// Sinks lock cards for moments, and a popular card nearly always: that must not send its views round through the pending ones.
func TestACardThatASinkIsCountingIsNotTakenForLocked(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	e.object("hot", "p", "Published")
	sibling, err := e.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = sibling.Rollback(context.Background()) }() // of a test that failed
	exec(t, sibling, `SELECT vitrina.enter_ledger(false)`)
	exec(t, sibling, `SELECT * FROM vitrina.add_popularity($1, $2)`, [][16]byte{named("hot")}, []int64{1})
	found := make(chan error, 1)
	var locked uuidSet
	go func() {
		var err error
		locked, err = e.sink.lockedObjects(t.Context(), viewsOf("hot", 0, 1))
		found <- err
	}()
	waitBlocked(t, e.pool, 1)
	require.NoError(t, sibling.Commit(t.Context()))
	require.NoError(t, <-found)
	require.Empty(t, locked)
}
