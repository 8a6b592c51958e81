package tablestore

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lovoo/goka/storage"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// machine drives a store as Goka does, beside a plain map and a changelog. Nothing is flushed behind its back, so it knows exactly
// what a crash leaves.
type machine struct {
	dir   string
	runs  int
	store *Store
	log   changelog

	live    map[string]string // what the store must answer
	disk    map[string]string // what a crash leaves
	claimed int64             // what the store must report
	onDisk  int64
	waiting []change // set in the store, on their way to the changelog
	unacked []ack    // in the changelog, SetOffset not called yet
	// leftovers are writes that never reached the changelog: E3 allows them to survive.
	leftovers map[string][]string
	savedOnce bool // a snapshot of the filter exists: from then on no scan is needed
}

type ack struct {
	offset int64
	silent bool // Goka reports no offset for tombstones
}

const none = int64(-1)

func machineKeys() []string {
	keys := []string{"", "__offset", "m__offset", "m__flush", "k", "l", "\x00", "\xff\xff", "ключ", strings.Repeat("long", 100)}
	for i := range 25 {
		keys = append(keys, fmt.Sprintf("%08x-view", i*7919))
	}
	return keys
}

func (m *machine) cfg() Config { return idle(filepath.Join(m.dir, fmt.Sprint(m.runs))) }

func (m *machine) storeDir() string { return filepath.Join(m.cfg().Dir, testTopic+".3") }

// start opens the store and recovers it; live is what the directory holds.
func (m *machine) start(t *rapid.T, rng *rand.Rand) {
	m.store = openStore(t, newTables(t, m.cfg()))
	m.waiting, m.unacked = nil, nil
	require.Equal(t, m.onDisk, m.offset(t), "the offset after opening")
	require.Equal(t, m.live, mustContents(t, m.store), "what the directory holds after opening")
	if m.savedOnce {
		require.False(t, m.store.Stats().Scanned, "the filter's files cover every flush, no scan is needed")
	}
	require.NoError(t, recoverStore(t, m.store, m.log, rng))
	m.log.apply(m.live, int(m.claimed+1))
	m.claimed = int64(len(m.log)) - 1
	m.flushed()
	m.truth(t)
}

func (m *machine) offset(t *rapid.T) int64 {
	o, err := m.store.GetOffset(none)
	require.NoError(t, err)
	return o
}

func (m *machine) flushed() {
	m.disk, m.onDisk = maps.Clone(m.live), m.claimed
}

// truth is the requirement itself, apart from the exact model: a recovered table equals its changelog but for writes that never
// reached it.
func (m *machine) truth(t *rapid.T) {
	got, want := mustContents(t, m.store), m.log.replay()
	for _, key := range machineKeys() {
		g, gok := got[key]
		w, wok := want[key]
		if g == w && gok == wok {
			continue
		}
		left := "gone"
		if gok {
			left = g
		}
		require.Contains(t, m.leftovers[key], left, "key %q: store %q (%t), changelog %q (%t)", key, g, gok, w, wok)
	}
}

// abandon ends a session: some waiting records still reach the changelog, the others are lost and their writes leftovers.
func (m *machine) abandon(t *rapid.T) {
	n := rapid.IntRange(0, len(m.waiting)).Draw(t, "delivered")
	m.log = append(m.log, m.waiting[:n]...)
	for _, c := range m.waiting[n:] {
		left := "gone"
		if c.value != nil {
			left = string(c.value)
		}
		m.leftovers[c.key] = append(m.leftovers[c.key], left)
	}
}

