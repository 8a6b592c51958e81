package telemetry_test

import (
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestLagGrowsWhileWorkIsStuck(t *testing.T) {
	c := newClock()
	lag := telemetry.NewLag("x_lag_seconds", "help", c.Now)
	require.InDelta(t, 0, testutil.ToFloat64(lag), 0, "partition 0 at 0 from the start")

	first := lag.Start(3, c.Now().Add(-10*time.Second))
	c.Advance(20 * time.Second)
	require.InDelta(t, 30, lag.Seconds()[3], 0, "nothing finished yet: counted from the record in flight")
	second := lag.Start(3, c.Now())
	first.Done(c.Now())
	c.Advance(30 * time.Second)
	require.InDelta(t, 60, lag.Seconds()[3], 0, "still in flight: counted from the last finished record")
	second.Done(c.Now())
	require.InDelta(t, 30, lag.Seconds()[3], 0, "finished: the lag it had")
	c.Advance(3 * time.Minute)
	require.InDelta(t, 0, lag.Seconds()[3], 0, "idle: caught up")

	third := lag.Start(3, c.Now())
	require.InDelta(t, 0, lag.Seconds()[3], 0, "a quiet hour is no lag")
	third.Abandon()
	require.InDelta(t, 0, lag.Seconds()[3], 0)
}

func TestLagForgetsPartitionsOfOthers(t *testing.T) {
	c := newClock()
	lag := telemetry.NewLag("x_lag_seconds", "help", c.Now)
	old := lag.Start(1, c.Now().Add(-time.Hour))
	lag.Retain(2, 5)
	require.Equal(t, map[int32]float64{2: 0, 5: 0}, lag.Seconds())
	old.Done(c.Now())
	require.Equal(t, map[int32]float64{2: 0, 5: 0}, lag.Seconds(), "a straggler of a lost partition changes nothing")
	telemetry.LagMark{}.Done(c.Now())
}

func TestLagNeverNegative(t *testing.T) {
	c := newClock()
	lag := telemetry.NewLag("x_lag_seconds", "help", c.Now)
	mark := lag.Start(0, c.Now().Add(time.Hour))
	require.InDelta(t, 0, lag.Seconds()[0], 0)
	mark.Done(c.Now())
	require.InDelta(t, 0, lag.Seconds()[0], 0)
}
