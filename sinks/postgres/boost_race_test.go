package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pin-marketplace/vitrina/codecs"
)

// waitBlocked waits until n sessions of the test's database wait for locks.
func waitBlocked(t testing.TB, q Querier, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		return scalar[int](t.Context(), t, q, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) >= n
	}, 20*time.Second, 5*time.Millisecond, "nobody waits for a lock")
}

// held is a transaction that a test keeps open.
func held(t testing.TB, e *boostEnv) pgx.Tx {
	t.Helper()
	tx, err := e.pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := tx.Rollback(context.Background()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Error(err)
		}
	})
	return tx
}

// applyIn applies snapshots inside a transaction that the test keeps open: a sink that is not done yet.
func (e *boostEnv) applyIn(t testing.TB, tx pgx.Tx, snapshots ...Snapshot) {
	t.Helper()
	rounds, _ := plan(snapshots)
	require.Len(t, rounds, 1)
	var r applyResult
	require.NoError(t, r.scan(tx.QueryRow(t.Context(), applyPurchases, newApplyArgs(rounds[0]).list(e.sink.cfg.Epoch, true, 3, false)...)))
}

// background runs do and returns a function that waits for its result.
func background(do func() error) func() error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return func() error { return <-done }
}

// Rule 6: a statement that waited for a lock goes on with its old snapshot. Two purchases on one target: the one that waited
// must sum what the other has committed, also when the target's row did not exist before.
func TestRule6_TwoPurchasesOnOneTarget(t *testing.T) {
	for _, existing := range []bool{false, true} {
		t.Run(fmt.Sprintf("target exists %v", existing), func(t *testing.T) {
			e := newBoostEnv(t)
			e.addObject(t, 1, 1, "Published")
			want := 30
			if existing {
				e.flush(t, e.snapshot(9, 1, codecs.StatusActive, 100, object(1)))
				want += 100
			}
			first := held(t, e)
			e.applyIn(t, first, e.snapshot(1, 1, codecs.StatusActive, 10, object(1)))
			second := background(func() error {
				return e.sink.Flush(t.Context(), []Snapshot{e.snapshot(2, 1, codecs.StatusActive, 20, object(1))})
			})
			waitBlocked(t, e.pool, 1)
			require.NoError(t, first.Commit(t.Context()))
			require.NoError(t, second())
			require.Equal(t, want, e.objectBoost(t, 1))
			target, err := Target(t.Context(), e.pool, object(1))
			require.NoError(t, err)
			require.Equal(t, want, target.Boost)
		})
	}
}

// Rule 6: the same purchase by two sinks (a zombie and the owner): the guard judges what the other has committed.
func TestRule6_OnePurchaseByTwoSinks(t *testing.T) {
	e := newBoostEnv(t)
	e.addObject(t, 1, 1, "Published")
	owner := held(t, e)
	e.applyIn(t, owner, e.snapshot(1, 2, codecs.StatusActive, 20, object(1)))
	zombie := background(func() error {
		return e.sink.Flush(t.Context(), []Snapshot{e.snapshot(1, 1, codecs.StatusActive, 10, object(1), object(2))})
	})
	waitBlocked(t, e.pool, 1)
	require.NoError(t, owner.Commit(t.Context()))
	require.NoError(t, zombie())
	require.Equal(t, 20, e.objectBoost(t, 1))
	require.Equal(t, 1, e.counts.stale)
	_, err := Target(t.Context(), e.pool, object(2))
	require.ErrorIs(t, err, ErrNotFound, "the zombie's snapshot left nothing")
}

