package postgres

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/sinks/batch"
)

func TestViewsAreCountedOnObjectAndProject(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	e.project("frozen", "Delisted")
	e.object("published", "p", "Published")
	e.object("hidden", "p", "Hidden")
	e.object("delisted", "p", "Delisted")
	e.object("of frozen", "frozen", "Published")
	e.object("orphan", "no such project", "Published")
	before := scalar[string](t.Context(), t, e.pool, `SELECT string_agg(c::text, ',' ORDER BY id) FROM (
		SELECT id, status, promotion_boost, popularity_score, row_version, updated_at FROM catalog.property_object_cards
		UNION ALL SELECT id, status, promotion_boost, popularity_score, row_version, updated_at FROM catalog.project_cards) c`)

	require.NoError(t, e.flush(
		view("1", "published", at(0, 0)), view("2", "published", at(1, 0)), view("3", "hidden", at(0, 1)), view("4", "delisted", at(0, 2)),
		view("5", "of frozen", at(0, 3)), view("6", "orphan", at(0, 4)), view("7", "unknown", at(0, 5)),
		view("1", "published", at(1, 7)))) // another record of view 1

	require.EqualValues(t, 2, e.objectViews(t, "published"))
	require.EqualValues(t, 1, e.objectViews(t, "hidden"))
	require.EqualValues(t, 0, e.objectViews(t, "delisted"))
	require.EqualValues(t, 1, e.objectViews(t, "of frozen"))
	require.EqualValues(t, 1, e.objectViews(t, "orphan"))
	require.EqualValues(t, 3, e.projectViews(t, "p"))
	require.EqualValues(t, 0, e.projectViews(t, "frozen"), "D28")
	require.Equal(t, StateCounted, e.state(t, "1"))
	require.Equal(t, StateSkippedDelisted, e.state(t, "4"))
	require.Equal(t, StatePending, e.state(t, "7"))

	require.Equal(t, 5, e.counts.get("counted Catalog"))
	require.Equal(t, 1, e.counts.get("duplicates"))
	require.Equal(t, 1, e.counts.get("delisted"))
	require.Equal(t, 1, e.counts.get("not found"))
	require.Equal(t, 1, e.counts.get("project missing"))
	for _, event := range []string{"incremented", "skipped-duplicate", "skipped-delisted", "property-object-not-found", "project-missing"} {
		require.Contains(t, e.log.String(), `"event":"`+event+`"`)
	}
	for name, event := range map[string]string{"1": "incremented", "4": "skipped-delisted", "6": "project-missing"} {
		require.Contains(t, e.line(event, name), `"project_id":"`, event)
	}
	require.Contains(t, e.line("skipped-delisted", "4"), `"project_id":"`+named("p").String()+`"`)
	require.NoError(t, e.flush(view("8", "delisted", at(0, 8)), view("9", "delisted", at(0, 9)), view("9", "delisted", at(1, 9)), view("10", "unknown", at(0, 10))))
	require.Contains(t, e.line("skipped-delisted", "9"), `"project_id":"`+named("p").String()+`"`, "guessed to be Delisted")

	after := scalar[string](t.Context(), t, e.pool, `SELECT string_agg(c::text, ',' ORDER BY id) FROM (
		SELECT id, status, promotion_boost, popularity_score, row_version, updated_at FROM catalog.property_object_cards
		UNION ALL SELECT id, status, promotion_boost, popularity_score, row_version, updated_at FROM catalog.project_cards) c`)
	require.Equal(t, before, after, "only popularity_views is written")
}

func TestABatchThatComesAgainChangesNothing(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	e.object("o", "p", "Published")
	batch := []ViewItem{view("1", "o", at(0, 0)), view("2", "o", at(0, 1)), view("late", "unknown", at(0, 2)), view("1", "o", at(0, 0))}
	require.NoError(t, e.flush(batch...))
	for range 3 {
		for i := range batch {
			batch[i].Kind = codecs.MarkOwn
		}
		require.NoError(t, e.flush(batch...))
	}
	require.EqualValues(t, 2, e.objectViews(t, "o"))
	require.EqualValues(t, 2, e.projectViews(t, "p"))
	late, err := ReadLateViews(t.Context(), e.pool)
	require.NoError(t, err)
	require.EqualValues(t, 1, late.Pending)
}

func TestTheProjectIsTheOneThatTheCardNamesWhenTheViewIsApplied(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	e.project("q", "Published")
	e.object("o", "p", "Published")
	require.NoError(t, e.flush(view("1", "o", at(0, 0))))
	e.object("o", "q", "Published")
	require.NoError(t, e.flush(view("2", "o", at(0, 1))))
	require.EqualValues(t, 1, e.projectViews(t, "p"))
	require.EqualValues(t, 1, e.projectViews(t, "q"))
}

