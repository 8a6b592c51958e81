package e2e

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

// sized reads how large a run shall be: the full size of the issue is for a machine that is free.
func sized(t *testing.T, variable string, small int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return small
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, variable)
	return n
}

// Prices with duplicates, poison and out-of-order times, instances killed and ClickHouse killed meanwhile: every fact once for
// readers, equal to the model to the last decimal; the whole topic consumed again, twice, changes nothing for readers. With
// VITRINA_PRICE_EVENTS=200000 it is the run of the size that the issue names.
func TestEveryFactOnceThroughKillsAndReplays(t *testing.T) {
	events := sized(t, "VITRINA_PRICE_EVENTS", 12_000)
	s := harness.Start(t)
	instances := []*harness.Instance{s.Instance("one", nil), s.Instance("two", nil)}
	for _, i := range instances {
		i.WaitReady()
	}
	o := generate.Defaults()
	o.Seed, o.Start, o.Span = 61, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects = 0, 0, events, 20, 2_000
	o.Duplicates, o.Reordered, o.Malformed, o.LateCards = 0.1, 0.1, 3, 0
	m := model.New(time.Now())
	sent := make(chan error, 1)
	go func() { sent <- s.Send(t.Context(), o, m, float64(events)/12, "murmur2") }()
	facts := s.Facts()
	inserted := func() uint64 {
		var n uint64
		if err := facts.QueryRow(t.Context(), `SELECT count() FROM property_object_price_history_facts`).Scan(&n); err != nil {
			return 0 // ClickHouse is just coming back
		}
		return n
	}
	for n := range 4 {
		want := uint64(events * (n + 1) / 6) //nolint:gosec // small and positive
		s.Eventually(3*time.Minute, func() (bool, string) { got := inserted(); return got >= want, fmt.Sprintf("%d of %d rows", got, want) })
		if n%2 == 0 {
			instances[n/2].Kill()
			instances[n/2].Start()
		} else {
			require.NoError(t, s.ClickHouse.Kill())
			require.NoError(t, s.ClickHouse.Restart(t.Context()))
		}
	}
	require.NoError(t, <-sent)
	s.WaitEqual(3*time.Minute, m.Expected())
	for range 2 {
		s.Run("replay", "price-history", "--from-offset", "0")
		s.WaitCommitted(3*time.Minute, "invest-analytics-price-history", harness.Prices)
		s.WaitEqual(time.Minute, m.Expected())
	}
}

// While ClickHouse is away under full input, memory stays bounded, no offset moves, nothing is dead-lettered; then it catches up
// by itself. VITRINA_OUTAGE_SECONDS=120 is the outage that the issue names.
func TestMemoryStaysBoundedWhileClickHouseIsAway(t *testing.T) {
	seconds := sized(t, "VITRINA_OUTAGE_SECONDS", 8)
	s := harness.Start(t)
	i := s.Instance("one", []string{"--roles", "price"})
	i.WaitReady()
	require.NoError(t, s.ClickHouse.Kill())
	o := generate.Defaults()
	o.Seed, o.Start, o.Span = 62, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects, o.Duplicates, o.LateCards = 0, 0, 100_000, 20, 2_000, 0, 0
	m := model.New(time.Now())
	require.NoError(t, s.Send(t.Context(), o, m, 0, "crc32"))
	worst := 0.0
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); <-time.After(time.Second) { // the outage has a length
		memory, found := i.Metric("process_resident_memory_bytes")
		require.True(t, found)
		worst = max(worst, memory)
	}
	t.Logf("worst resident memory during %d s without ClickHouse under 100,000 events: %.0f MB", seconds, worst/1e6)
	require.Less(t, worst, 400e6)
	lags, err := s.Admin().Lag(t.Context(), "invest-analytics-price-history")
	require.NoError(t, err)
	require.EqualValues(t, 100_000, lags["invest-analytics-price-history"].Lag.Total(), "no offset moves")
	dead, _ := i.Metric("invest_analytics_price_dlq_total")
	require.Zero(t, dead)
	require.NoError(t, s.ClickHouse.Restart(t.Context()))
	s.WaitEqual(3*time.Minute, m.Expected())
}
