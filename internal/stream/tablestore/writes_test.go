package tablestore

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The writes are compared with a map, under hashes that collide in every way: whole ones, slots, runs of slots.
func TestWritesAreAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := new(writes)
		var places []place
		for range rapid.IntRange(1, 3).Draw(t, "lives") {
			want := make(map[string]*string)
			for range rapid.IntRange(0, 400).Draw(t, "puts") {
				key := rapid.SampledFrom([]string{"", "a", "a\x00", "ids-0001-", "ids-0001-xxxxxxxx"}).Draw(t, "begin") +
					fmt.Sprint(rapid.IntRange(0, 200).Draw(t, "n"))
				hash := uint64(len(key)) % 3
				require.Equal(t, want[key] != nil, w.find(hash, key) != nil)
				value := rapid.SampledFrom([]string{"", "v", "another value"}).Draw(t, "value")
				if rapid.Bool().Draw(t, "delete") {
					value = deletedText
					w.put(hash, key, nil, true)
				} else {
					w.put(hash, key, []byte(value), false)
				}
				want[key] = &value
			}
			require.Len(t, w.list, len(want))
			for key, value := range want {
				require.Equal(t, *value, textOf(w, w.find(uint64(len(key))%3, key)))
			}
			places = w.sorted(places)
			keys := slices.Sorted(maps.Keys(want))
			require.Len(t, places, len(keys))
			for i, p := range places {
				e := &w.list[p.index]
				require.Equal(t, string(tablePrefix)+keys[i], string(w.key(e)))
				require.Equal(t, *want[keys[i]], textOf(w, e))
			}
			w.reset(rapid.SampledFrom([]int{0, 1 << 20}).Draw(t, "keep"))
			require.Nil(t, w.find(1, "a"))
		}
	})
}

const deletedText = "(deleted)"

func textOf(w *writes, e *entry) string {
	if e.deleted() {
		return deletedText
	}
	return string(bytes.Clone(w.value(e)))
}

func TestWritesGiveBackMemory(t *testing.T) {
	w := new(writes)
	w.put(1, "k", make([]byte, 1000), false)
	w.reset(2000)
	require.NotZero(t, cap(w.data), "the usual amount stays for the next writes")
	w.put(1, "k", make([]byte, 3000), false)
	w.reset(2000)
	require.Zero(t, cap(w.data), "an unusual amount does not")
}

func TestSetCopiesTheValue(t *testing.T) {
	s := open(t, idle(t.TempDir()))
	value := []byte("value")
	require.NoError(t, s.Set("k", value))
	clear(value)
	got, err := s.Get("k")
	require.NoError(t, err)
	require.Equal(t, "value", string(got))
}
