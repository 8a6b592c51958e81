package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

// From one instance to three and back to one under load, with a rolling restart in between: each stop hands its partitions over
// within 15 s with exit code 0, and everything equals the model.
func TestScalingAndARollingRestartUnderLoadLoseNothing(t *testing.T) {
	s := harness.Start(t)
	first := s.Instance("a", nil)
	first.WaitReady()
	o := generate.Defaults()
	o.Seed, o.Start, o.Span = 81, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects = 60_000, 2_000, 4_000, 50, 2_000
	m := model.New(time.Now())
	sent := make(chan error, 1)
	go func() { sent <- s.Send(t.Context(), o, m, 2_000, "crc32") }()

	second, third := s.Instance("b", nil), s.Instance("c", nil)
	second.WaitReady()
	third.WaitReady()
	counted := counted(t, s)
	stop := func(i *harness.Instance) {
		took, err := i.Stop()
		require.NoErrorf(t, err, "instance %s ends with exit code 0", i.Name)
		require.Lessf(t, took, 15*time.Second, "instance %s", i.Name)
	}
	for _, i := range []*harness.Instance{first, second, third} {
		before := counted()
		stop(i)
		i.Start()
		i.WaitReady()
		s.Eventually(time.Minute, func() (bool, string) { now := counted(); return now > before, fmt.Sprintf("%d views counted", now) })
	}
	stop(second)
	stop(third)
	require.NoError(t, <-sent)
	s.WaitEqual(3*time.Minute, m.Expected())
	stop(first)
}
