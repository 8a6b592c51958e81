package postgres

import (
	"context"
	"errors"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
)

// rebuildEnv has counted, frozen, pending and dead views: 1, 2 of object o; 3 of a card Delisted since; 4, 5 pending; 6 dead.
func rebuildEnv(t *testing.T) *viewsEnv {
	e := newViewsEnv(t)
	e.project("p", "Published")
	e.project("q", "Published")
	e.project("shut", "Published")
	e.object("o", "p", "Published")
	e.object("frozen", "p", "Published")
	e.object("of shut", "shut", "Published")
	e.die(t, "6", "late")
	require.NoError(t, e.flush(view("1", "o", at(0, 0)), view("2", "o", at(0, 1)), view("3", "frozen", at(0, 2)), view("7", "of shut", at(1, 0)),
		view("4", "later", at(0, 3)), view("5", "later", at(0, 4))))
	e.object("frozen", "p", "Delisted")
	e.project("shut", "Delisted")
	return e
}

func (e *viewsEnv) close(t *testing.T) Projection {
	p, err := RaiseEpoch(t.Context(), e.pool, Popularity, "test")
	require.NoError(t, err)
	return p
}

// reset runs a reset and reopens in one transaction.
func (e *viewsEnv) reset(t *testing.T, p Projection, do func(context.Context, pgx.Tx) (PopularityReset, error)) PopularityReset {
	var r PopularityReset
	require.NoError(t, pgx.BeginFunc(t.Context(), e.pool, func(tx pgx.Tx) (err error) {
		if r, err = do(t.Context(), tx); err != nil {
			return err
		}
		return Reopen(t.Context(), tx, Popularity, p.Epoch)
	}))
	e.restart()
	return r
}

func lane(partition int32, loop bool) Lane {
	topic := "views"
	if loop {
		topic = "loop"
	}
	return Lane{Incarnation: 1, Partition: partition, Loop: loop, Topic: topic}
}

func TestPopularityIsRebuiltFromTheTopic(t *testing.T) {
	e := rebuildEnv(t)
	p := e.close(t)
	r := e.reset(t, p, func(ctx context.Context, tx pgx.Tx) (PopularityReset, error) {
		return ResetPopularityFromTopic(ctx, tx, []LaneOffset{{lane(0, false), 0}, {lane(1, false), 0}, {lane(0, true), 12}})
	})
	require.Equal(t, PopularityReset{Pending: 2, Dead: 1, Objects: 2, Projects: 1}, r)
	require.EqualValues(t, 0, e.objectViews(t, "o"))
	require.EqualValues(t, 1, e.objectViews(t, "frozen"), "D37")
	require.EqualValues(t, 0, e.projectViews(t, "p"))
	require.EqualValues(t, 1, e.projectViews(t, "shut"), "D28, D37")
	require.Equal(t, StatePending, e.state(t, "4"))
	require.Equal(t, StateDead, e.state(t, "6"))
	require.Empty(t, e.state(t, "1"))

	// While it replays nothing is pruned, and no view is skipped on its mark alone: marks are kept, and old.
	e.progress.set([2]int64{5, 6}, [2]int64{1, 1})
	pruner := e.newPruner(time.Hour)
	require.True(t, e.prune(t, pruner).Before.IsZero())
	own := view("1", "o", at(0, 0))
	own.Kind, own.MarkAt = codecs.MarkOwn, time.Now().Add(-8*week)
	earlier := view("8", "o", at(0, 7))
	earlier.Kind = codecs.MarkEarlier
	require.NoError(t, e.flush(own, marked(view("2", "o", at(0, 1)), time.Now().Add(-8*week)), view("3", "frozen", at(0, 2)), view("4", "later", at(0, 3)),
		view("6", "late", at(0, 5)), earlier, view("7", "of shut", at(1, 0))))
	require.EqualValues(t, 3, e.objectViews(t, "o"))
	require.EqualValues(t, 3, e.projectViews(t, "p"))
	require.EqualValues(t, 1, e.objectViews(t, "frozen"))
	require.EqualValues(t, 1, e.projectViews(t, "shut"))
	require.Equal(t, StatePending, e.state(t, "4"))
	require.Equal(t, StateDead, e.state(t, "6"))

	require.NoError(t, pgx.BeginFunc(t.Context(), e.pool, func(tx pgx.Tx) error { return FinishReplay(t.Context(), tx) }))
	ledger, err := ReadLedger(t.Context(), e.pool)
	require.NoError(t, err)
	require.False(t, ledger.Replaying)
	for range 3 {
		e.prune(t, pruner)
	}
	require.Equal(t, StateCounted, e.state(t, "1"), "counted again just now")
}

