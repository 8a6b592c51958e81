// Package e2e runs the program as its users do: real instances on Apache Kafka, PostgreSQL and ClickHouse.
package e2e

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

// Two instances, one of them killed with SIGKILL and restarted three times while 100,000 views with 5 % duplicates, 5,000
// purchase events and 20,000 price events flow: every counter, boost and fact equals the independent model.
func TestEveryCounterBoostAndFactEqualsTheModelThroughThreeKills(t *testing.T) {
	s := harness.Start(t)
	stays := s.Instance("stays", nil)
	dies := s.Instance("dies", nil)
	stays.WaitReady()
	dies.WaitReady()

	o := generate.Defaults()
	o.Seed, o.Start, o.Span = 7, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects = 100_000, 5_000, 20_000, 100, 5_000
	o.Duplicates, o.Malformed = 0.05, 1
	m := model.New(time.Now())
	sent := make(chan error, 1)
	go func() { sent <- s.Send(t.Context(), o, m, 5_000, "crc32") }()

	for kill := range 3 {
		// Once it has work, so that each kill meets records in flight.
		counted := counted(t, s)
		s.Eventually(2*time.Minute, func() (bool, string) { return counted() > int64(5_000*(kill+1)), "too few views are counted" })
		dies.Kill()
		if kill == 1 {
			dies.LoseDisk()
		}
		dies.Start()
		dies.WaitReady()
	}
	require.NoError(t, <-sent)
	s.WaitEqual(5*time.Minute, m.Expected())

	for _, i := range []*harness.Instance{stays, dies} {
		took, err := i.Stop()
		require.NoErrorf(t, err, "instance %s ends with exit code 0 after SIGTERM", i.Name)
		require.Lessf(t, took, 15*time.Second, "instance %s", i.Name)
	}
}

// counted returns a function that sums the counters of all object cards.
func counted(t *testing.T, s *harness.System) func() int64 {
	return func() int64 {
		var sum int64
		require.NoError(t, s.Pool.QueryRow(t.Context(), `SELECT coalesce(sum(popularity_views), 0) FROM catalog.property_object_cards`).Scan(&sum))
		return sum
	}
}
