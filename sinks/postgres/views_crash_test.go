package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
)

// rivalsEnv has 40 objects of 7 projects; views v0, v1, … go round the objects.
func rivalsEnv(t *testing.T, e *viewsEnv) (itemOf func(i int, partition int32) ViewItem) {
	for p := range 7 {
		e.project(fmt.Sprint("p", p), "Published")
	}
	for o := range 40 {
		e.object(fmt.Sprint("o", o), fmt.Sprint("p", o%7), "Published")
	}
	return func(i int, partition int32) ViewItem {
		return view(fmt.Sprint("v", i), fmt.Sprint("o", i%40), at(partition, int64(i)))
	}
}

// requireExact wants each of n views counted once on its object and its project.
func (e *viewsEnv) requireExact(t *testing.T, n int) {
	t.Helper()
	ctx := t.Context()
	require.EqualValues(t, n, scalar[int64](ctx, t, e.pool, `SELECT sum(popularity_views)::bigint FROM catalog.property_object_cards`))
	require.Zero(t, scalar[int64](ctx, t, e.pool, `SELECT count(*) FROM catalog.property_object_cards c
		LEFT JOIN (SELECT object_id, count(*) AS n FROM vitrina.views WHERE state = 'counted' GROUP BY object_id) v ON v.object_id = c.id
		WHERE c.popularity_views <> coalesce(v.n, 0)`))
	require.Zero(t, scalar[int64](ctx, t, e.pool, `SELECT count(*) FROM catalog.project_cards p
		LEFT JOIN (SELECT project_id, sum(popularity_views) AS n FROM catalog.property_object_cards GROUP BY project_id) c ON c.project_id = p.id
		WHERE p.popularity_views <> coalesce(c.n, 0)`))
	require.EqualValues(t, n, scalar[int64](ctx, t, e.pool, `SELECT count(*) FROM vitrina.views WHERE state = 'counted'`))
}

// Several sinks are handed the same views in different batches while the catalog locks cards in orders of its own.
func TestSinksAndRivalWritersTogetherCountExactly(t *testing.T) {
	e := newViewsEnv(t)
	itemOf := rivalsEnv(t, e)
	const views, size = 4000, 250
	g, ctx := errgroup.WithContext(t.Context())
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	var sinks atomic.Int32
	for s := range 3 {
		sinks.Add(1)
		g.Go(func() error {
			defer func() {
				if sinks.Add(-1) == 0 {
					stopWriting()
				}
			}()
			order := rand.New(rand.NewPCG(1, uint64(s))).Perm(views)
			for batch := range slices.Chunk(order, size) {
				items := make([]ViewItem, 0, size)
				for _, i := range batch {
					items = append(items, itemOf(i, int32(s)))
				}
				if err := retryCollisions(ctx, func() error { return e.sink.Flush(ctx, items) }); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for r := range 2 { // a catalog that updates cards in pairs, in any order
		g.Go(func() error {
			rng := rand.New(rand.NewPCG(2, uint64(r)))
			for writing.Err() == nil {
				a, b := fmt.Sprint("o", rng.IntN(40)), fmt.Sprint("o", rng.IntN(40))
				err := e.updatePair(ctx, a, b)
				if err != nil && FaultOf(err) != Collision {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	e.requireExact(t, views)
}

// retryCollisions stands for the batcher, which brings a batch again whatever the error was.
func retryCollisions(ctx context.Context, flush func() error) error {
	for {
		err := flush()
		if err == nil || FaultOf(err) != Collision || ctx.Err() != nil {
			return err
		}
	}
}

func (e *viewsEnv) updatePair(ctx context.Context, a, b string) error {
	tx, err := e.pool.Begin(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{a, b} {
		if _, err := tx.Exec(ctx, `UPDATE catalog.property_object_cards SET price = 1, row_version = row_version + 1 WHERE id = $1`, named(name)); err != nil {
			return errors.Join(err, tx.Rollback(ctx))
		}
	}
	return tx.Commit(ctx)
}

func TestImmediateRestartsOfPostgreSQLLoseAndDoubleNothing(t *testing.T) {
	server := devtest.PostgresServer(t)
	dsn, err := server.CreateDatabase(t.Context(), "crash")
	require.NoError(t, err)
	_, err = Migrate(t.Context(), openMigrator(t, dsn))
	require.NoError(t, err)
	e := newViewsEnvOn(t, newPool(t, dsn, PoolOptions{}))
	itemOf := rivalsEnv(t, e)

	const size, crashes = 200, 3
	var flushed atomic.Int64
	failed := make(chan struct{}, 1000)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	var done [2]int
	for s := range 2 {
		g.Go(func() error {
			for n := 0; ctx.Err() == nil; n++ {
				items := make([]ViewItem, 0, size)
				for i := range size {
					items = append(items, itemOf(2*(n*size+i)+s, int32(s)))
				}
				for {
					err := e.sink.Flush(gctx, items)
					if err == nil {
						break
					}
					if gctx.Err() != nil {
						return gctx.Err()
					}
					select {
					case failed <- struct{}{}:
					default:
					}
				}
				flushed.Add(size)
				done[s] = n + 1
			}
			return nil
		})
	}
	for range crashes {
		before := flushed.Load()
		require.Eventually(t, func() bool { return flushed.Load() > before+2*size }, time.Minute, time.Millisecond)
		for len(failed) > 0 {
			<-failed
		}
		require.NoError(t, server.Kill())
		<-failed
		require.NoError(t, server.Restart(t.Context()))
	}
	before := flushed.Load()
	require.Eventually(t, func() bool { return flushed.Load() > before+2*size }, time.Minute, time.Millisecond)
	stop()
	if err := g.Wait(); err != nil {
		require.ErrorIs(t, err, context.Canceled)
	}
	// A flush that was cancelled may or may not have happened: bring all batches once more, as Kafka would.
	for s := range 2 {
		for n := range done[s] + 1 {
			items := make([]ViewItem, 0, size)
			for i := range size {
				items = append(items, itemOf(2*(n*size+i)+s, int32(s)))
			}
			require.NoError(t, e.sink.Flush(t.Context(), items))
		}
	}
	e.requireExact(t, (done[0]+done[1]+2)*size)
}

// All locks are taken in one order, so sinks among themselves never deadlock, however large their batches are.
func TestSinksAloneNeverDeadlock(t *testing.T) {
	e := newViewsEnv(t)
	const objects = 20000
	exec(t, e.pool, `INSERT INTO catalog.project_cards (id, status) SELECT md5('p' || g)::uuid, 'Published' FROM generate_series(0, 499) g`)
	exec(t, e.pool, `INSERT INTO catalog.property_object_cards (id, project_id, status)
		SELECT md5('o' || g)::uuid, md5('p' || g % 500)::uuid, 'Published' FROM generate_series(0, $1::int - 1) g`, objects)
	rows, err := e.pool.Query(t.Context(), `SELECT id FROM catalog.property_object_cards ORDER BY random()`)
	require.NoError(t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	require.NoError(t, err)
	g, ctx := errgroup.WithContext(t.Context())
	for s := range 3 {
		g.Go(func() error {
			for round := range 2 {
				items := make([]ViewItem, 0, objects)
				for i, object := range ids {
					item := view(fmt.Sprintf("%d/%d", round, i), "", at(int32(s), int64(round*objects+i)))
					item.ObjectID = object
					items = append(items, item)
				}
				if err := e.sink.Flush(ctx, items); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	require.Zero(t, e.counts.get("retries"))
	require.Equal(t, 2*objects, e.counts.get("counted Catalog"))
	e.requireExact(t, 2*objects)
}
