package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

// With any dependency away, at the start or later, an instance waits and says so; SIGTERM still ends it with exit code 0 within
// 15 s; when the dependency is back everything is applied, nothing was dead-lettered, nothing is counted twice.
func TestAnOutageOfAnyDependencyIsWaitedForAndTheStopStaysBounded(t *testing.T) {
	s := harness.Start(t)
	m := model.New(time.Now())
	seed := uint64(20)
	send := func() {
		seed++
		o := generate.Defaults()
		o.Seed, o.Start, o.Span = seed, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
		o.Views, o.Purchases, o.Prices, o.Projects, o.Objects, o.LateCards = 3_000, 200, 500, 10, 300, 0
		require.NoError(t, s.Send(t.Context(), o, m, 0, "crc32"))
	}
	type part struct {
		name string
		kill func() error
		back func() error
	}
	parts := []part{
		{"PostgreSQL", s.Postgres.Kill, func() error { return s.Postgres.Restart(t.Context()) }},
		{"ClickHouse", s.ClickHouse.Kill, func() error { return s.ClickHouse.Restart(t.Context()) }},
		{"Kafka", s.Kafka.Kill, func() error { return s.Kafka.Restart(t.Context()) }},
	}
	i := s.Instance("one", nil)
	i.WaitReady()
	for _, p := range parts {
		send() // work in flight when the part goes away
		require.NoError(t, p.kill())
		took, err := i.Stop()
		require.NoErrorf(t, err, "with %s away the instance ends with exit code 0\n%s", p.name, i.Tail(20))
		require.Lessf(t, took, 15*time.Second, "with %s away", p.name)

		i.Start() // with the part still away
		s.Eventually(time.Minute, func() (bool, string) {
			status, _ := i.Get("/healthz")
			return status == 200, "alive with " + p.name + " away"
		})
		took, err = i.Stop()
		require.NoErrorf(t, err, "started with %s away, the instance ends with exit code 0\n%s", p.name, i.Tail(20))
		require.Lessf(t, took, 15*time.Second, "started with %s away", p.name)

		i.Start()
		require.NoError(t, p.back())
		i.WaitReady()
		s.WaitEqual(3*time.Minute, m.Expected())
	}
	require.Empty(t, m.Expected().DeadLetters)
}