func TestRandomOperationsAgainstPlainMap(t *testing.T) {
	keys := machineKeys()
	rapid.Check(t, func(t *rapid.T) {
		dir := tempDir(t)
		m := &machine{dir: dir, live: map[string]string{}, claimed: none, onDisk: none, leftovers: map[string][]string{}}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		m.start(t, rng)
		defer func() { require.NoError(t, m.store.Close()) }()
		key := rapid.SampledFrom(keys)
		serial := 0

		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				k := key.Draw(t, "key")
				serial++
				value := []byte(fmt.Sprintf("value-%d", serial))
				if rapid.IntRange(0, 9).Draw(t, "empty") == 0 {
					value = []byte{}
				}
				require.NoError(t, m.store.Set(k, value))
				m.live[k] = string(value)
				m.waiting = append(m.waiting, change{k, value})
			},
			"delete": func(t *rapid.T) {
				k := key.Draw(t, "key")
				require.NoError(t, m.store.Delete(k))
				delete(m.live, k)
				m.waiting = append(m.waiting, change{k, nil})
			},
			"get": func(t *rapid.T) {
				k := key.Draw(t, "key")
				got, err := m.store.Get(k)
				require.NoError(t, err)
				want, ok := m.live[k]
				require.Equal(t, ok, got != nil)
				require.Equal(t, want, string(got))
				has, err := m.store.Has(k)
				require.NoError(t, err)
				require.Equal(t, ok, has)
			},
			"reach the changelog": func(t *rapid.T) {
				n := rapid.IntRange(0, len(m.waiting)).Draw(t, "n")
				for _, c := range m.waiting[:n] {
					m.unacked = append(m.unacked, ack{int64(len(m.log)), c.value == nil})
					m.log = append(m.log, c)
				}
				m.waiting = slices.Clone(m.waiting[n:])
			},
			"acknowledge": func(t *rapid.T) {
				n := rapid.IntRange(0, len(m.unacked)).Draw(t, "n")
				for _, a := range m.unacked[:n] {
					if a.silent || a.offset == 0 {
						continue
					}
					require.NoError(t, m.store.SetOffset(a.offset))
					if a.offset == m.claimed+1 || (m.claimed == none && a.offset == 1) {
						m.claimed = a.offset
					}
				}
				m.unacked = slices.Clone(m.unacked[n:])
				require.Equal(t, m.claimed, m.offset(t))
			},
			"another writer": func(t *rapid.T) {
				if len(m.log) == 0 {
					return // Goka does not tell whose record offset 0 is
				}
				serial++
				m.log = append(m.log, change{key.Draw(t, "key"), []byte(fmt.Sprintf("foreign-%d", serial))})
			},
			"iterate": func(t *rapid.T) {
				require.Equal(t, m.live, mustContents(t, m.store))
				m.flushed()
			},
			"range": func(t *rapid.T) {
				m.checkRange(t, key.Draw(t, "start"), rapid.SampledFrom(append(keys, "", "")).Draw(t, "limit"))
				m.flushed()
			},
			"seek": func(t *rapid.T) {
				m.checkSeek(t, key.Draw(t, "to"))
				m.flushed()
			},
			"save filter": func(t *rapid.T) {
				require.NoError(t, m.store.ask(taskSaveFilter))
				m.flushed()
				m.savedOnce = true
			},
			"reopen": func(t *rapid.T) {
				m.abandon(t)
				require.NoError(t, m.store.Close())
				m.flushed()
				m.savedOnce = true // Close saves it
				m.start(t, rng)
			},
			"crash": func(t *rapid.T) {
				m.abandon(t)
				from := m.storeDir()
				m.runs++
				copyDir(t, from, m.storeDir())
				require.NoError(t, m.store.Close())
				m.live, m.claimed = maps.Clone(m.disk), m.onDisk
				m.start(t, rng)
			},
		})
	})
}

func (m *machine) checkRange(t *rapid.T, start, limit string) {
	it, err := m.store.IteratorWithRange([]byte(start), []byte(limit))
	require.NoError(t, err)
	defer it.Release()
	want := sortedKeys(m.live, func(k string) bool {
		if limit == "" {
			return strings.HasPrefix(k, start)
		}
		return k >= start && k < limit
	})
	require.Equal(t, want, rest(t, it))
}

func (m *machine) checkSeek(t *rapid.T, to string) {
	it, err := m.store.Iterator()
	require.NoError(t, err)
	defer it.Release()
	want := sortedKeys(m.live, func(k string) bool { return k >= to })
	if !it.Seek([]byte(to)) {
		require.Empty(t, want)
		require.Nil(t, it.Key())
		return
	}
	first := string(it.Key()) // before the next step changes the slice
	require.Equal(t, want, append([]string{first}, rest(t, it)...))
}

func sortedKeys(m map[string]string, keep func(string) bool) []string {
	keys := []string{}
	for k := range m {
		if keep(k) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b string) int { return bytes.Compare([]byte(a), []byte(b)) })
	return keys
}

func rest(t *rapid.T, it storage.Iterator) []string {
	keys := []string{}
	for it.Next() {
		keys = append(keys, string(it.Key()))
	}
	require.NoError(t, it.Err())
	return keys
}
