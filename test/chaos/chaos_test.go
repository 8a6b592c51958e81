// Package chaos breaks everything that can break while events flow, and compares the end with the independent model. The short
// run is part of `make test`; `make chaos` is the long one.
package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

// plan is how much goes on and how much breaks.
type plan struct {
	views, purchases, prices                     int
	kills, stalls, postgres, brokers, clickhouse int
	patience                                     time.Duration
	stall                                        time.Duration // longer than the session timeout of 10 s
}

// choose makes the plan of the wanted length: bounded in make test, in full in make chaos.
func choose(t *testing.T) plan {
	t.Helper()
	text := os.Getenv("VITRINA_CHAOS_DURATION")
	if text == "" {
		text = "60s"
	}
	length, err := time.ParseDuration(text)
	require.NoError(t, err, "VITRINA_CHAOS_DURATION")
	if length < 5*time.Minute {
		return plan{views: 60_000, purchases: 2_000, prices: 6_000, kills: 2, stalls: 1, postgres: 1, brokers: 1, clickhouse: 1,
			patience: 5 * time.Minute, stall: 14 * time.Second}
	}
	return plan{views: 300_000, purchases: 10_000, prices: 40_000, kills: 10, stalls: 3, postgres: 2, brokers: 2, clickhouse: 2,
		patience: 15 * time.Minute, stall: 20 * time.Second}
}

// Instances are killed with SIGKILL (some lose their disk), stopped with SIGSTOP for longer than the session timeout, PostgreSQL
// is restarted with an immediate shutdown, broker and ClickHouse are killed, while views, purchases and prices with duplicates, late
// cards and malformed records flow. Nothing may be lost and nothing counted twice.
func TestNothingIsLostAndNothingCountsTwiceWhateverBreaks(t *testing.T) {
	p := choose(t)
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any number
	t.Logf("seed %d, plan %+v", seed, p)
	random := rand.New(rand.NewPCG(seed, 1))

	s := harness.Start(t)
	instances := []*harness.Instance{s.Instance("a", nil), s.Instance("b", nil), s.Instance("c", []string{"--roles", "popularity"})}
	for _, i := range instances {
		i.WaitReady()
	}
	o := generate.Defaults()
	o.Seed, o.Start, o.Span = seed, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects = p.views, p.purchases, p.prices, 100, 5_000
	o.Duplicates, o.LateCards, o.Homeless, o.WrongKeys, o.Malformed = 0.05, 0.05, 0.001, 0.02, 1
	m := model.New(time.Now())
	sent := make(chan error, 1)
	partitioners := generate.Partitioners()
	partitioner := partitioners[random.IntN(len(partitioners))]
	t.Logf("producers partition by %s", partitioner)
	go func() { sent <- s.Send(t.Context(), o, m, 0, partitioner) }()

	faults := faults(t, s, instances, p, random)
	random.Shuffle(len(faults), func(a, b int) { faults[a], faults[b] = faults[b], faults[a] })
	handled := func() int64 {
		var n int64
		if err := s.Pool.QueryRow(t.Context(), `SELECT count(*) FROM vitrina.views`).Scan(&n); err != nil {
			return 0 // PostgreSQL is just coming back
		}
		return n
	}
	ended := false
	for n, fault := range faults {
		// Spread over the run by its progress, so that every fault meets work in flight on a slow and on a fast machine.
		threshold := int64(p.views) * int64(n) / int64(len(faults)+1)
		s.Eventually(p.patience, func() (bool, string) {
			select {
			case err := <-sent:
				require.NoError(t, err, "the events are sent")
				ended = true
			default:
			}
			got := handled()
			return got >= threshold, fmt.Sprintf("%d of %d views are in the ledger", got, threshold)
		})
		fault()
	}
	if !ended {
		require.NoError(t, <-sent, "the events are sent")
	}
	s.WaitEqual(p.patience, m.Expected())
	for _, i := range instances {
		i.WaitReady()
	}
}

// faults lists what will break, in order; the caller shuffles.
func faults(t *testing.T, s *harness.System, instances []*harness.Instance, p plan, random *rand.Rand) []func() {
	t.Helper()
	var out []func()
	pick := func() *harness.Instance { return instances[random.IntN(len(instances))] }
	for n := range p.kills {
		out = append(out, func() {
			i := pick()
			t.Logf("SIGKILL %s, lost disk: %v", i.Name, n%3 == 2)
			i.Kill()
			if n%3 == 2 {
				i.LoseDisk()
			}
			i.Start()
		})
	}
	for range p.stalls {
		out = append(out, func() {
			i := pick()
			t.Logf("SIGSTOP %s for %s", i.Name, p.stall)
			i.Signal(syscall.SIGSTOP)
			<-time.After(p.stall) // the fault itself: a stall has a length
			i.Signal(syscall.SIGCONT)
		})
	}
	for range p.postgres {
		out = append(out, func() {
			t.Log("immediate restart of PostgreSQL")
			require.NoError(t, s.Postgres.Kill())
			require.NoError(t, s.Postgres.Restart(t.Context()))
		})
	}
	for range p.brokers {
		out = append(out, func() {
			t.Log("SIGKILL and restart of the broker")
			require.NoError(t, s.Kafka.Kill())
			require.NoError(t, s.Kafka.Restart(t.Context()))
		})
	}
	for range p.clickhouse {
		out = append(out, func() {
			t.Log("SIGKILL and restart of ClickHouse")
			require.NoError(t, s.ClickHouse.Kill())
			require.NoError(t, s.ClickHouse.Restart(t.Context()))
		})
	}
	return out
}
