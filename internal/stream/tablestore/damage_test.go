package tablestore

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/syndtr/goleveldb/leveldb/journal"
	ldbstorage "github.com/syndtr/goleveldb/leveldb/storage"
)

// image is a directory as a crash left it, and the changelog it belongs to. Every write in it reached the changelog.
type image struct {
	dir string
	log changelog
}

const small = 32 << 10 // LevelDB's memory table in these tests: a few flushes fill it

// fill writes n records through the store in flushes of a hundred, with acknowledgements.
func (im *image) fill(t *testing.T, s *Store, n int, pause func() bool) {
	t.Helper()
	for i := range n {
		serial := len(im.log)
		c := change{fmt.Sprintf("key-%d", (serial*7919)%701), []byte(fmt.Sprintf("%d-%s", serial, strings.Repeat("x", 40)))}
		require.NoError(t, s.Set(c.key, c.value))
		im.log = append(im.log, c)
		if serial > 0 {
			require.NoError(t, s.SetOffset(int64(serial)))
		}
		if i%100 == 99 {
			require.NoError(t, s.ask(taskFlush))
			if pause() {
				return
			}
		}
	}
}

func never() bool { return false }

// closedImage has tables in two levels, a journal and a filter, and was closed in order.
func closedImage(t *testing.T) image {
	t.Helper()
	im := image{dir: filepath.Join(t.TempDir(), testTopic+".3")}
	cfg := idle(filepath.Dir(im.dir))
	cfg.WriteBuffer = small
	tables := newTables(t, cfg)
	for range 4 { // each life ends a journal
		s := openStore(t, tables)
		require.NoError(t, recoverStore(t, s, im.log, nil))
		im.fill(t, s, 2500, never)
		require.NoError(t, s.Close())
	}
	return im
}

// crashedImage was left while LevelDB was moving a full journal into a table: two journals hold what no table has.
func crashedImage(t *testing.T) image {
	t.Helper()
	closed := closedImage(t)
	cfg := idle(filepath.Dir(closed.dir))
	cfg.WriteBuffer = small
	tables := newTables(t, cfg)
	rotated, stalled, release := make(chan struct{}, 100), make(chan struct{}, 100), make(chan struct{})
	var armed atomic.Bool
	withFaults(tables, &faultyFiles{create: func(fd ldbstorage.FileDesc) error {
		switch {
		case !armed.Load():
		case fd.Type == ldbstorage.TypeJournal:
			rotated <- struct{}{}
		case fd.Type == ldbstorage.TypeTable:
			stalled <- struct{}{}
			<-release
		}
		return nil
	}})
	s := openStore(t, tables)
	require.NoError(t, recoverStore(t, s, closed.log, nil))
	waitIdle(t, closed.dir)
	armed.Store(true)
	// Until the move is stalled and two more flushes are in the second journal. The move begins some time after the second journal; who
	// went on writing until it is seen could fill that one too, and would wait for the stalled move for ever.
	journalsAt := 0
	closed.fill(t, s, 5000, func() bool {
		if len(rotated) == 0 {
			journalsAt = len(closed.log)
			return false
		}
		stalled <- <-stalled
		return len(closed.log) >= journalsAt+200
	})
	im := image{dir: filepath.Join(t.TempDir(), testTopic+".3"), log: slices.Clone(closed.log)}
	copyDir(t, closed.dir, im.dir)
	close(release)
	require.NoError(t, s.Close())
	require.Len(t, filesOf(t, im.dir, ldbstorage.TypeJournal), 2, "the image must have two journals")
	return im
}

// waitIdle waits until LevelDB has nothing to merge.
func waitIdle(t *testing.T, dir string) {
	t.Helper()
	var last map[string]int64
	require.Eventually(t, func() bool {
		now := listing(t, dir)
		same := fmt.Sprint(now) == fmt.Sprint(last)
		last = now
		return same
	}, 10*time.Second, 50*time.Millisecond)
}

func filesOf(t *testing.T, dir string, kind ldbstorage.FileType) []ldbstorage.FileDesc {
	t.Helper()
	files, err := ldbstorage.OpenFile(dir, false)
	require.NoError(t, err)
	defer func() { require.NoError(t, files.Close()) }()
	fds, err := files.List(kind)
	require.NoError(t, err)
	slices.SortFunc(fds, func(a, b ldbstorage.FileDesc) int { return int(a.Num - b.Num) })
	return fds
}

