package postgres

import (
	"context"
	"database/sql"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

// openMigrator returns a handle on the database that is closed with the test.
func openMigrator(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := OpenMigrator(dsn, PoolOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// newPool returns a pool on the database that is closed with the test.
func newPool(t testing.TB, dsn string, opts PoolOptions) *pgxpool.Pool {
	t.Helper()
	pool, err := NewPool(t.Context(), dsn, opts)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// migrated returns a pool on a fresh, migrated database.
func migrated(t testing.TB) *pgxpool.Pool {
	t.Helper()
	dsn := devtest.Postgres(t)
	_, err := Migrate(t.Context(), openMigrator(t, dsn))
	require.NoError(t, err)
	return newPool(t, dsn, PoolOptions{})
}

// exec runs a statement that must succeed.
func exec(t testing.TB, q Querier, sql string, args ...any) {
	t.Helper()
	_, err := q.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// scalar returns the single value of a query.
func scalar[T any](ctx context.Context, t testing.TB, q Querier, sql string, args ...any) T {
	t.Helper()
	var v T
	require.NoError(t, q.QueryRow(ctx, sql, args...).Scan(&v))
	return v
}
