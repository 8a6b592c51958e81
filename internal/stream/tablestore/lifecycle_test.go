package tablestore

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	ldbstorage "github.com/syndtr/goleveldb/leveldb/storage"
)

func TestCloseFlushesAndSendsWaitersAway(t *testing.T) {
	cfg := idle(t.TempDir())
	cfg.FlushWrites = 10
	tables := newTables(t, cfg)
	g := newGate()
	withFaults(tables, g.faults())
	s := openStore(t, tables)
	require.NoError(t, s.MarkRecovered())
	g.shut.Store(true)
	waiting := make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			if err := s.Set(fmt.Sprintf("key-%02d", i), nil); err != nil {
				waiting <- err
				return
			}
		}
	}()
	require.Eventually(t, func() bool { return s.Stats().Unflushed == 40 }, 10*time.Second, time.Millisecond)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	require.ErrorIs(t, <-waiting, ErrClosed)
	g.release()
	require.NoError(t, <-closed)

	s = openStore(t, newTables(t, cfg))
	require.Len(t, mustContents(t, s), 40)
	require.NoError(t, s.Close())
}

func TestCloseIsBounded(t *testing.T) {
	cfg := idle(t.TempDir())
	cfg.CloseTimeout = 20 * time.Millisecond
	tables := newTables(t, cfg)
	g := newGate()
	withFaults(tables, g.faults())
	s := openStore(t, tables)
	require.NoError(t, s.Set("k", []byte("v")))
	g.shut.Store(true)
	require.ErrorContains(t, s.Close(), "closing took longer than 20ms")

	// The directory is still in use, and is not dropped for that.
	again, err := tables.build(testTopic, 3)
	require.NoError(t, err)
	require.ErrorContains(t, again.Open(), "another store or process has it open")
	require.NoError(t, again.Close())
	g.release()
	require.NoError(t, <-s.closed)
	s = openStore(t, newTables(t, cfg))
	require.Equal(t, map[string]string{"k": "v"}, mustContents(t, s))
	require.NoError(t, s.Close())
}

func TestClosedStoreRefusesEverything(t *testing.T) {
	s, err := newTables(t, idle(t.TempDir())).build(testTopic, 3)
	require.NoError(t, err)
	refuse := func() {
		_, getErr := s.Get("k")
		_, hasErr := s.Has("k")
		_, offsetErr := s.GetOffset(0)
		_, iteratorErr := s.Iterator()
		for what, err := range map[string]error{
			"Get": getErr, "Has": hasErr, "GetOffset": offsetErr, "Iterator": iteratorErr,
			"Set": s.Set("k", nil), "Delete": s.Delete("k"), "SetOffset": s.SetOffset(1), "MarkRecovered": s.MarkRecovered(),
		} {
			require.ErrorIs(t, err, ErrClosed, what)
		}
	}
	refuse() // not open yet
	require.NoError(t, s.Open())
	require.Error(t, s.Open(), "only once")
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	refuse()
	require.Error(t, s.Open(), "a new store has to be built")

	never, err := newTables(t, idle(t.TempDir())).build(testTopic, 3)
	require.NoError(t, err)
	require.NoError(t, never.Close(), "Goka closes a store that it could not open")
}

func TestIteratorIsASnapshotAndEndsWithTheStore(t *testing.T) {
	s := openStore(t, newTables(t, idle(t.TempDir())))
	for i := range 10 {
		require.NoError(t, s.Set(fmt.Sprint(i), []byte("old")))
	}
	it, err := s.Iterator()
	require.NoError(t, err)
	require.True(t, it.Next())
	for i := range 20 {
		require.NoError(t, s.Set(fmt.Sprint(i), []byte("new")))
	}
	require.NoError(t, s.ask(taskFlush))
	for i := 1; i < 5; i++ {
		require.True(t, it.Next())
		value, err := it.Value()
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(i)+" old", string(it.Key())+" "+string(value))
	}
	released, err := s.Iterator()
	require.NoError(t, err)
	released.Release()
	require.False(t, released.Next())
	require.NoError(t, released.Err())
	require.NoError(t, s.Close())
	require.False(t, it.Next())
	require.False(t, it.Seek([]byte("1")))
	require.ErrorIs(t, it.Err(), ErrClosed)
	it.Release()
}

func TestFlushesByItself(t *testing.T) {
	for name, cfg := range map[string]Config{
		"after the interval": {FlushInterval: time.Millisecond},
		"when full":          {FlushInterval: time.Hour, FlushWrites: 5},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Dir = t.TempDir()
			s := open(t, cfg)
			for o := range int64(10) {
				require.NoError(t, s.Set(fmt.Sprint(o), nil))
				require.NoError(t, s.SetOffset(o))
			}
			require.Eventually(t, func() bool { st := s.Stats(); return st.Unflushed < 5 && st.OnDisk >= 4 }, 10*time.Second, time.Millisecond)
		})
	}
}

// Without writes an acknowledgement alone reaches the disk: it comes after its value was flushed.
func TestOffsetAloneIsFlushed(t *testing.T) {
	cfg := idle(t.TempDir())
	s := openStore(t, newTables(t, cfg))
	require.NoError(t, recoverStore(t, s, changelog{{"a", []byte("1")}}, nil))
	require.NoError(t, s.Set("b", []byte("2")))
	require.NoError(t, s.ask(taskFlush))
	require.Equal(t, int64(0), s.Stats().OnDisk)
	require.NoError(t, s.SetOffset(1))
	require.NoError(t, s.Close())
	s = openStore(t, newTables(t, cfg))
	require.Equal(t, int64(1), s.Stats().Offset)
	require.NoError(t, s.Close())
}

