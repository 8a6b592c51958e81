package tablestore

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestFilterGrowsAndForgetsNothing(t *testing.T) {
	f := newFilter()
	n := 3*firstLayerKeys + 10
	for i := range n {
		f.add(hashOf(fmt.Sprint("key-", i)))
	}
	require.Len(t, f.layers, 2)
	for i := range n {
		require.True(t, f.has(hashOf(fmt.Sprint("key-", i))))
	}
	require.InDelta(t, n, f.keys(), float64(n)/50)
	wrong := 0
	for i := range n {
		if f.has(hashOf(fmt.Sprint("other-", i))) {
			wrong++
		}
	}
	require.Less(t, float64(wrong)/float64(n), 0.01, "false positives")
	t.Logf("%d keys, %d layers, %.1f bits a key, %.2f %% false positives", n, len(f.layers), float64(f.bytes()*8)/float64(n), float64(wrong)*100/float64(n))
}

func TestFilterSnapshotStaysAsItWas(t *testing.T) {
	f := newFilter()
	f.add(hashOf("before"))
	s := f.snapshot()
	f.add(hashOf("after"))
	require.True(t, s.has(hashOf("before")))
	require.False(t, s.has(hashOf("after")))
	require.Equal(t, int64(1), s.keys())
	require.Equal(t, int64(2), f.keys())
}

// Snapshots and logs in any order, torn at any place: what is loaded covers every flush up to the number it gives.
func TestFilterFilesCoverWhatTheyClaim(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ff := &filterFiles{dir: tempDir(t)}
		f := newFilter()
		flushed := [][]uint64{nil} // by flush number
		t.Repeat(map[string]func(*rapid.T){
			"flush": func(t *rapid.T) {
				hashes := rapid.SliceOfN(rapid.Uint64(), 0, 20).Draw(t, "hashes")
				for _, h := range hashes {
					f.add(h)
				}
				require.NoError(t, ff.append(uint64(len(flushed)), hashes))
				flushed = append(flushed, hashes)
			},
			"save": func(t *rapid.T) {
				require.NoError(t, ff.save(f.snapshot(), uint64(len(flushed)-1)))
			},
			"tear and load": func(t *rapid.T) {
				tear := rapid.IntRange(0, 30).Draw(t, "tear")
				path := filepath.Join(ff.dir, filterLog)
				if info, err := os.Stat(path); err == nil {
					require.NoError(t, os.Truncate(path, max(0, info.Size()-int64(tear))))
				}
				require.NoError(t, ff.close())
				loaded, last, err := ff.load()
				if err != nil {
					require.ErrorIs(t, err, errFilterFiles)
					require.NoError(t, ff.close())
					return
				}
				require.Less(t, last, uint64(len(flushed)))
				for _, hashes := range flushed[:last+1] {
					for _, h := range hashes {
						require.True(t, loaded.has(h))
					}
				}
				// What was torn off is lost with the store that held it: go on from there.
				flushed = flushed[:last+1]
				f = loaded
			},
		})
		require.NoError(t, ff.close())
	})
}

func TestFilterFileOfAnotherStoreIsRefused(t *testing.T) {
	ff := &filterFiles{dir: t.TempDir(), id: filterID{1}}
	require.NoError(t, ff.save(newFilter(), 7))
	require.NoError(t, ff.close())
	_, last, err := ff.load()
	require.NoError(t, err)
	require.Equal(t, uint64(7), last)
	require.NoError(t, ff.close())
	ff.id = filterID{2}
	_, _, err = ff.load()
	require.ErrorIs(t, err, errFilterFiles)
}

// A snapshot whose new log was never made (a crash in between) must not take the older log for its own.
func TestFilterLogOfAnEarlierSnapshotIsLeftOut(t *testing.T) {
	ff := &filterFiles{dir: t.TempDir()}
	f := newFilter()
	require.NoError(t, ff.save(f, 1))
	require.NoError(t, ff.append(2, []uint64{22}))
	old, err := os.ReadFile(filepath.Join(ff.dir, filterLog))
	require.NoError(t, err)
	f.add(22)
	require.NoError(t, ff.save(f, 2))
	require.NoError(t, ff.close())
	require.NoError(t, os.WriteFile(filepath.Join(ff.dir, filterLog), old, 0o600))
	loaded, last, err := ff.load()
	require.NoError(t, err)
	require.Equal(t, uint64(2), last)
	require.True(t, loaded.has(22))
	require.NoError(t, ff.append(3, []uint64{33}))
	require.NoError(t, ff.close())
	loaded, last, err = ff.load()
	require.NoError(t, err)
	require.Equal(t, uint64(3), last)
	require.True(t, loaded.has(33))
	require.NoError(t, ff.close())
}
