package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

// Producers partition by librdkafka's CRC32, Java's murmur2, FNV-1a or at random, and some send other keys than the payload's id:
// each view counts once and each purchase is applied all the same (D16, D29, D38). Half of the stream is consumed again by a
// second instance that takes partitions over meanwhile.
func TestEveryPartitionerGivesTheSameCounts(t *testing.T) {
	s := harness.Start(t)
	s.Instance("one", nil).WaitReady()
	m := model.New(time.Now())
	for n, partitioner := range generate.Partitioners() {
		o := generate.Defaults()
		o.Seed, o.Start, o.Span = uint64(100+n), time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
		o.Views, o.Purchases, o.Prices, o.Projects, o.Objects = 5_000, 500, 0, 10, 300
		o.Duplicates, o.WrongKeys = 0.2, 0.05
		require.NoError(t, s.Send(t.Context(), o, m, 0, partitioner))
		if n == 1 {
			s.Instance("two", nil).WaitReady()
		}
	}
	s.WaitEqual(3*time.Minute, m.Expected())
}