// The sink remembers which cards were Delisted and inserts their views so. Whatever becomes of the cards, the transaction judges them.
func TestWhatTheSinkRemembersOfCardsChangesNothing(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	e.object("steady", "p", "Published")
	for _, name := range []string{"a", "b", "c"} {
		e.object(name, "p", "Delisted")
	}
	offset := int64(0)
	flush := func(batch string) {
		t.Helper()
		var items []ViewItem
		for _, object := range []string{"a", "b", "c", "steady"} {
			items = append(items, view(batch+object+"1", object, at(0, offset)), view(batch+object+"2", object, at(1, offset)))
			offset++
		}
		require.NoError(t, e.flush(items...))
	}
	states := func(batch string) (states []string) {
		for _, object := range []string{"a", "b", "c", "steady"} {
			require.Equal(t, e.state(t, batch+object+"1"), e.state(t, batch+object+"2"))
			states = append(states, e.state(t, batch+object+"1"))
		}
		return states
	}
	flush("first")
	require.Equal(t, []string{StateSkippedDelisted, StateSkippedDelisted, StateSkippedDelisted, StateCounted}, states("first"))
	flush("remembered")
	require.Equal(t, states("first"), states("remembered"))
	for _, row := range []string{"remembereda1", "rememberedsteady1"} {
		require.Equal(t, int64(1), scalar[int64](t.Context(), t, e.pool, `SELECT count(*) FROM vitrina.views a JOIN vitrina.views b ON a.xmin = b.xmin AND a.cmin = b.cmin
			WHERE a.view_id = $1 AND b.view_id = $2`, named(row), named("rememberedsteady2")), "written once, by the statement that inserted the other rows")
	}

	e.object("a", "p", "Published")
	exec(t, e.pool, `DELETE FROM catalog.property_object_cards WHERE id = $1`, named("b"))
	e.object("steady", "p", "Delisted")
	flush("changed")
	require.Equal(t, []string{StateCounted, StatePending, StateSkippedDelisted, StateSkippedDelisted}, states("changed"))
	flush("again")
	require.Equal(t, states("changed"), states("again"))
	require.EqualValues(t, 4, e.objectViews(t, "a"))
	require.EqualValues(t, 4, e.objectViews(t, "steady"))
	require.EqualValues(t, 8, e.projectViews(t, "p"))

	// A view that is known fails the plain insert: the rest goes in by the other one.
	e.object("c", "p", "Hidden")
	require.NoError(t, e.flush(view("againa1", "a", at(0, 100)), view("againc1", "c", at(0, 101)), view("new", "c", at(0, 102)), view("frozen", "steady", at(0, 103))))
	require.Equal(t, StateCounted, e.state(t, "new"))
	require.Equal(t, StateSkippedDelisted, e.state(t, "frozen"))
	require.Equal(t, StateSkippedDelisted, e.state(t, "againc1"))
	require.EqualValues(t, 1, e.objectViews(t, "c"))
	require.EqualValues(t, 9, e.projectViews(t, "p"))
}

// The catalog may map its own tables with updatable views (contracts, section 3).
func TestCardsMayBeUpdatableViews(t *testing.T) {
	e := newViewsEnv(t)
	exec(t, e.pool, `ALTER TABLE catalog.property_object_cards RENAME TO objects; ALTER TABLE catalog.project_cards RENAME TO projects;
		ALTER TABLE catalog.objects RENAME COLUMN popularity_views TO views_total;
		CREATE VIEW catalog.property_object_cards AS SELECT id, project_id, status, promotion_boost, views_total AS popularity_views, popularity_score, price, row_version, updated_at FROM catalog.objects;
		CREATE VIEW catalog.project_cards AS SELECT * FROM catalog.projects`, pgx.QueryExecModeSimpleProtocol)
	exec(t, e.pool, `INSERT INTO catalog.projects (id, status) VALUES ($1, 'Published')`, named("p"))
	for _, o := range []string{"o", "gone"} {
		exec(t, e.pool, `INSERT INTO catalog.objects (id, project_id, status) VALUES ($1, $2, $3)`, named(o), named("p"), map[string]string{"o": "Published", "gone": "Delisted"}[o])
	}
	require.NoError(t, e.flush(view("1", "o", at(0, 0)), view("2", "gone", at(0, 1)), view("3", "unknown", at(0, 2))))
	require.EqualValues(t, 1, e.objectViews(t, "o"))
	require.EqualValues(t, 1, e.projectViews(t, "p"))
	require.Equal(t, StateSkippedDelisted, e.state(t, "2"))
	require.Equal(t, StatePending, e.state(t, "3"))
}

func TestAnotherEpochIsFatal(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	e.object("o", "p", "Published")
	old, oldWorker := e.sink, e.worker
	p, err := RaiseEpoch(t.Context(), e.pool, Popularity, "test")
	require.NoError(t, err)
	require.False(t, p.Open)
	e.restart()
	require.ErrorIs(t, e.flush(view("1", "o", at(0, 0))), batch.ErrFatal, "closed")
	require.NoError(t, Reopen(t.Context(), e.pool, Popularity, p.Epoch))
	require.NoError(t, e.flush(view("1", "o", at(0, 0))))
	require.ErrorIs(t, old.Flush(t.Context(), []ViewItem{view("2", "o", at(0, 1))}), batch.ErrFatal, "the old epoch")
	require.EqualValues(t, 1, e.objectViews(t, "o"))

	require.NoError(t, e.flush(view("late", "unknown", at(0, 2))))
	e.shift(time.Hour)
	_, _, err = oldWorker.Retry(t.Context())
	require.ErrorIs(t, err, batch.ErrFatal)
	require.ErrorIs(t, oldWorker.Run(t.Context()), batch.ErrFatal)
	pruner := e.newPruner(time.Hour)
	pruner.cfg.Epoch = p.Epoch - 1
	_, err = pruner.Prune(t.Context())
	require.ErrorIs(t, err, batch.ErrFatal)
	require.ErrorIs(t, pruner.Run(t.Context()), batch.ErrFatal)
}

