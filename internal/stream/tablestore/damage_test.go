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
	stalled, release := make(chan struct{}, 100), make(chan struct{})
	var armed atomic.Bool
	withFaults(tables, &faultyFiles{create: func(fd ldbstorage.FileDesc) error {
		if fd.Type == ldbstorage.TypeTable && armed.Load() {
			stalled <- struct{}{}
			<-release
		}
		return nil
	}})
	s := openStore(t, tables)
	require.NoError(t, recoverStore(t, s, closed.log, nil))
	waitIdle(t, closed.dir)
	armed.Store(true)
	// Until the move is stalled and two more flushes are in the second journal.
	journalsAt := 0
	closed.fill(t, s, 5000, func() bool {
		if len(stalled) == 0 {
			journalsAt = len(closed.log)
		}
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
	base, err := os.MkdirTemp("", "tablestore")
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(base)) }()
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
		const rounds = 120
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

// The filter's files can be in any state: a key on disk is found.
func TestDamagedFilterFiles(t *testing.T) {
	im := crashedImage(t)
	rng := rand.New(rand.NewPCG(5, 5))
	for _, name := range []string{filterFile, filterLog} {
		for range 40 {
			require.False(t, im.check(t, name, func(dir string) { damageFile(t, filepath.Join(dir, name), rng) }),
				"a filter's damage costs a scan, not the directory")
		}
	}
}

// Filter files of an earlier time fit the directory only by chance; they must not be used.
func TestOldFilterFilesAreNotUsed(t *testing.T) {
	im := image{dir: filepath.Join(t.TempDir(), testTopic+".3")}
	tables := newTables(t, idle(filepath.Dir(im.dir)))
	s := openStore(t, tables)
	require.NoError(t, recoverStore(t, s, im.log, nil))
	im.fill(t, s, 200, never)
	require.NoError(t, s.ask(taskSaveFilter))
	old := t.TempDir()
	copyDir(t, im.dir, old)
	im.fill(t, s, 300, never)
	require.NoError(t, s.ask(taskSaveFilter))
	require.NoError(t, s.Close())
	for _, names := range [][]string{{filterFile}, {filterLog}, {filterFile, filterLog}} {
		require.False(t, im.check(t, fmt.Sprint(names), func(dir string) {
			for _, name := range names {
				data, err := os.ReadFile(filepath.Join(old, name))
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
			}
		}))
	}
}

// The journal loses its end, the filter is scanned, other keys are flushed under the numbers that were lost: files from before the
// loss reach the right number again, and know none of these keys.
func TestFilterNumbersComingRound(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, testTopic+".3")
	tables := newTables(t, idle(base))
	s := openStore(t, tables)
	require.NoError(t, s.MarkRecovered())
	flushOne := func(key string) {
		require.NoError(t, s.Set(key, []byte("x")))
		require.NoError(t, s.ask(taskFlush))
	}
	flushOne("a0")
	require.NoError(t, s.ask(taskSaveFilter))
	for i := range 4 {
		flushOne(fmt.Sprint("a", i+1))
	}
	crash := t.TempDir()
	copyDir(t, dir, crash)
	require.NoError(t, s.Close())
	copyDir(t, crash, dir)
	path := filepath.Join(dir, filesOf(t, dir, ldbstorage.TypeJournal)[0].String())
	cuts := ends(t, path)
	require.NoError(t, os.Truncate(path, cuts[len(cuts)-3])) // the last three flushes

	s = openStore(t, tables)
	require.True(t, s.Stats().Scanned)
	for i := range 3 {
		flushOne(fmt.Sprint("b", i))
	}
	copyDir(t, dir, crash)
	require.NoError(t, s.Close())
	copyDir(t, crash, dir)

	s = openStore(t, tables)
	require.Len(t, mustContents(t, s), 5) // a0, a1, b0 to b2, found by Get too
	require.NoError(t, s.Close())
}

// A crash between the filter's log and LevelDB's batch: the log has one flush more, which is no reason to scan.
func TestCrashBetweenFilterLogAndBatch(t *testing.T) {
	cfg := idle(t.TempDir())
	tables := newTables(t, cfg)
	s := openStore(t, tables)
	require.NoError(t, s.MarkRecovered())
	require.NoError(t, s.Set("a", []byte("1")))
	require.NoError(t, s.ask(taskSaveFilter))
	require.NoError(t, s.Close())

	broken := newTables(t, cfg)
	var fail atomic.Bool
	withFaults(broken, &faultyFiles{write: func(fd ldbstorage.FileDesc) error {
		if fail.Load() && fd.Type == ldbstorage.TypeJournal {
			return io.ErrShortWrite
		}
		return nil
	}})
	s = openStore(t, broken)
	require.NoError(t, s.MarkRecovered())
	fail.Store(true)
	require.NoError(t, s.Set("b", []byte("2")))
	require.ErrorIs(t, s.ask(taskFlush), io.ErrShortWrite)
	require.ErrorIs(t, s.Close(), io.ErrShortWrite)

	for range 3 { // the numbers go on without a clash
		s = openStore(t, tables)
		require.False(t, s.Stats().Scanned)
		require.NoError(t, s.MarkRecovered())
		require.NoError(t, s.Set(fmt.Sprint("c", s.flusher.number), []byte("3")))
		require.NotContains(t, mustContents(t, s), "b")
		require.NoError(t, s.Close())
	}
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
