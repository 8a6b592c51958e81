package app

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/devstack"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

// The dead-letter topic was deleted: the partitions with broken records stood still, and the role was ready and said nothing.
func TestARoleWhoseDeadLettersCannotBeWrittenIsNotWell(t *testing.T) {
	broker := devtest.EmbeddedServer(t, devstack.Options{})
	cfg := config.Default()
	cfg.Backoff.Min, cfg.Backoff.Max = 10*time.Millisecond, 100*time.Millisecond
	a := &App{cfg: cfg, deps: Deps{Logger: slog.New(slog.DiscardHandler), Clock: time.Now}}
	a.events = telemetry.NewEventLog(a.deps.Logger, 0, time.Now)
	a.ready = telemetry.NewRoles(prometheus.NewRegistry(), nil, nil, nil, nil)
	var err error
	a.client, err = kgo.NewClient(append(deadletter.ClientOptions(), kgo.SeedBrokers(broker.Brokers()...), kgo.MetadataMinAge(10*time.Millisecond))...)
	require.NoError(t, err)
	t.Cleanup(a.client.Close)
	c := config.PopularityConsumer()
	var health sinkHealth
	letters, err := a.letters(c, &health, func() {}, func() {})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- letters.Run(ctx) }()
	written := make(chan error, 1)
	letter := deadletter.Letter{Code: codecs.CodeUndecodable, Reason: "broken", Record: &record.Record{ID: record.ID{Topic: c.Topic}}}
	require.NoError(t, letters.Submit(ctx, letter, func(err error) { written <- err }))

	later := func() string { return health.trouble(time.Now().Add(unwellAfter)) }
	require.Eventually(t, func() bool { return later() != "" }, time.Minute, 10*time.Millisecond)
	require.Contains(t, later(), "its dead letters cannot be written since ")
	require.Contains(t, later(), "the dead-letter topic "+c.DLQ+" does not exist; create it with `vitrina topics apply`")
	require.Empty(t, health.trouble(time.Now()), "a restart of a broker is shorter")

	_, err = kadm.NewClient(a.client).CreateTopic(ctx, 1, -1, nil, c.DLQ)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(written) > 0 }, time.Minute, 10*time.Millisecond)
	require.NoError(t, <-written)
	require.Eventually(t, func() bool { return later() == "" }, time.Minute, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}
