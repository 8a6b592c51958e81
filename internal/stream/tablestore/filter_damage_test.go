package tablestore

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	ldbstorage "github.com/syndtr/goleveldb/leveldb/storage"
)

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