func TestLockedOrUnusableDirectoryIsNotDropped(t *testing.T) {
	cfg := idle(t.TempDir())
	s := open(t, cfg)
	require.NoError(t, s.Set("k", []byte("v")))
	out := &logBuffer{}
	tables, err := New(cfg, out.logger(), nil)
	require.NoError(t, err)
	rival, err := tables.build(testTopic, 3)
	require.NoError(t, err)
	require.ErrorContains(t, rival.Open(), "another store or process has it open")

	for _, errno := range []syscall.Errno{syscall.EACCES, syscall.ENOSPC, syscall.EMFILE, syscall.EROFS} {
		tables.openFiles = func(dir string) (ldbstorage.Storage, error) {
			return nil, &os.PathError{Op: "open", Path: dir, Err: errno}
		}
		rival, err = tables.build(testTopic, 3)
		require.NoError(t, err)
		require.ErrorIs(t, rival.Open(), errno)
	}
	require.Zero(t, out.count("table-store-dropped"))
	require.Equal(t, map[string]string{"k": "v"}, mustContents(t, s))
}

func TestDroppedDirectoryLeavesNothingBehind(t *testing.T) {
	cfg := idle(t.TempDir())
	dir := filepath.Join(cfg.Dir, testTopic+".3")
	s := openStore(t, newTables(t, cfg))
	require.NoError(t, s.Set("k", []byte("v")))
	require.NoError(t, s.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "CURRENT"), []byte("nonsense"), 0o600))
	// A crash during an earlier drop.
	require.NoError(t, os.MkdirAll(dir+droppedSuffix, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir+droppedSuffix, "000001.log"), []byte("half"), 0o600))

	out, reg := &logBuffer{}, prometheus.NewRegistry()
	tables, err := New(cfg, out.logger(), reg)
	require.NoError(t, err)
	s = openStore(t, tables)
	require.Equal(t, none, s.Stats().Offset)
	require.Empty(t, mustContents(t, s))
	require.Equal(t, 1, out.count("table-store-dropped"))
	require.Equal(t, 1, int(testutil.ToFloat64(tables.metrics.dropped)))
	require.NoError(t, s.Close())
	entries, err := os.ReadDir(cfg.Dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestSeveralStoresAndBuildersShareOneRegistry(t *testing.T) {
	reg, out := prometheus.NewRegistry(), &logBuffer{}
	base := t.TempDir()
	own, err := New(idle(filepath.Join(base, "own")), out.logger(), reg)
	require.NoError(t, err)
	cfg := idle(filepath.Join(base, "view"))
	cfg.Follow = true
	view, err := New(cfg, out.logger(), reg)
	require.NoError(t, err)
	var stores []*Store
	for _, tables := range []*Tables{own, view} {
		for p := range int32(3) {
			s, err := tables.build(testTopic, p)
			require.NoError(t, err)
			require.NoError(t, s.Open())
			require.NoError(t, s.Set("k", nil))
			require.NoError(t, s.SetOffset(5))
			require.NoError(t, s.ask(taskFlush))
			stores = append(stores, s)
		}
	}
	for name, want := range map[string]int{
		"vitrina_table_flush_duration_seconds": 6, "vitrina_table_unflushed_writes": 6, "vitrina_table_offset_pinned": 6,
		"vitrina_table_filter_bytes": 6, "vitrina_table_keys": 6,
	} {
		n, err := testutil.GatherAndCount(reg, name)
		require.NoError(t, err)
		require.Equal(t, want, n, name)
	}
	stats := own.Stats()
	require.Len(t, stats, 3)
	for p, st := range stats {
		require.Equal(t, int32(p), st.Partition)
		require.Equal(t, Stats{
			Topic: testTopic, Partition: int32(p), Keys: 1, Offset: 5, OnDisk: 5, FilterBytes: firstLayerKeys * filterBits / 8,
			LastFlush: st.LastFlush, Scanned: true,
		}, st)
		require.False(t, st.LastFlush.IsZero())
	}
	for _, s := range stores {
		require.NoError(t, s.Close())
	}
	require.Empty(t, own.Stats())
	n, err := testutil.GatherAndCount(reg, "vitrina_table_unflushed_writes", "vitrina_table_offset_pinned")
	require.NoError(t, err)
	require.Zero(t, n, "partitions given up are another instance's to report")
}

func TestConfigNamesEveryFault(t *testing.T) {
	require.NoError(t, Config{Dir: "/state"}.Validate())
	bad := Config{
		FlushWrites: -1, FlushBytes: -1, FlushInterval: -time.Second, FilterSaveInterval: time.Microsecond, WriteBuffer: 1, BlockCache: -1, CloseTimeout: -1,
	}
	err := bad.Validate()
	for _, fault := range []string{"dir", "flush writes", "flush bytes", "flush interval", "filter save interval", "write buffer", "block cache", "close timeout"} {
		require.ErrorContains(t, err, fault)
	}
	_, err = Builder(bad, (&logBuffer{}).logger(), nil)(testTopic, 0)
	require.ErrorContains(t, err, "dir is empty")
	_, err = New(Config{Dir: "/state"}, nil, nil)
	require.ErrorContains(t, err, "no logger")
	build := Builder(idle(t.TempDir()), (&logBuffer{}).logger(), nil)
	_, err = build("", 0)
	require.Error(t, err)
	s, err := build(testTopic, 0)
	require.NoError(t, err)
	require.NoError(t, s.Open())
	require.NoError(t, s.Close())
}