// check damages a copy of the image and lets a processor start on it, again when it stumbles. However it ends, the table
// must equal the changelog. It returns whether the directory was dropped.
func (im image) check(t *testing.T, what string, damage func(dir string)) (dropped bool) {
	t.Helper()
	base := t.TempDir()
	defer func() { require.NoError(t, os.RemoveAll(base)) }() // not hundreds of them until the test ends
	dir := filepath.Join(base, testTopic+".3")
	copyDir(t, im.dir, dir)
	damage(dir)
	out := &logBuffer{}
	cfg := idle(base)
	cfg.WriteBuffer = small
	tables, err := New(cfg, out.logger(), nil)
	require.NoError(t, err)
	for try := 1; ; try++ {
		s := openStore(t, tables)
		err := recoverStore(t, s, im.log, nil)
		var got map[string]string
		if err == nil {
			got, err = contents(t, s)
		}
		if err != nil {
			require.True(t, isDamage(err), "%s: %v", what, err)
			require.Less(t, try, 3, "%s: stumbles again and again: %v", what, err)
			require.ErrorIs(t, s.Close(), err, what)
			continue
		}
		require.Equal(t, im.log.replay(), got, what)
		require.NoError(t, s.Close(), what)
		return out.count("table-store-dropped") > 0
	}
}

func edit(t *testing.T, path string, change func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, change(data), 0o600))
}

func TestDamagedAtRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 3))
	for _, im := range []image{closedImage(t), crashedImage(t)} {
		entries, err := os.ReadDir(im.dir)
		require.NoError(t, err)
		drops := 0
		const rounds = 80
		for range rounds {
			name := entries[rng.IntN(len(entries))].Name()
			if name == "LOG" || name == "LOCK" {
				continue
			}
			var what string
			dropped := im.check(t, fmt.Sprintf("seed %d", seed), func(dir string) {
				path := filepath.Join(dir, name)
				what = damageFile(t, path, rng)
				t.Logf("%s: %s", name, what)
			})
			if dropped {
				drops++
			}
		}
		t.Logf("%d of %d damages were seen and the directory dropped", drops, rounds)
		require.NotZero(t, drops)
	}
}

// damageFile does one thing to a file.
func damageFile(t *testing.T, path string, rng *rand.Rand) string {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	size := int(info.Size())
	at := rng.IntN(size + 1)
	switch kind := rng.IntN(5); {
	case kind == 0:
		require.NoError(t, os.Remove(path))
		return "removed"
	case kind == 1:
		require.NoError(t, os.Truncate(path, int64(at)))
		return fmt.Sprintf("cut from %d to %d bytes", size, at)
	case kind == 2:
		at -= at % 4096
		require.NoError(t, os.Truncate(path, int64(at)))
		return fmt.Sprintf("cut from %d to %d bytes", size, at)
	case kind == 3 && size > 0:
		at %= size
		edit(t, path, func(b []byte) []byte { clear(b[at:min(size, at+512)]); return b })
		return fmt.Sprintf("zeros at %d of %d", at, size)
	case size > 0:
		at %= size
		bit := byte(1) << rng.IntN(8)
		edit(t, path, func(b []byte) []byte { b[at] ^= bit; return b })
		return fmt.Sprintf("bit %08b at %d of %d", bit, at, size)
	default:
		return "nothing, it is empty"
	}
}

// ends returns the lengths at which a journal or manifest can be cut so that no record is torn.
func ends(t *testing.T, path string) []int64 {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	const block, head = 32 << 10, 7
	cuts := []int64{0}
	for at := 0; at+head <= len(data); {
		if block-at%block < head {
			at += block - at%block
			continue
		}
		length := int(binary.LittleEndian.Uint16(data[at+4:]))
		kind := data[at+6]
		at += head + length
		if kind == 1 || kind == 4 { // whole record, or the last part of one
			cuts = append(cuts, int64(at))
		}
	}
	require.Equal(t, int64(len(data)), cuts[len(cuts)-1])
	return cuts[:len(cuts)-1]
}

// A cut between two records leaves files that LevelDB finds faultless. It would open them, with the newest offset and without
// the records that were cut away.
func TestCutBetweenRecords(t *testing.T) {
	for name, im := range map[string]image{"closed": closedImage(t), "crashed": crashedImage(t)} {
		t.Run(name, func(t *testing.T) {
			fds := append(filesOf(t, im.dir, ldbstorage.TypeJournal), filesOf(t, im.dir, ldbstorage.TypeManifest)...)
			for _, fd := range fds {
				cuts := ends(t, filepath.Join(im.dir, fd.String()))
				for _, at := range cuts {
					im.check(t, fmt.Sprintf("%s cut to %d", fd, at), func(dir string) {
						require.NoError(t, os.Truncate(filepath.Join(dir, fd.String()), at))
					})
				}
				t.Logf("%s: %d cuts", fd, len(cuts))
			}
		})
	}
}