func TestPopularityIsRebuiltFromTheMarks(t *testing.T) {
	e := rebuildEnv(t)
	require.NoError(t, e.flush(view("9", "o", at(1, 1)))) // counted, its record not finished and its mark lost
	p := e.close(t)
	e.object("o", "q", "Published") // moved since (D41)
	exec(t, e.pool, `UPDATE catalog.property_object_cards SET popularity_views = 77 WHERE id = $1`, named("o"))
	mark := func(name, object string, origin codecs.Origin) ViewMark {
		return ViewMark{ViewID: named(name), Mark: codecs.Mark{Origin: origin, ObjectID: named(object), At: time.Unix(1700000000, 0)}}
	}
	old := at(0, 900)
	old.Incarnation = 99
	marks := []ViewMark{
		mark("1", "wrong", at(0, 0)), mark("2", "o", at(0, 1)), mark("1", "o", at(0, 0)), // the last one of a view holds
		mark("3", "frozen", at(0, 2)), mark("4", "later", at(0, 3)), mark("5", "later", at(0, 4)), mark("6", "late", at(0, 5)),
		mark("7", "of shut", at(1, 0)), mark("pruned long ago", "o", at(0, 1)), mark("earlier", "o", old), mark("unfinished", "o", at(1, 2)),
	}
	committed := []LaneOffset{{lane(0, false), 6}, {lane(1, false), 1}, {lane(0, true), 12}}
	r := e.reset(t, p, func(ctx context.Context, tx pgx.Tx) (PopularityReset, error) {
		return ResetPopularityFromMarks(ctx, tx, committed, seq(marks, nil))
	})
	require.Equal(t, PopularityReset{Marks: 10, Unfinished: 1, Pending: 2, Dead: 1, Objects: 1, Projects: 2}, r)
	require.EqualValues(t, 4, e.objectViews(t, "o"), "1, 2, pruned long ago, earlier")
	require.EqualValues(t, 4, e.projectViews(t, "q"), "the project that the card names now")
	require.EqualValues(t, 1, e.objectViews(t, "frozen"))
	require.EqualValues(t, 1, e.projectViews(t, "p"), "the sum of its objects, frozen ones included")
	require.EqualValues(t, 1, e.projectViews(t, "shut"))

	// What comes again after the commit: unfinished records count, everything else is a duplicate.
	own := view("unfinished", "o", at(1, 2))
	own.Kind, own.MarkAt = codecs.MarkOwn, time.Unix(1700000000, 0)
	require.NoError(t, e.flush(own, view("9", "o", at(1, 1)), view("1", "o", at(0, 0)), marked(view("2", "o", at(1, 9)), time.Unix(1700000000, 0)),
		marked(view("pruned long ago", "o", at(1, 10)), time.Unix(1700000000, 0)), view("4", "later", at(0, 3))))
	require.EqualValues(t, 6, e.objectViews(t, "o"))
	require.EqualValues(t, 6, e.projectViews(t, "q"))
	// Late views go on.
	e.object("later", "q", "Published")
	e.shift(time.Minute)
	_, counted, err := e.worker.Retry(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, counted)
	require.EqualValues(t, 8, e.projectViews(t, "q"))
}

// TestAViewOfADelistedCardIsNotCountedOnceTheCardIsBack: its mark is like any other, so rebuilds counted it once the card was published again.
func TestAViewOfADelistedCardIsNotCountedOnceTheCardIsBack(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	e.object("o", "p", "Delisted")
	require.NoError(t, e.flush(view("skipped", "o", at(0, 0)), view("skipped, its record not finished", "o", at(0, 2))))
	e.object("o", "p", "Published")
	require.NoError(t, e.flush(view("counted", "o", at(0, 1))))
	marks := seq([]ViewMark{
		{ViewID: named("skipped"), Mark: codecs.Mark{Origin: at(0, 0), ObjectID: named("o")}},
		{ViewID: named("counted"), Mark: codecs.Mark{Origin: at(0, 1), ObjectID: named("o")}},
	}, nil)
	for range 2 { // the first one must leave the second what it needs
		e.reset(t, e.close(t), func(ctx context.Context, tx pgx.Tx) (PopularityReset, error) {
			return ResetPopularityFromMarks(ctx, tx, []LaneOffset{{lane(0, false), 2}}, marks)
		})
		require.NoError(t, e.flush(view("skipped, its record not finished", "o", at(0, 2)), view("skipped", "o", at(0, 0))))
		require.EqualValues(t, 1, e.objectViews(t, "o"))
		require.EqualValues(t, 1, e.projectViews(t, "p"))
		require.Equal(t, StateSkippedDelisted, e.state(t, "skipped"))
	}
}

