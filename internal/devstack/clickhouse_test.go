package devstack_test

import (
	"context"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/devstack"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
)

func openClickHouse(t *testing.T, dsn string) driver.Conn {
	t.Helper()
	options, err := clickhouse.ParseDSN(dsn)
	require.NoError(t, err)
	conn, err := clickhouse.Open(options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

func countRows(t *testing.T, dsn string) uint64 {
	t.Helper()
	var n uint64
	require.NoError(t, openClickHouse(t, dsn).QueryRow(t.Context(), "SELECT count() FROM kept").Scan(&n))
	return n
}

func TestClickHouseKeepsRowsAndPortAcrossCrashAndRestart(t *testing.T) {
	server := devtest.ClickHouseServer(t)
	dsn, err := server.CreateDatabase(t.Context(), "shop")
	require.NoError(t, err)
	conn := openClickHouse(t, dsn)
	require.NoError(t, conn.Exec(t.Context(), "CREATE TABLE kept (n UInt64) ENGINE = MergeTree ORDER BY n"))
	batch, err := conn.PrepareBatch(t.Context(), "INSERT INTO kept")
	require.NoError(t, err)
	for n := range uint64(1000) {
		require.NoError(t, batch.Append(n))
	}
	require.NoError(t, batch.Send())

	require.NoError(t, server.Kill())
	require.Error(t, conn.Ping(t.Context()), "a killed server must not answer")
	require.NoError(t, server.Restart(t.Context()))
	require.EqualValues(t, 1000, countRows(t, dsn))
	require.NoError(t, server.Restart(t.Context()))
	require.EqualValues(t, 1000, countRows(t, dsn))
}

func TestClickHouseComesBackAfterItsOwnAbort(t *testing.T) {
	server, err := devstack.StartClickHouse(t.Context(), devstack.Options{AutoRestart: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Stop(context.WithoutCancel(t.Context()))) }()
	exited := server.Exited()
	options, err := clickhouse.ParseDSN(server.DSN())
	require.NoError(t, err)
	options.Auth.Database = "missing"
	conn, err := clickhouse.Open(options)
	require.NoError(t, err)
	require.ErrorContains(t, conn.Ping(t.Context()), "missing")
	require.NoError(t, conn.Close())
	select {
	case <-exited: // should a new version of the engine no longer abort, this test and AutoRestart can go
	case <-time.After(20 * time.Second):
		t.Fatal("the engine did not abort")
	}
	require.Eventually(t, func() bool { return openClickHouse(t, server.DSN()).Ping(t.Context()) == nil }, 20*time.Second, 100*time.Millisecond)
}

func TestClickHouseDatabasesOfTestsAreFreshAndTheirOwn(t *testing.T) {
	first, second := devtest.ClickHouse(t), devtest.ClickHouse(t)
	require.NoError(t, openClickHouse(t, first).Exec(t.Context(), "CREATE TABLE kept (n UInt64) ENGINE = MergeTree ORDER BY n"))
	require.Error(t, openClickHouse(t, second).Exec(t.Context(), "SELECT * FROM kept"))
	var async string
	require.NoError(t, openClickHouse(t, first).QueryRow(t.Context(), "SELECT toString(getSetting('async_insert'))").Scan(&async))
	require.Equal(t, "false", async)
}