// The older of two journals must be whole: what it lost lies before the newest offset.
func TestOlderJournalCutIsNoticed(t *testing.T) {
	im := crashedImage(t)
	older := filesOf(t, im.dir, ldbstorage.TypeJournal)[0].String()
	for _, at := range ends(t, filepath.Join(im.dir, older)) {
		dropped := im.check(t, fmt.Sprintf("%s cut to %d", older, at), func(dir string) {
			require.NoError(t, os.Truncate(filepath.Join(dir, older), at))
		})
		require.True(t, dropped, "cut to %d", at)
	}
	require.True(t, im.check(t, older+" removed", func(dir string) { require.NoError(t, os.Remove(filepath.Join(dir, older))) }))
	require.False(t, im.check(t, "undamaged", func(string) {}), "two whole journals are no damage")
}

func TestRemovedCurrentDoesNotReviveOldJournals(t *testing.T) {
	im := crashedImage(t)
	require.True(t, im.check(t, "no CURRENT", func(dir string) {
		require.NoError(t, os.Remove(filepath.Join(dir, "CURRENT")))
		for _, fd := range filesOf(t, dir, ldbstorage.TypeManifest) {
			require.NoError(t, os.Remove(filepath.Join(dir, fd.String())))
		}
	}))
}

// A table's footer has no checksum: a length in it must not become memory.
func TestDamagedTableFooter(t *testing.T) {
	im := closedImage(t)
	table := filesOf(t, im.dir, ldbstorage.TypeTable)[0].String()
	for at := range tableFooterLen {
		im.check(t, fmt.Sprintf("%s footer byte %d", table, at), func(dir string) {
			edit(t, filepath.Join(dir, table), func(b []byte) []byte { b[len(b)-tableFooterLen+at] ^= 0x80; return b })
		})
	}
}

// The offset can be read and the keys cannot: an empty directory must not claim what the dropped one did.
func TestDamageFoundByTheScanOfTheKeysForgetsTheOffset(t *testing.T) {
	im := closedImage(t)
	for _, fd := range filesOf(t, im.dir, ldbstorage.TypeTable) {
		dropped := im.check(t, fd.String(), func(dir string) {
			for _, name := range []string{filterFile, filterLog} {
				require.NoError(t, os.RemoveAll(filepath.Join(dir, name)))
			}
			edit(t, filepath.Join(dir, fd.String()), func(b []byte) []byte { b[10] ^= 0x80; return b })
		})
		require.True(t, dropped, fd)
	}
}

// Without a look at the footer LevelDB would ask for this much memory, and panic, when it merges or reads the table.
func TestImpossibleLengthInFooterIsNotBelieved(t *testing.T) {
	im := closedImage(t)
	for _, fd := range filesOf(t, im.dir, ldbstorage.TypeTable) {
		require.True(t, im.check(t, fd.String(), func(dir string) {
			edit(t, filepath.Join(dir, fd.String()), func(b []byte) []byte {
				footer := b[len(b)-tableFooterLen : len(b)-len(tableMagic)]
				clear(footer)
				at := binary.PutUvarint(footer, 0) // offset and length of the index of the index
				at += binary.PutUvarint(footer[at:], 1<<62)
				binary.PutUvarint(footer[at:], 0)
				return b
			})
		}))
	}
}

// Damage that only a read finds ends the store; the next start drops the directory.
func TestDamageFoundWhileInUse(t *testing.T) {
	im := closedImage(t)
	tables := filesOf(t, im.dir, ldbstorage.TypeTable)
	dropped := im.check(t, "every table damaged in its first block", func(dir string) {
		for _, fd := range tables {
			edit(t, filepath.Join(dir, fd.String()), func(b []byte) []byte { b[100] ^= 1; return b })
		}
	})
	require.True(t, dropped)
}

// The journal reader of LevelDB and the harness agree on where records end.
func TestEndsFindsEveryBatch(t *testing.T) {
	im := crashedImage(t)
	path := filepath.Join(im.dir, filesOf(t, im.dir, ldbstorage.TypeJournal)[0].String())
	file, err := os.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	n := 0
	for r := journal.NewReader(file, nil, true, true); ; n++ {
		if _, err := r.Next(); err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
	}
	require.Greater(t, n, 1)
	require.Len(t, ends(t, path), n)
}