// Rule 6: an object and its project at once. One of them finds the card as it should be and writes nothing, so the row version
// cannot make them meet: the project's target row must.
func TestRule6_ObjectAndProjectAtOnceWithAnUnchangedCard(t *testing.T) {
	for _, objectFirst := range []bool{true, false} {
		t.Run(fmt.Sprintf("object first %v", objectFirst), func(t *testing.T) {
			e := newBoostEnv(t)
			e.addObject(t, 1, 1, "Published")
			e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 10, object(1)), e.snapshot(2, 1, codecs.StatusActive, 20, project(1)))
			own, cascade := e.snapshot(1, 2, codecs.StatusActive, 20, object(1)), e.snapshot(2, 2, codecs.StatusActive, 10, project(1))
			a, b := own, cascade
			unchanged := 40 // what the first one makes of it alone
			if !objectFirst {
				a, b, unchanged = cascade, own, 20
			}
			exec(t, e.pool, `UPDATE catalog.property_object_cards SET promotion_boost = $1`, unchanged)

			first := held(t, e)
			e.applyIn(t, first, a)
			second := background(func() error { return e.sink.Flush(t.Context(), []Snapshot{b}) })
			waitBlocked(t, e.pool, 1)
			require.NoError(t, first.Commit(t.Context()))
			require.NoError(t, second())
			require.Equal(t, 30, e.objectBoost(t, 1))
		})
	}
}

// Rule 6: the card moves to another project between the lock of its old project's target and the read. Its sums are not those that
// were locked: it is queued, and the recompute gives it the boost of the new project.
func TestRule6_CardMovesWhileTheSinkWaits(t *testing.T) {
	e := newBoostEnv(t)
	e.addObject(t, 1, 1, "Published")
	e.addObject(t, 2, 1, "Published")
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 5, project(1)), e.snapshot(2, 1, codecs.StatusActive, 70, project(2)))
	blocker := held(t, e)
	_, err := blocker.Exec(t.Context(), `SELECT FROM vitrina.promotion_targets WHERE kind = 1 AND id = $1 FOR UPDATE`, projectID(1))
	require.NoError(t, err)
	sink := background(func() error {
		return e.sink.Flush(t.Context(), []Snapshot{e.snapshot(3, 1, codecs.StatusActive, 100, object(1), object(2))})
	})
	waitBlocked(t, e.pool, 1)
	exec(t, e.pool, `UPDATE catalog.property_object_cards SET project_id = $2, row_version = row_version + 1 WHERE id = $1`, objectID(1), projectID(2))
	require.NoError(t, blocker.Commit(t.Context()))
	require.NoError(t, sink())
	require.Empty(t, e.letters.take(), "no conflict: the card is somewhere else")
	require.Equal(t, 5, e.objectBoost(t, 1), "not written with sums that nobody has locked")
	require.Equal(t, 105, e.objectBoost(t, 2))
	require.Equal(t, "moved", scalar[string](t.Context(), t, e.pool, `SELECT reason FROM vitrina.dirty_cards WHERE id = $1`, objectID(1)))

	r := e.reconcile(t)
	require.Equal(t, 1, r.Written)
	require.Equal(t, 0, r.Dirty)
	require.Equal(t, 170, e.objectBoost(t, 1))
}

// Rule 13: an instance that is stopped right after it sent its batch holds no locks: the transaction is one message, and the answer
// fits the socket's buffers, so that the server gets to the commit without anybody reading.
func TestRule13_StoppedInstanceHoldsNoLocks(t *testing.T) {
	e := newBoostEnv(t)
	bigCatalog(t, e, 0)
	conn, err := pgconn.Connect(t.Context(), e.pool.Config().ConnString())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	conn.Frontend().SendQuery(&pgproto3.Query{String: `
		SELECT r.* FROM (
			SELECT array_agg(('30000000-0000-0000-0000-' || lpad(to_hex(n), 12, '0'))::uuid ORDER BY n) AS ids, array_agg(1::bigint) AS ones, array_agg(0::bigint) AS zeros,
				array_agg('Active'::text) AS statuses, array_agg(7) AS weights, array_agg(now()) AS times, array_agg('topic'::text) AS topics, array_agg(0) AS partitions,
				array_agg(2::smallint) AS kinds, array_agg(('20000000-0000-0000-0000-' || lpad(to_hex(n), 12, '0'))::uuid ORDER BY n) AS targets, array_agg(true) AS named
			FROM generate_series(0, 4999) n
		) a, vitrina.apply_purchases(1, ids, ones, zeros, statuses, weights, times, topics, partitions, zeros, ids, ones, zeros, kinds, targets, named, true, 3, false) r`})
	require.NoError(t, conn.Frontend().Flush())
	require.Eventually(t, func() bool {
		return scalar[int](t.Context(), t, e.pool, `SELECT count(*) FROM catalog.property_object_cards WHERE promotion_boost = 7`) == 5000
	}, 20*time.Second, 20*time.Millisecond)
	require.Zero(t, scalar[int](t.Context(), t, e.pool, `SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND pid = $1`, conn.PID()))
}

