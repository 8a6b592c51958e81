package postgres

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/sinks/batch"
)

func TestEpochFencesWriters(t *testing.T) {
	pool := migrated(t)
	require1 := func(epoch int64) error {
		return Transact(t.Context(), func(ctx context.Context) error {
			_, err := pool.Exec(ctx, `SELECT vitrina.require_epoch($1, $2)`, Popularity, epoch)
			return err
		}, nil)
	}
	p, err := ReadProjection(t.Context(), pool, Popularity)
	require.NoError(t, err)
	require.Equal(t, Projection{Name: Popularity, Epoch: 1, Open: true}, p)
	require.NoError(t, require1(1))

	raised, err := RaiseEpoch(t.Context(), pool, Popularity, "rebuild 42")
	require.NoError(t, err)
	require.Equal(t, Projection{Name: Popularity, Epoch: 2}, raised)
	require.ErrorIs(t, require1(1), batch.ErrFatal)
	require.ErrorIs(t, require1(2), batch.ErrFatal, "closed until the reset reopens it")

	require.Error(t, Reopen(t.Context(), pool, Popularity, 1), "another rebuild has begun")
	require.NoError(t, Reopen(t.Context(), pool, Popularity, 2))
	require.NoError(t, require1(2))
	require.ErrorIs(t, require1(1), batch.ErrFatal)

	_, err = ReadProjection(t.Context(), pool, "nonsense")
	require.ErrorIs(t, err, ErrNoProjection)
}

// RaiseEpoch waits for a writer inside its transaction, so that nothing of the old epoch commits after it.
func TestRaiseEpochWaitsForWriters(t *testing.T) {
	pool := migrated(t)
	writer, err := pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = writer.Rollback(context.Background()) }) // or a failure below would wait for ever for the pool to close
	_, err = writer.Exec(t.Context(), `SELECT vitrina.require_epoch($1, 1)`, PromotionBoost)
	require.NoError(t, err)

	_, err = pool.Exec(t.Context(), `SET lock_timeout = '100ms'; UPDATE vitrina.projections SET epoch = epoch + 1 WHERE name = 'promotion-boost'`, pgx.QueryExecModeSimpleProtocol)
	require.ErrorContains(t, err, "lock timeout")
	require.NoError(t, writer.Commit(t.Context()))
	_, err = RaiseEpoch(t.Context(), pool, PromotionBoost, "")
	require.NoError(t, err)
}

func TestFaultOf(t *testing.T) {
	for code, want := range map[string]Fault{
		"40001": Collision, "40P01": Collision, "22003": Rejected, "23514": Rejected, "VT001": Fenced,
		"57P01": Outage, "55P03": Outage, "57014": Slow, "42P01": Outage, "25P03": Outage,
	} {
		require.Equal(t, want, FaultOf(errors.Join(&pgconn.PgError{Code: code})), code)
	}
	require.Equal(t, Outage, FaultOf(errors.New("connection refused")))
}

func TestTransactRetriesCollisionsOnly(t *testing.T) {
	deadlock := &pgconn.PgError{Code: "40P01"}
	tries, collided := 0, 0
	do := func(failures int, err error) func(context.Context) error {
		tries = 0
		return func(context.Context) error {
			if tries++; tries <= failures {
				return err
			}
			return nil
		}
	}
	require.NoError(t, Transact(t.Context(), do(3, deadlock), func(error) { collided++ }))
	require.Equal(t, 4, tries)
	require.Equal(t, 3, collided)
	require.ErrorIs(t, Transact(t.Context(), do(99, deadlock), nil), deadlock)
	require.Equal(t, collisionTries, tries)
	require.Error(t, Transact(t.Context(), do(1, errors.New("connection refused")), nil))
	require.Equal(t, 1, tries)
}

func TestBisectRejectsTheGuiltyOnly(t *testing.T) {
	check := &pgconn.PgError{Code: "23514"}
	bad := map[int]bool{3: true, 7: true, 8: true}
	var applied, rejected []int
	apply := func(_ context.Context, values []int) error {
		for _, v := range values {
			if bad[v] {
				return check
			}
		}
		applied = append(applied, values...)
		return nil
	}
	reject := func(v int, err error) {
		require.ErrorIs(t, err, check)
		rejected = append(rejected, v)
	}
	require.NoError(t, Bisect(t.Context(), []int{1, 2, 3, 4, 5, 6, 7, 8, 9}, apply, reject))
	require.Equal(t, []int{1, 2, 4, 5, 6, 9}, applied, "in their order")
	require.Equal(t, []int{3, 7, 8}, rejected)

	// Too much for the statement timeout: halved until it fits; one value that does not fit alone is an outage.
	var sizes []int
	slow := &pgconn.PgError{Code: "57014"}
	limited := func(limit int) func(context.Context, []int) error {
		return func(_ context.Context, values []int) error {
			if len(values) > limit {
				return slow
			}
			sizes = append(sizes, len(values))
			return nil
		}
	}
	require.NoError(t, Bisect(t.Context(), []int{1, 2, 3, 4, 5, 6, 7}, limited(2), reject))
	require.Equal(t, []int{1, 2, 2, 2}, sizes)
	require.ErrorIs(t, Bisect(t.Context(), []int{1, 2}, limited(0), reject), slow)

	outage := errors.New("connection refused")
	rejected = nil
	require.ErrorIs(t, Bisect(t.Context(), []int{1, 2}, func(context.Context, []int) error { return outage }, reject), outage)
	require.Empty(t, rejected)
}
