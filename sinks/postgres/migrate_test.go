package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"golang.org/x/sync/errgroup"

	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
)

func TestMigrateTwiceAndAtOnce(t *testing.T) {
	dsn := devtest.Postgres(t)
	db := openMigrator(t, dsn)

	before, err := MigrationStatus(t.Context(), db)
	require.NoError(t, err)
	require.NotEmpty(t, before)
	for _, m := range before {
		require.False(t, m.Applied, m.Name)
	}

	var group errgroup.Group
	for range 3 {
		other := openMigrator(t, dsn)
		group.Go(func() error {
			_, err := Migrate(t.Context(), other)
			return err
		})
	}
	require.NoError(t, group.Wait())

	applied, err := Migrate(t.Context(), db)
	require.NoError(t, err)
	require.Empty(t, applied, "the second run has nothing to do")
	after, err := MigrationStatus(t.Context(), db)
	require.NoError(t, err)
	require.Len(t, after, len(before))
	for _, m := range after {
		require.True(t, m.Applied, m.Name)
		require.False(t, m.AppliedAt.IsZero(), m.Name)
	}
}

// The catalog's own tables, or views that map them, are left as they are.
func TestMigrateLeavesForeignCards(t *testing.T) {
	dsn := devtest.Postgres(t)
	pool := newPool(t, dsn, PoolOptions{})
	exec(t, pool, `CREATE SCHEMA catalog`)
	exec(t, pool, `CREATE SCHEMA shop`)
	exec(t, pool, `CREATE TABLE shop.projects (pid uuid PRIMARY KEY, state text NOT NULL, boost integer NOT NULL DEFAULT 0, views bigint NOT NULL DEFAULT 0,
		score double precision NOT NULL DEFAULT 0, lock bigint NOT NULL DEFAULT 1, changed timestamptz NOT NULL DEFAULT now())`)
	exec(t, pool, `CREATE VIEW catalog.project_cards AS SELECT pid AS id, state AS status, boost AS promotion_boost, views AS popularity_views,
		score AS popularity_score, NULL::numeric AS min_price, lock AS row_version, changed AS updated_at FROM shop.projects`)
	exec(t, pool, `CREATE TABLE catalog.property_object_cards (id uuid PRIMARY KEY, project_id uuid NOT NULL, status text NOT NULL, promotion_boost integer NOT NULL DEFAULT 0,
		popularity_views bigint NOT NULL DEFAULT 0, popularity_score double precision NOT NULL DEFAULT 0, price numeric(18,2),
		row_version bigint NOT NULL DEFAULT 1, updated_at timestamptz NOT NULL DEFAULT now(), extra text)`)

	_, err := Migrate(t.Context(), openMigrator(t, dsn))
	require.NoError(t, err)

	require.Equal(t, "v", scalar[string](t.Context(), t, pool, `SELECT relkind::text FROM pg_class WHERE oid = 'catalog.project_cards'::regclass`))
	require.Equal(t, int64(1), scalar[int64](t.Context(), t, pool, `SELECT count(*) FROM pg_index WHERE indrelid = 'catalog.property_object_cards'::regclass`),
		"no index is put on a table of others")
}

func TestMigrationsGoDownAndUpAgain(t *testing.T) {
	db := openMigrator(t, devtest.Postgres(t))
	_, err := Migrate(t.Context(), db)
	require.NoError(t, err)
	provider, err := newProvider(db)
	require.NoError(t, err)
	_, err = provider.DownTo(t.Context(), 0)
	require.NoError(t, err)
	var left int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_class WHERE relnamespace = 'vitrina'::regnamespace AND relkind IN ('r', 'S') AND relname NOT LIKE 'schema_migrations%'`).Scan(&left))
	require.Zero(t, left)
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_proc WHERE pronamespace = 'vitrina'::regnamespace`).Scan(&left))
	require.Zero(t, left)
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM catalog.project_cards`).Scan(&left), "cards are never dropped")
	_, err = Migrate(t.Context(), db)
	require.NoError(t, err)
}

func TestMigrateExplainsAFailure(t *testing.T) {
	dsn := devtest.Postgres(t)
	pool := newPool(t, dsn, PoolOptions{})
	exec(t, pool, `CREATE SCHEMA vitrina`)
	exec(t, pool, `CREATE TABLE vitrina.projections (something text)`)
	_, err := Migrate(t.Context(), openMigrator(t, dsn))
	require.ErrorContains(t, err, "migration 00002_projections.sql failed")
	require.ErrorContains(t, err, "already exists")
	require.ErrorContains(t, err, "vitrina migrate up")
}

func TestPoolSettingsBindTheSession(t *testing.T) {
	pool := newPool(t, devtest.Postgres(t)+"&lock_timeout=1234", PoolOptions{StatementTimeout: 7 * time.Second})
	for name, want := range map[string]string{
		"statement_timeout": "7s", "lock_timeout": "1234ms", "idle_in_transaction_session_timeout": "5s", "application_name": "vitrina",
		"default_transaction_isolation": "read committed", "plan_cache_mode": "force_generic_plan",
	} {
		require.Equal(t, want, scalar[string](t.Context(), t, pool, `SELECT current_setting($1)`, name), name)
	}
}

// Statements are spans in the trace of whoever runs them.
func TestPoolTracesStatements(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(recorder))
	pool := newPool(t, devtest.Postgres(t), PoolOptions{Tracer: provider})
	ctx, parent := provider.Tracer("test").Start(t.Context(), "flush")
	require.Equal(t, 1, scalar[int](ctx, t, pool, `SELECT 1`))
	parent.End()
	found := false
	for _, span := range recorder.Ended() {
		found = found || span.SpanContext().TraceID() == parent.SpanContext().TraceID() && strings.Contains(span.Name(), "SELECT")
	}
	require.True(t, found)
}

// A role whose commits need not be durable would lose batches whose offsets are committed.
func TestPoolDemandsDurableCommits(t *testing.T) {
	pool := newPool(t, devtest.Postgres(t)+"&synchronous_commit=off", PoolOptions{})
	require.Equal(t, "on", scalar[string](t.Context(), t, pool, `SELECT current_setting('synchronous_commit')`))
	stronger := newPool(t, devtest.Postgres(t)+"&synchronous_commit=remote_apply", PoolOptions{})
	require.Equal(t, "remote_apply", scalar[string](t.Context(), t, stronger, `SELECT current_setting('synchronous_commit')`))
}