func TestAViewThatTheDatabaseRefusesIsDeadAndCanBePutBack(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	e.object("o", "p", "Published")
	e.object("poison", "p", "Published")
	exec(t, e.pool, `UPDATE catalog.property_object_cards SET popularity_views = 9223372036854775807 WHERE id = $1`, named("poison"))

	require.NoError(t, e.flush(view("1", "o", at(0, 0)), view("2", "poison", at(0, 1)), view("3", "o", at(0, 2)), view("4", "o", at(0, 3))))
	require.EqualValues(t, 3, e.objectViews(t, "o"))
	require.EqualValues(t, 3, e.projectViews(t, "p"))
	require.Equal(t, StateDead, e.state(t, "2"))
	require.Empty(t, e.letters.keys(), "dead first, then the letter")
	n, err := e.worker.WriteLetters(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Len(t, e.letters.written, 1)
	letter := e.letters.written[0]
	require.Equal(t, codecs.CodeDatabaseRejected, letter.Code)
	require.Equal(t, 1, letter.Attempts)
	require.Contains(t, letter.Reason, named("2").String())
	require.Contains(t, letter.Reason, "22003")
	require.Equal(t, letterAttrs(named("2"), named("poison"), "Catalog", 42), letter.Attrs)

	// Mended and put back as another record, after its mark is old.
	exec(t, e.pool, `UPDATE catalog.property_object_cards SET popularity_views = 0 WHERE id = $1`, named("poison"))
	require.NoError(t, e.flush(marked(view("2", "poison", at(0, 9)), time.Unix(0, 0))))
	require.EqualValues(t, 1, e.objectViews(t, "poison"))
	require.Equal(t, StateCounted, e.state(t, "2"))

	// Refused again when put back: dead again, with a second letter.
	exec(t, e.pool, `UPDATE catalog.property_object_cards SET popularity_views = 9223372036854775807 WHERE id = $1`, named("poison"))
	require.NoError(t, e.flush(view("5", "poison", at(0, 10))))
	require.NoError(t, e.flush(marked(view("5", "poison", at(0, 11)), time.Now())))
	require.NoError(t, e.flush(marked(view("5", "poison", at(0, 11)), time.Now())), "the same record again")
	v, _, err := ReadView(t.Context(), e.pool, named("5"))
	require.NoError(t, err)
	require.Equal(t, StateDead, v.State)
	require.EqualValues(t, 11, v.Offset)
	require.Equal(t, 1, v.Late.Generation)
}

func TestALateViewThatTheDatabaseRefusesIsBuried(t *testing.T) {
	e := newViewsEnv(t)
	require.NoError(t, e.flush(view("1", "poison", at(0, 0)), view("2", "o", at(0, 1))))
	e.object("o", "p", "Published")
	e.object("poison", "p", "Published")
	exec(t, e.pool, `UPDATE catalog.property_object_cards SET popularity_views = 9223372036854775807 WHERE id = $1`, named("poison"))
	e.shift(time.Minute)
	_, counted, err := e.worker.Retry(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, counted)
	require.EqualValues(t, 1, e.objectViews(t, "o"))
	require.Equal(t, StateDead, e.state(t, "1"))
	_, err = e.worker.WriteLetters(t.Context())
	require.NoError(t, err)
	require.Equal(t, codecs.CodeDatabaseRejected, e.letters.written[0].Code)
	require.Equal(t, 2, e.letters.written[0].Attempts)
}

func TestConfigurationOfTheViewsSinkIsChecked(t *testing.T) {
	e := newViewsEnv(t)
	good := e.sink.cfg
	for name, change := range map[string]func(*ViewsConfig){
		"epoch":     func(c *ViewsConfig) { c.Epoch = 0 },
		"topic":     func(c *ViewsConfig) { c.LoopTopic = "" },
		"first try": func(c *ViewsConfig) { c.FirstTry = 0 },
	} {
		cfg := good
		change(&cfg)
		_, err := NewViewsSink(e.pool, cfg, e.letters, ViewsMetrics{}, e.events)
		require.Error(t, err, name)
	}
	_, err := NewRetryWorker(e.pool, RetryConfig{Epoch: 1}, e.letters, ViewsMetrics{}, RetryHooks{}, e.events, nil, time.Now)
	require.ErrorContains(t, err, "popularity.retry_delays")
	_, err = NewPruner(e.pool, PruneConfig{}, e.progress, nil, time.Now)
	require.ErrorContains(t, err, "epoch")
}
