package backoff_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/backoff"
)

// The jitter led beyond the specification's bounds: up to 72 s with a maximum of 60 s, and 0.8 s at first.
func TestWaitsStayWithinTheSpecificationsBounds(t *testing.T) {
	c := backoff.Default()
	seen := map[time.Duration]bool{}
	for range 200 {
		b := backoff.New(c)
		for range 10 {
			wait := b.Next()
			require.GreaterOrEqual(t, wait, c.Min)
			require.LessOrEqual(t, wait, c.Max)
			seen[wait] = true
		}
		require.Equal(t, 10, b.Tries())
		require.GreaterOrEqual(t, b.Next(), c.Max*3/4, "it grows to the longest wait")
		b.Reset()
		require.LessOrEqual(t, b.Next(), 2*c.Min)
	}
	require.Greater(t, len(seen), 100, "jitter keeps instances apart")
}
