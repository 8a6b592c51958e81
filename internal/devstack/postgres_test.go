package devstack_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/devstack"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
)

// query runs one statement on a connection of its own and returns its single value, if it has one.
func query[T any](t *testing.T, dsn, sql string) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	var value T
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&value))
	return value
}

func exec(t *testing.T, dsn string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	for _, sql := range statements {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
}

func TestPostgresKeepsCommittedRowsAndPortAcrossCrashAndRestart(t *testing.T) {
	server := devtest.PostgresServer(t)
	dsn := server.DSN()
	exec(t, dsn, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (1)")

	require.NoError(t, server.Kill())
	require.Zero(t, server.PID())
	_, err := pgx.Connect(t.Context(), dsn)
	require.Error(t, err, "a killed server must not answer")
	require.NoError(t, server.Restart(t.Context()))
	require.Equal(t, dsn, server.DSN())
	require.Equal(t, 1, query[int](t, dsn, "SELECT n FROM kept"))

	before := server.PID()
	require.NoError(t, server.Restart(t.Context()))
	require.NotEqual(t, before, server.PID())
	require.Equal(t, 1, query[int](t, dsn, "SELECT n FROM kept"))
	require.Equal(t, "on", query[string](t, dsn, "SHOW fsync"))
}

func TestPostgresDataInADirectorySurviveStop(t *testing.T) {
	dir := reachableDir(t)
	opts := devstack.Options{Dir: dir, Settings: map[string]string{"work_mem": "5MB"}}
	server, err := devstack.StartPostgres(t.Context(), opts)
	require.NoError(t, err)
	exec(t, server.DSN(), "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (7)")

	_, err = devstack.StartPostgres(t.Context(), opts)
	require.ErrorContains(t, err, "already runs in another process")

	require.NoError(t, server.Stop(t.Context()))
	require.NoError(t, server.Stop(t.Context()), "a second stop is no error")
	require.Error(t, server.Restart(t.Context()), "a stopped server has given its directory up")

	server, err = devstack.StartPostgres(t.Context(), opts)
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Stop(context.WithoutCancel(t.Context()))) }()
	require.Equal(t, 7, query[int](t, server.DSN(), "SELECT n FROM kept"))
	require.Equal(t, "5MB", query[string](t, server.DSN(), "SHOW work_mem"))
}

func TestPostgresRefusesAWrongPassword(t *testing.T) {
	config, err := pgx.ParseConfig(devtest.Postgres(t))
	require.NoError(t, err)
	config.Password = "guess"
	_, err = pgx.ConnectConfig(t.Context(), config)
	require.ErrorContains(t, err, "password authentication failed")
}

func TestDatabasesOfTestsAreFreshAndTheirOwn(t *testing.T) {
	first, second := devtest.Postgres(t), devtest.Postgres(t)
	require.NotEqual(t, first, second)
	exec(t, first, "CREATE SCHEMA vitrina")
	require.Equal(t, 0, query[int](t, second, "SELECT count(*) FROM pg_namespace WHERE nspname = 'vitrina'"))
}

func TestABadSettingIsReportedWithTheServersOwnWords(t *testing.T) {
	_, err := devstack.StartPostgres(t.Context(), devstack.Options{Settings: map[string]string{"no_such_setting": "1"}})
	require.ErrorContains(t, err, `unrecognized configuration parameter "no_such_setting"`)
}

// reachableDir is a directory that a server under another uid can enter, which t.TempDir is not.
func reachableDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "devstack-test-*") //nolint:usetesting // the parent of t.TempDir is closed to other users
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}
