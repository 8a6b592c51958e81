package telemetry

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

// A gap is told at each start of a session until something behind it is finished.
func TestAGapCountsOnce(t *testing.T) {
	r := NewRoles(prometheus.NewRegistry(), nil, nil, nil, []string{"t"})
	for _, tc := range []struct {
		partition      int32
		from, to, want int64
	}{{0, 5, 8, 3}, {0, 5, 8, 3}, {0, 5, 10, 5}, {1, 5, 8, 8}, {0, 20, 21, 9}} {
		r.Lost("t", tc.partition, tc.from, tc.to)
		require.InDelta(t, tc.want, testutil.ToFloat64(r.lost.WithLabelValues("t")), 0)
	}
}
