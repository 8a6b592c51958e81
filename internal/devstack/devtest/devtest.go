// Package devtest gives tests real servers. A test binary that uses it hands its TestMain over:
//
//	func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }
//
// Servers that tests share are started at the first use and stopped by Main; each test gets a database of its own in them. A
// missing part fails the test with the command that installs it: nothing is skipped.
package devtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pin-marketplace/vitrina/internal/devstack"
)

// cleanupTimeout bounds what is done after a test.
const cleanupTimeout = 30 * time.Second

// shared are the servers that the tests of one binary share. It is a package variable because testing gives no other place
// between TestMain and the tests.
//
//nolint:gochecknoglobals // see above
var shared servers

type servers struct {
	mainRuns   bool
	postgres   lazy[*devstack.Postgres]
	clickhouse lazy[*devstack.ClickHouse]
	kafka      lazy[*devstack.Kafka]
}

type stopper interface {
	comparable
	Stop(ctx context.Context) error
}

// lazy is a server started at the first use.
type lazy[T stopper] struct {
	mu     sync.Mutex
	server T
	err    error
}

// get starts the server once; a failed start stays failed, so that each further test fails at once.
func (l *lazy[T]) get(start func(context.Context, devstack.Options) (T, error), opts devstack.Options) (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var none T
	if l.server == none && l.err == nil {
		l.server, l.err = start(context.Background(), opts)
	}
	return l.server, l.err
}

func (l *lazy[T]) stop(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var none T
	if l.server == none {
		return nil
	}
	return l.server.Stop(ctx)
}

// Main runs the tests and stops the servers that they shared. Its result is for os.Exit.
func Main(m *testing.M) int {
	if code, child := devstack.RunChild(); child {
		return code
	}
	shared.mainRuns = true
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := errors.Join(shared.postgres.stop(ctx), shared.clickhouse.stop(ctx), shared.kafka.stop(ctx)); err != nil {
		fmt.Fprintln(os.Stderr, "devtest: stop the shared servers:", err)
		return max(code, 1)
	}
	return code
}

// requireMain fails the test where nobody would stop the shared servers.
func requireMain(t testing.TB) {
	t.Helper()
	if !shared.mainRuns {
		t.Fatal("this package's tests use devtest, so it needs: func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }")
	}
}

// cleanup runs do after the test with a context of its own: the test's own has ended by then.
func cleanup(t testing.TB, what string, do func(context.Context) error) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := do(ctx); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	})
}

// freshName is a database name that no other test has.
func freshName() string { return "test_" + strings.ReplaceAll(uuid.NewString(), "-", "") }

// Postgres returns the DSN of a new empty database, dropped after the test, on a server that the test binary shares. That
// server does not fsync: a test that kills PostgreSQL uses PostgresServer.
func Postgres(t testing.TB) string {
	t.Helper()
	requireMain(t)
	server, err := shared.postgres.get(devstack.StartPostgres, devstack.Options{
		Settings: map[string]string{"fsync": "off", "synchronous_commit": "on", "full_page_writes": "off"},
	})
	if err != nil {
		t.Fatal(err)
	}
	name := freshName()
	dsn, err := server.CreateDatabase(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	cleanup(t, "drop the test's database", func(ctx context.Context) error { return server.DropDatabase(ctx, name) })
	return dsn
}

// PostgresServer returns a server of the test's own, to kill and restart, with fsync on.
func PostgresServer(t testing.TB) *devstack.Postgres {
	t.Helper()
	server, err := devstack.StartPostgres(t.Context(), devstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cleanup(t, "stop PostgreSQL", server.Stop)
	return server
}

// ClickHouse returns the DSN of a new empty database, dropped after the test, on a server that the test binary shares. That server
// comes back by itself after an abort (see devstack.ClickHouse).
func ClickHouse(t testing.TB) string {
	t.Helper()
	requireMain(t)
	server, err := shared.clickhouse.get(devstack.StartClickHouse, devstack.Options{AutoRestart: true})
	if err != nil {
		t.Fatal(err)
	}
	name := freshName()
	dsn, err := server.CreateDatabase(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	cleanup(t, "drop the test's database", func(ctx context.Context) error { return server.DropDatabase(ctx, name) })
	return dsn
}

// ClickHouseServer returns a server of the test's own, to kill and restart. It does not come back by itself.
func ClickHouseServer(t testing.TB) *devstack.ClickHouse {
	t.Helper()
	requireMain(t)
	server, err := devstack.StartClickHouse(t.Context(), devstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cleanup(t, "stop ClickHouse", server.Stop)
	return server
}

// Embedded returns the address of an in-process broker of the test's own: empty, in memory, stopped after the test.
func Embedded(t testing.TB) []string {
	t.Helper()
	return EmbeddedServer(t, devstack.Options{}).Brokers()
}

// EmbeddedServer returns an in-process broker of the test's own with the given options (a Dir makes it survive Restart).
func EmbeddedServer(t testing.TB, opts devstack.Options) *devstack.Embedded {
	t.Helper()
	broker, err := devstack.StartEmbedded(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	cleanup(t, "stop the embedded broker", broker.Stop)
	return broker
}

// Kafka returns the address of an Apache Kafka that the test binary shares: tests use topics and groups of their own.
func Kafka(t testing.TB) []string {
	t.Helper()
	requireMain(t)
	server, err := shared.kafka.get(devstack.StartKafka, devstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return server.Brokers()
}

// KafkaServer returns an Apache Kafka of the test's own, to kill and restart.
func KafkaServer(t testing.TB) *devstack.Kafka {
	t.Helper()
	server, err := devstack.StartKafka(t.Context(), devstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cleanup(t, "stop Apache Kafka", server.Stop)
	return server
}
