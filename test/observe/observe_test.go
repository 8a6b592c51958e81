package observe_test

import (
	"errors"
	"os"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
	"github.com/pin-marketplace/vitrina/test/observe"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

// What the ledger and its late views disagree about is a state that no model expects.
func TestViewsOfTheLedger(t *testing.T) {
	dsn := devtest.Postgres(t)
	db, err := postgres.OpenMigrator(dsn, postgres.PoolOptions{})
	require.NoError(t, err)
	_, err = postgres.Migrate(t.Context(), db)
	require.NoError(t, errors.Join(err, db.Close()))
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	exec := func(sql string, args ...any) {
		_, err := conn.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	want := map[string]string{}
	insert := func(state, nextTry, letterDue, says string) {
		id := uuid.New()
		if state != "" {
			exec(`INSERT INTO vitrina.views (at, record_offset, view_id, object_id, state, lane) VALUES (now(), 0, $1, $1, $2::vitrina.view_state, 1)`, id, state)
		}
		if nextTry != "" {
			exec(`INSERT INTO vitrina.late_views (view_id, since, next_try, letter_due, duration_seconds, view_source, record)
				VALUES ($1, now(), nullif($2, 'null')::timestamptz, nullif($3, 'null')::timestamptz, 1, 'Catalog', '')`, id, nextTry, letterDue)
		}
		if says != "" {
			want[id.String()] = says
		}
	}
	insert("counted", "", "", "")
	insert("counted", "", "", "")
	insert("skipped_delisted", "", "", "")
	insert("pending", "2026-11-30T00:00:00Z", "null", "pending")
	insert("dead", "null", "null", "dead")
	insert("dead", "null", "2026-11-30T00:00:00Z", "dead, its letter not sent")
	insert("dead", "", "", "dead without late_views")
	insert("", "null", "null", "in late_views alone")
	insert("counted", "null", "null", "in late_views alone")
	insert("pending", "null", "null", "pending, but late_views has its next try at no time")

	late, ledger, err := observe.Views(t.Context(), conn)
	require.NoError(t, err)
	require.Equal(t, want, late)
	require.Equal(t, map[string]int{"counted": 3, "skipped-delisted": 1, "pending": 2, "dead": 3}, ledger)
}
