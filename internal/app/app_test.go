package app_test

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

const patience = 30 * time.Second

// start runs a program with one role whose database is away, until the test ends.
func start(t *testing.T, role string, change func(*config.Config)) *prometheus.Registry {
	t.Helper()
	cfg := config.Default()
	cfg.Roles, cfg.Instance.ID, cfg.State.Dir = []string{role}, "one", t.TempDir()
	cfg.Kafka.Brokers, cfg.Postgres.DSN = []string{"127.0.0.1:1"}, "postgres://u@127.0.0.1:1/d"
	cfg.Backoff.Min, cfg.Backoff.Max = 10*time.Millisecond, 10*time.Millisecond
	cfg.Runtime.LagInterval = 50 * time.Millisecond
	change(cfg)
	registry := prometheus.NewRegistry()
	program, err := app.New(t.Context(), cfg, app.Deps{
		Logger: slog.New(slog.DiscardHandler), Registerer: registry, Tracing: telemetry.NoTracing(), Clock: time.Now,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- program.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, program.Close())
	})
	return registry
}

// value is that of the one series with the given label, -1 where there is none.
func value(t require.TestingT, registry *prometheus.Registry, name, label, is string) float64 {
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label && l.GetValue() == is {
					return m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
	}
	return -1
}

// The lag stood still while its role was held, so that nobody saw what piled up behind a feature flag.
func TestTheLagOfAHeldRoleIsTrue(t *testing.T) {
	brokers := devtest.Embedded(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(config.TopicPurchaseChanged))
	require.NoError(t, err)
	defer client.Close()
	_, err = kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, config.TopicPurchaseChanged)
	require.NoError(t, err)
	c, ok := config.ConsumerOf(config.RolePromotion)
	require.True(t, ok)
	registry := start(t, c.Role, func(cfg *config.Config) {
		cfg.Kafka.Brokers, cfg.Catalog.Promotions.Enabled = brokers, false
	})
	for n := range 3 {
		require.NoError(t, client.ProduceSync(t.Context(), kgo.StringRecord("{}"), kgo.StringRecord("{}")).FirstErr(), n)
		require.Eventually(t, func() bool {
			return value(t, registry, "vitrina_consumer_group_lag", "topic", c.Topic) == float64(2*(n+1)) &&
				value(t, registry, "vitrina_consumer_group_held", "group", c.Group) == 1
		}, patience, 20*time.Millisecond)
	}
}

// A role that cannot start was counted nowhere: only the restarts of its processor were.
func TestFailuresOfARoleAreCounted(t *testing.T) {
	registry := start(t, config.RolePopularity, func(*config.Config) {})
	require.Eventually(t, func() bool {
		return value(t, registry, "vitrina_role_restarts_total", "role", config.RolePopularity) >= 2
	}, patience, 20*time.Millisecond)
}
