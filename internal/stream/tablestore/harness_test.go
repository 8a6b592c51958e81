package tablestore

import (
	"bytes"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	ldbstorage "github.com/syndtr/goleveldb/leveldb/storage"
	"pgregory.net/rapid"
)

const testTopic = "popularity-table"

// notStored is what Goka passes to GetOffset to learn that there is none.
const notStored = -3

// idle is a configuration in which nothing is flushed or saved unless a test asks for it.
func idle(dir string) Config {
	return Config{Dir: dir, FlushInterval: time.Hour, FilterSaveInterval: time.Hour}
}

// logBuffer collects log lines of several goroutines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) count(event string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.buf.Bytes(), []byte(`"event":"`+event+`"`))
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(l, nil)) }

// fataler is what *testing.T, *testing.B and *rapid.T have in common.
type fataler interface {
	require.TestingT
	Helper()
	Fatalf(format string, args ...any)
}

func newTables(t fataler, cfg Config) *Tables {
	t.Helper()
	tables, err := New(cfg, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	return tables
}

func openStore(t fataler, tables *Tables) *Store {
	t.Helper()
	s, err := tables.build(testTopic, 3)
	require.NoError(t, err)
	require.NoError(t, s.Open())
	return s
}

// open opens a store that the end of the test closes.
func open(t *testing.T, cfg Config) *Store {
	t.Helper()
	s := openStore(t, newTables(t, cfg))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// change is one record of a changelog; a nil value is a tombstone.
type change struct {
	key   string
	value []byte
}

// changelog is a table topic's partition: offsets are indexes.
type changelog []change

func (c changelog) apply(to map[string]string, from int) {
	for _, r := range c[from:] {
		if r.value == nil {
			delete(to, r.key)
			continue
		}
		to[r.key] = string(r.value)
	}
}

func (c changelog) replay() map[string]string {
	m := make(map[string]string)
	c.apply(m, 0)
	return m
}

// superseded tells which records compaction may remove.
func (c changelog) superseded() []bool {
	gone := make([]bool, len(c))
	last := make(map[string]bool)
	for i := len(c) - 1; i >= 0; i-- {
		gone[i] = last[c[i].key]
		last[c[i].key] = true
	}
	return gone
}

// recoverStore does what Goka's PartitionTable does before a partition is processed. With rng, some records that compaction could
// have removed are not there.
func recoverStore(t fataler, s *Store, log changelog, rng *rand.Rand) error {
	t.Helper()
	stored, err := s.GetOffset(notStored)
	if err != nil {
		return err
	}
	start := 0
	if stored != notStored {
		start = int(stored) + 1
	}
	gone := log.superseded()
	for o := start; o < len(log); o++ {
		if rng != nil && gone[o] && rng.IntN(2) == 0 {
			continue
		}
		if log[o].value == nil {
			err = s.Delete(log[o].key)
		} else {
			err = s.Set(log[o].key, log[o].value)
		}
		if err != nil {
			return err
		}
		if err := s.SetOffset(int64(o)); err != nil {
			return err
		}
	}
	return s.MarkRecovered()
}

// contents reads a whole table by its iterator and checks that Get and Has say the same.
func contents(t fataler, s *Store) (map[string]string, error) {
	t.Helper()
	it, err := s.Iterator()
	if err != nil {
		return nil, err
	}
	defer it.Release()
	m := make(map[string]string)
	previous := []byte(nil)
	for it.Next() {
		value, err := it.Value()
		require.NoError(t, err)
		if previous != nil && bytes.Compare(previous, it.Key()) >= 0 {
			t.Fatalf("key %q after %q", it.Key(), previous)
		}
		previous = append(previous[:0], it.Key()...)
		m[string(it.Key())] = string(value)
	}
	if err := it.Err(); err != nil {
		return nil, err
	}
	for key, want := range m {
		got, err := s.Get(key)
		if err != nil {
			return nil, err
		}
		if got == nil || string(got) != want {
			t.Fatalf("the iterator has %q = %q, Get returns %q (nil: %t): the filter does not know a key that is on disk", key, want, got, got == nil)
		}
		has, err := s.Has(key)
		if err != nil {
			return nil, err
		}
		if !has {
			t.Fatalf("the iterator has %q, Has says no", key)
		}
	}
	return m, nil
}

func mustContents(t fataler, s *Store) map[string]string {
	t.Helper()
	m, err := contents(t, s)
	require.NoError(t, err)
	return m
}

// copyDir makes the image that a SIGKILL at this moment would leave. LevelDB may be merging tables in the background: the copy is
// made again until nothing moved meanwhile.
func copyDir(t fataler, from, to string) {
	t.Helper()
	for range 1000 {
		before := listing(t, from)
		require.NoError(t, os.RemoveAll(to))
		require.NoError(t, os.MkdirAll(to, 0o755))
		var err error
		for name := range before {
			var data []byte
			if data, err = os.ReadFile(filepath.Join(from, name)); err != nil {
				break
			}
			require.NoError(t, os.WriteFile(filepath.Join(to, name), data, 0o600))
		}
		if err == nil && maps.Equal(before, listing(t, from)) {
			return
		}
	}
	t.Fatalf("%s does not come to rest", from)
}

// listing returns the sizes of a directory's files, LevelDB's diary left out.
func listing(t fataler, dir string) map[string]int64 {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	sizes := make(map[string]int64)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.Name() != "LOG" {
			sizes[e.Name()] = info.Size()
		}
	}
	return sizes
}

// faultyFiles puts faults between LevelDB and its files.
type faultyFiles struct {
	ldbstorage.Storage
	create func(ldbstorage.FileDesc) error
	write  func(ldbstorage.FileDesc) error
}

func (f *faultyFiles) Create(fd ldbstorage.FileDesc) (ldbstorage.Writer, error) {
	if f.create != nil {
		if err := f.create(fd); err != nil {
			return nil, err
		}
	}
	w, err := f.Storage.Create(fd)
	if err != nil {
		return nil, err
	}
	return &faultyWriter{Writer: w, fd: fd, files: f}, nil
}

type faultyWriter struct {
	ldbstorage.Writer
	fd    ldbstorage.FileDesc
	files *faultyFiles
}

func (w *faultyWriter) Write(p []byte) (int, error) {
	if w.files.write != nil {
		if err := w.files.write(w.fd); err != nil {
			return 0, err
		}
	}
	return w.Writer.Write(p)
}

// withFaults makes the tables' stores use the given faults.
func withFaults(tables *Tables, faults *faultyFiles) {
	inner := tables.openFiles
	tables.openFiles = func(dir string) (ldbstorage.Storage, error) {
		files, err := inner(dir)
		if err != nil {
			return nil, err
		}
		return &faultyFiles{Storage: files, create: faults.create, write: faults.write}, nil
	}
}

// tempDir is a directory for one run of a property; t.TempDir would keep all of them until the test ends.
func tempDir(t *rapid.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tablestore")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}
