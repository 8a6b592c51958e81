package postgres

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeysAreSortedWhateverTheyAre(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	high := map[string]func() uint64{
		"even":     random.Uint64,
		"close":    func() uint64 { return 1<<63 + random.Uint64N(1000) },
		"equal":    func() uint64 { return 7 },
		"extremes": func() uint64 { return -random.Uint64N(2) },
		"versions": func() uint64 {
			return 1<<40 + random.Uint64N(100)<<16 + (4+3*random.Uint64N(2))<<12 + random.Uint64N(4096)
		},
		"by time": func() uint64 { return 1<<40 + random.Uint64N(100)<<16 + 7<<12 + random.Uint64N(4096) },
		"one far": func() uint64 { return 1 << random.Uint64N(64) },
	}
	for name, high := range high {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{1, 2, 3, 4, 5, 100, 5000} {
				keys := make([]sortKey, n)
				for i := range keys {
					keys[i] = sortKey{high(), random.Uint64N(3), int32(i)}
				}
				want := slices.Clone(keys)
				slices.SortFunc(want, compareKeys)
				require.Equal(t, want, sortKeys(keys))
			}
		})
	}
}