// TestADeadViewThatCameAgainForAnotherObjectStaysThere: its mark goes on naming the first object, and rebuilds moved the count there.
func TestADeadViewThatCameAgainForAnotherObjectStaysThere(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	e.die(t, "v", "a")
	e.object("b", "p", "Published")
	require.NoError(t, e.flush(view("v", "b", at(0, 9))))
	require.EqualValues(t, 1, e.objectViews(t, "b"))
	e.object("a", "p", "Published")
	marks := []ViewMark{{ViewID: named("v"), Mark: codecs.Mark{Origin: at(0, 5), ObjectID: named("a")}}}
	for range 2 {
		e.reset(t, e.close(t), func(ctx context.Context, tx pgx.Tx) (PopularityReset, error) {
			return ResetPopularityFromMarks(ctx, tx, []LaneOffset{{lane(0, false), 10}}, seq(marks, nil))
		})
		require.EqualValues(t, 0, e.objectViews(t, "a"))
		require.EqualValues(t, 1, e.objectViews(t, "b"))
		require.EqualValues(t, 1, e.projectViews(t, "p"))
	}
	// A replay of the topic judges it anew, by the record that it finds first.
	e.reset(t, e.close(t), func(ctx context.Context, tx pgx.Tx) (PopularityReset, error) {
		return ResetPopularityFromTopic(ctx, tx, []LaneOffset{{lane(0, false), 0}})
	})
	require.NoError(t, e.flush(view("v", "a", at(0, 5)), view("v", "b", at(0, 9))))
	require.NoError(t, pgx.BeginFunc(t.Context(), e.pool, func(tx pgx.Tx) error { return FinishReplay(t.Context(), tx) }))
	e.reset(t, e.close(t), func(ctx context.Context, tx pgx.Tx) (PopularityReset, error) {
		return ResetPopularityFromMarks(ctx, tx, []LaneOffset{{lane(0, false), 10}}, seq(marks, nil))
	})
	require.EqualValues(t, 1, e.objectViews(t, "a"))
	require.EqualValues(t, 0, e.objectViews(t, "b"))
}

func TestAResetIsRefusedWhileWritersMayRun(t *testing.T) {
	e := rebuildEnv(t)
	for _, reset := range []func(context.Context, pgx.Tx) (PopularityReset, error){
		func(ctx context.Context, tx pgx.Tx) (PopularityReset, error) {
			return ResetPopularityFromTopic(ctx, tx, nil)
		},
		func(ctx context.Context, tx pgx.Tx) (PopularityReset, error) {
			return ResetPopularityFromMarks(ctx, tx, nil, seq(nil, nil))
		},
	} {
		err := pgx.BeginFunc(t.Context(), e.pool, func(tx pgx.Tx) error { _, err := reset(t.Context(), tx); return err })
		require.ErrorContains(t, err, "is open")
	}
	require.EqualValues(t, 2, e.objectViews(t, "o"))
}

func TestAResetFromMarksThatFailsChangesNothing(t *testing.T) {
	e := rebuildEnv(t)
	e.close(t)
	lanes := []LaneOffset{{lane(0, false), 6}}
	for name, c := range map[string]struct {
		marks iter.Seq2[ViewMark, error]
		want  string
	}{
		"the topic cannot be read": {seq([]ViewMark{{ViewID: named("1"), Mark: codecs.Mark{Origin: at(0, 0)}}}, errors.New("Kafka is away")), "Kafka is away"},
		"an offset is missing":     {seq([]ViewMark{{ViewID: named("1"), Mark: codecs.Mark{Origin: at(5, 0)}}}, nil), "partition 5"},
	} {
		err := pgx.BeginFunc(t.Context(), e.pool, func(tx pgx.Tx) error {
			_, err := ResetPopularityFromMarks(t.Context(), tx, lanes, c.marks)
			return err
		})
		require.ErrorContains(t, err, c.want, name)
	}
	require.EqualValues(t, 2, e.objectViews(t, "o"))
	require.Equal(t, StateCounted, e.state(t, "1"))
	p, err := ReadProjection(t.Context(), e.pool, Popularity)
	require.NoError(t, err)
	require.False(t, p.Open)
}

// seq yields values, then the error if there is one.
func seq(values []ViewMark, err error) iter.Seq2[ViewMark, error] {
	return func(yield func(ViewMark, error) bool) {
		for v := range slices.Values(values) {
			if !yield(v, nil) {
				return
			}
		}
		if err != nil {
			yield(ViewMark{}, err)
		}
	}
}
