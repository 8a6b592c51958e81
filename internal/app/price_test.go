package app

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
	"github.com/pin-marketplace/vitrina/views"
	"github.com/pin-marketplace/vitrina/views/pricehistory"
)

// Ten slow questions about prices took every connection, and no fact was written meanwhile.
func TestQuestionsAndFactsShareNoConnection(t *testing.T) {
	dsn := devtest.ClickHouse(t) + "?max_open_conns=1"
	_, err := clickhouse.Migrate(t.Context(), clickhouse.Config{DSN: dsn})
	require.NoError(t, err)
	cfg := config.Default()
	cfg.Roles, cfg.State.Dir = []string{config.RolePrice, config.RoleAPI}, t.TempDir()
	cfg.Kafka.Brokers, cfg.ClickHouse.DSN = []string{"127.0.0.1:1"}, config.Secret(dsn)
	program, err := New(t.Context(), cfg, Deps{
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Tracing: telemetry.NoTracing(), Clock: time.Now,
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, program.Close()) }()

	busy, release := context.WithCancel(t.Context())
	rows, err := program.facts.Query(busy, "SELECT number, sleepEachRow(0.1) FROM system.numbers SETTINGS max_block_size = 1") // it has no end
	require.NoError(t, err)
	defer func() { _ = rows.Close() }() // it says that it was cancelled
	defer release()
	_, err = program.queries.PriceHistory(t.Context(), pricehistory.Query{PropertyObjectID: uuid.New(), Step: pricehistory.Day})
	var none *views.NotFoundError
	require.ErrorAs(t, err, &none, "an answer of the database")
}
