package e2e

import (
	"strings"
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

// No log line holds a UserId, an AnonymousId or a SessionId, nor a password.
func TestNoLogLineHoldsPersonalDataOrASecret(t *testing.T) {
	s := harness.Start(t, "VITRINA_LOG_LEVEL=debug", "VITRINA_LOG_EVENTS_PER_SECOND=0")
	i := s.Instance("one", nil)
	i.WaitReady()
	o := generate.Defaults()
	o.Seed, o.Start, o.Span = 31, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects, o.Malformed = 500, 50, 50, 5, 50, 1
	m := model.New(time.Now())
	require.NoError(t, s.Send(t.Context(), o, m, 0, "crc32"))
	s.WaitEqual(2*time.Minute, m.Expected())

	secrets := personalValues(t, s)
	require.Greater(t, len(secrets), 200)
	secrets[harness.AdminToken] = "the admin token"
	for _, dsn := range []string{s.Postgres.DSN(), s.ClickHouse.DSN()} {
		_, rest, found := strings.Cut(dsn, "://")
		require.True(t, found)
		user, _, _ := strings.Cut(rest, "@")
		_, password, _ := strings.Cut(user, ":")
		require.NotEmpty(t, password)
		secrets[password] = "a password"
	}
	log := strings.ToLower(strings.Join(i.Log(), "\n"))
	require.Contains(t, log, `"event":"consumed"`)
	for value, what := range secrets {
		if strings.Contains(log, strings.ToLower(value)) {
			t.Errorf("%s stands in the log: %s", what, value)
		}
	}
	for _, path := range []string{"/metrics", "/readyz", "/api/v1/pipelines"} {
		_, body := i.Get(path)
		for value, what := range secrets {
			if strings.Contains(strings.ToLower(string(body)), strings.ToLower(value)) {
				t.Errorf("%s stands in %s: %s", what, path, value)
			}
		}
	}
}