// Two sinks, a recompute and rivals that lock cards in any order, on the same few cards: deadlocks and conflicts are retried, no
// boost and no change of a rival is lost.
func TestSinksAndRivalsLoseNothing(t *testing.T) {
	e := boostEnvOn(t, newPool(t, migrated(t).Config().ConnString()+"&deadlock_timeout=20ms", PoolOptions{}), BoostConfig{})
	const projects, objects, purchases, rounds = 4, 200, 30, 15
	for n := range projects {
		e.addProject(t, n, "Published")
	}
	for n := range objects {
		e.addObject(t, n, n%projects, "Published")
	}
	draw := func(r *rand.Rand, version int) []Snapshot {
		var list []Snapshot
		for range 10 {
			targets := []codecs.Target{project(r.IntN(projects)), object(r.IntN(objects)), object(r.IntN(objects))}
			if targets[1] == targets[2] {
				targets = targets[:2]
			}
			list = append(list, e.snapshot(r.IntN(purchases), int64(version), []codecs.Status{codecs.StatusActive, codecs.StatusExpired}[r.IntN(2)], int32(1+r.IntN(100)), targets...))
		}
		return list
	}
	var histories [2][][]Snapshot
	for sink := range histories {
		r := rand.New(rand.NewPCG(uint64(sink), 1))
		for version := range rounds {
			histories[sink] = append(histories[sink], draw(r, 2*version+sink+1))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	for sink := range histories {
		group.Go(func() error {
			for _, list := range histories[sink] {
				// Who loses a deadlock five times in a row gives up, and the batcher comes again.
				err := e.sink.Flush(t.Context(), list)
				for FaultOf(err) == Collision {
					err = e.sink.Flush(t.Context(), list)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	var rivals errgroup.Group
	var changes [2]int
	for n := range changes {
		rivals.Go(func() error {
			r := rand.New(rand.NewPCG(uint64(n), 2))
			for ctx.Err() == nil {
				done, err := rivalTransaction(t.Context(), e, r, objects)
				if err != nil {
					return err
				}
				changes[n] += done
			}
			return nil
		})
	}
	rivals.Go(func() error {
		for ctx.Err() == nil {
			if _, err := e.sink.Reconcile(t.Context()); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, group.Wait())
	cancel()
	require.NoError(t, rivals.Wait())
	t.Logf("rival changes %v, conflicts %d, retries %d, letters %d", changes, e.counts.conflicts, e.counts.retries, len(e.letters.letters))

	r, err := e.sink.Sweep(t.Context())
	require.NoError(t, err)
	require.Zero(t, r.Targets, "sums are right without a sweep")
	require.Equal(t, len(e.letters.letters) > 0, r.Written > 0 && len(e.letters.letters) > 0, "only lost cards were left")
	wrong := scalar[int](t.Context(), t, e.pool, `
		SELECT count(*) FROM catalog.property_object_cards c WHERE promotion_boost <>
			coalesce((SELECT sum(boost_weight) FROM vitrina.contributions WHERE active AND (kind, target_id) IN ((2, c.id), (1, c.project_id))), 0)`)
	require.Zero(t, wrong)
	total := scalar[int](t.Context(), t, e.pool, `SELECT sum(popularity_score)::int FROM catalog.property_object_cards`)
	require.Equal(t, changes[0]+changes[1], total, "no change of a rival is lost")
}

// Cards are locked in the order of their ids, also 20,000 of them: against a rival that does the same (the counters) there is no
// deadlock at all.
func TestCardsAreLockedInOrder(t *testing.T) {
	e := boostEnvOn(t, newPool(t, migrated(t).Config().ConnString()+"&deadlock_timeout=20ms", PoolOptions{}), BoostConfig{})
	bigCatalog(t, e, 0)
	ctx, cancel := context.WithCancel(t.Context())
	var rival errgroup.Group
	rival.Go(func() error {
		r := rand.New(rand.NewPCG(1, 1))
		for ctx.Err() == nil {
			_, err := e.pool.Exec(t.Context(), `WITH locked AS (
				SELECT id FROM catalog.property_object_cards WHERE project_id = $1 AND abs(hashtext(id::text || $2)) % 5 = 0 ORDER BY id FOR NO KEY UPDATE)
				UPDATE catalog.property_object_cards c SET popularity_views = popularity_views + 1 FROM locked WHERE c.id = locked.id`, projectID(0), fmt.Sprint(r.Int()))
			if err != nil {
				return err
			}
		}
		return nil
	})
	for n := range 6 {
		e.flush(t, e.snapshot(1, int64(n+1), codecs.StatusActive, int32(n+1), project(0)))
	}
	cancel()
	require.NoError(t, rival.Wait(), "the rival lost a deadlock")
	require.Zero(t, e.counts.retries, "the sink lost a deadlock")
}

// rivalTransaction changes three random cards under the optimistic lock, in random order, and returns how many it changed.
func rivalTransaction(ctx context.Context, e *boostEnv, r *rand.Rand, objects int) (int, error) {
	changed := 0
	err := pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		for range 3 {
			card := objectID(r.IntN(objects))
			var version int64
			if err := tx.QueryRow(ctx, `SELECT row_version FROM catalog.property_object_cards WHERE id = $1`, card).Scan(&version); err != nil {
				return err
			}
			tag, err := tx.Exec(ctx, `UPDATE catalog.property_object_cards SET popularity_score = popularity_score + 1, row_version = row_version + 1 WHERE id = $1 AND row_version = $2`, card, version)
			if err != nil {
				return err
			}
			changed += int(tag.RowsAffected())
		}
		return nil
	})
	if FaultOf(err) == Collision {
		return 0, nil
	}
	return changed, err
}

// Cards that a purchase reaches but does not change are not touched at all: no row version, no updated_at, no new row.
func TestUnchangedCardsAreNotTouched(t *testing.T) {
	e := newBoostEnv(t)
	e.addProject(t, 1, "Published")
	for n := range 5 {
		e.addObject(t, n, 1, "Published")
	}
	first := e.snapshot(1, 1, codecs.StatusActive, 50, project(1), object(1))
	e.flush(t, first)
	before := e.cardRows(t)
	e.flush(t, first)
	e.flush(t, e.snapshot(2, 1, codecs.StatusPending, 50, project(1)))
	e.flush(t, e.snapshot(1, 2, codecs.StatusActive, 50, project(1), object(1)))
	e.flush(t, e.snapshot(3, 1, codecs.StatusActive, 20, object(2)), e.snapshot(3, 2, codecs.StatusCancelled, 20, object(2)))
	e.reconcile(t)
	_, err := e.sink.Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, e.cardRows(t))
	e.flush(t, e.snapshot(4, 1, codecs.StatusActive, 1, object(3)))
	changed := map[uuid.UUID]bool{}
	for card, row := range e.cardRows(t) {
		if before[card] != row {
			changed[card] = true
		}
	}
	require.Equal(t, map[uuid.UUID]bool{objectID(3): true}, changed)
}
