package tablestore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	ldbstorage "github.com/syndtr/goleveldb/leveldb/storage"
)

// gate stops LevelDB's journal writes while it is shut.
type gate struct {
	shut    atomic.Bool
	arrived chan struct{}
	open    chan struct{}
}

func newGate() *gate { return &gate{arrived: make(chan struct{}, 1000), open: make(chan struct{})} }

func (g *gate) faults() *faultyFiles {
	return &faultyFiles{write: func(fd ldbstorage.FileDesc) error {
		if fd.Type == ldbstorage.TypeJournal && g.shut.Load() {
			g.arrived <- struct{}{}
			<-g.open
		}
		return nil
	}}
}

func (g *gate) release() {
	g.shut.Store(false)
	close(g.open)
}

func TestReadsFindWritesWhereverTheyAre(t *testing.T) {
	tables := newTables(t, idle(t.TempDir()))
	g := newGate()
	withFaults(tables, g.faults())
	s := openStore(t, tables)
	for _, key := range []string{"disk", "both", "gone"} {
		require.NoError(t, s.Set(key, []byte("disk")))
	}
	require.NoError(t, s.ask(taskFlush))
	g.shut.Store(true)
	require.NoError(t, s.Set("flushing", []byte("flushing")))
	require.NoError(t, s.Set("both", []byte("flushing")))
	require.NoError(t, s.Delete("gone"))
	flushed := make(chan error, 1)
	go func() { flushed <- s.ask(taskFlush) }()
	<-g.arrived
	require.NoError(t, s.Set("memory", []byte("memory")))
	require.NoError(t, s.Set("empty", nil))

	check := func(both string) {
		for key, want := range map[string]string{"disk": "disk", "flushing": "flushing", "memory": "memory", "both": both, "empty": ""} {
			got, err := s.Get(key)
			require.NoError(t, err)
			require.NotNil(t, got, key)
			require.Equal(t, want, string(got), key)
			has, err := s.Has(key)
			require.NoError(t, err)
			require.True(t, has, key)
		}
		for _, key := range []string{"gone", "never"} {
			got, err := s.Get(key)
			require.NoError(t, err)
			require.Nil(t, got, key)
			has, err := s.Has(key)
			require.NoError(t, err)
			require.False(t, has, key)
		}
	}
	check("flushing")
	require.NoError(t, s.Set("both", []byte("memory")))
	check("memory")
	g.release()
	require.NoError(t, <-flushed)
	check("memory")
	require.NoError(t, s.ask(taskFlush))
	check("memory")
	require.NoError(t, s.Close())
}

func TestGetReturnsTheCallersOwnBytes(t *testing.T) {
	s := open(t, idle(t.TempDir()))
	require.NoError(t, s.Set("k", []byte("value")))
	for range 2 { // in memory, then on disk
		got, err := s.Get("k")
		require.NoError(t, err)
		require.Equal(t, "value", string(got))
		clear(got)
		require.NoError(t, s.ask(taskFlush))
	}
}

func TestSetWaitsForTheDisk(t *testing.T) {
	for name, limit := range map[string]func(*Config){
		"writes": func(c *Config) { c.FlushWrites = 10 },
		"bytes":  func(c *Config) { c.FlushBytes = 10 * (len("key-00") + 100) },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := idle(t.TempDir())
			limit(&cfg)
			tables := newTables(t, cfg)
			g := newGate()
			withFaults(tables, g.faults())
			s := openStore(t, tables)
			g.shut.Store(true)
			var done atomic.Int64
			var wg sync.WaitGroup
			wg.Go(func() {
				for i := range 60 {
					if s.Set(fmt.Sprintf("key-%02d", i), make([]byte, 100)) != nil {
						return
					}
					done.Add(1)
				}
			})
			require.Eventually(t, func() bool { return done.Load() == 40 }, 10*time.Second, time.Millisecond)
			require.Never(t, func() bool { return done.Load() > 40 }, 50*time.Millisecond, 10*time.Millisecond)
			require.Equal(t, 40, s.Stats().Unflushed)
			g.release()
			wg.Wait()
			require.Equal(t, int64(60), done.Load())
			require.Len(t, mustContents(t, s), 60)
			require.NoError(t, s.Close())
		})
	}
}

func TestFailedFlushStaysFailed(t *testing.T) {
	out := &logBuffer{}
	tables, err := New(idle(t.TempDir()), out.logger(), nil)
	require.NoError(t, err)
	broken := errors.New("no space left")
	var fail atomic.Bool
	withFaults(tables, &faultyFiles{write: func(fd ldbstorage.FileDesc) error {
		if fail.Load() && fd.Type == ldbstorage.TypeJournal {
			return broken
		}
		return nil
	}})
	s := openStore(t, tables)
	require.NoError(t, s.MarkRecovered())
	require.NoError(t, s.Set("before", []byte("1")))
	require.NoError(t, s.ask(taskFlush))
	fail.Store(true)
	require.NoError(t, s.Set("lost", []byte("1")))
	require.ErrorIs(t, s.ask(taskFlush), broken)
	fail.Store(false) // the disk works again, the store does not: it cannot know what LevelDB kept

	_, getErr := s.Get("before")
	_, hasErr := s.Has("before")
	_, offsetErr := s.GetOffset(0)
	_, iteratorErr := s.Iterator()
	for what, err := range map[string]error{
		"Get": getErr, "Has": hasErr, "GetOffset": offsetErr, "Iterator": iteratorErr,
		"Set": s.Set("k", nil), "Delete": s.Delete("before"), "SetOffset": s.SetOffset(1), "MarkRecovered": s.MarkRecovered(),
		"flush": s.ask(taskFlush), "Stats": s.Stats().Err,
	} {
		require.ErrorIs(t, err, broken, what)
	}
	require.Equal(t, 1, out.count("table-store-failed"))
	require.ErrorIs(t, s.Close(), broken)
}

func TestFailedFlushFreesWaitingWriters(t *testing.T) {
	cfg := idle(t.TempDir())
	cfg.FlushWrites = 1
	tables := newTables(t, cfg)
	broken := errors.New("no space left")
	var armed atomic.Bool
	release := make(chan struct{})
	withFaults(tables, &faultyFiles{write: func(fd ldbstorage.FileDesc) error {
		if !armed.Load() {
			return nil
		}
		<-release
		return broken
	}})
	s := openStore(t, tables)
	armed.Store(true)
	failed := make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			if err := s.Set(fmt.Sprint(i), nil); err != nil {
				failed <- err
				return
			}
		}
	}()
	require.Eventually(t, func() bool { return s.Stats().Unflushed == blockFactor }, 10*time.Second, time.Millisecond)
	close(release)
	require.ErrorIs(t, <-failed, broken)
	require.ErrorIs(t, s.Close(), broken)
}

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

	for _, errno := range []error{os.ErrPermission} {
		inner := tables.openFiles
		tables.openFiles = func(dir string) (ldbstorage.Storage, error) {
			return nil, &os.PathError{Op: "open", Path: dir, Err: syscall.EACCES}
		}
		rival, err = tables.build(testTopic, 3)
		require.NoError(t, err)
		require.ErrorIs(t, rival.Open(), errno)
		tables.openFiles = inner
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
	require.Equal(t, 1.0, testutil.ToFloat64(tables.metrics.dropped))
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
	require.NoError(t, Default("/state").Validate())
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

// One writer, its acknowledgements, readers and iterators at once, while everything is flushed and closed under them.
func TestConcurrentUse(t *testing.T) {
	cfg := tight(t.TempDir())
	s := openStore(t, newTables(t, cfg))
	require.NoError(t, s.MarkRecovered())
	const keys, rounds = 500, 20
	var wg sync.WaitGroup
	fine := func(err error) bool {
		if err != nil && !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		return err == nil
	}
	acks := make(chan int64, 100)
	wg.Go(func() {
		for o := range acks {
			if o > 0 && !fine(s.SetOffset(o)) {
				return
			}
		}
	})
	wg.Go(func() {
		defer close(acks)
		for o := range int64(keys * rounds) {
			if !fine(s.Set(fmt.Sprint(o%keys), []byte(fmt.Sprint(o)))) {
				return
			}
			acks <- o
		}
	})
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := s.Get(fmt.Sprint(i % keys)); !fine(err) {
					return
				}
				s.Stats()
			}
		})
		readers.Go(func() {
			for {
				it, err := s.Iterator()
				if !fine(err) {
					return
				}
				for it.Next() {
				}
				if !fine(it.Err()) {
					it.Release()
					return
				}
				it.Release()
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, s.Close()) // under the readers
	close(stop)
	readers.Wait()
	s = openStore(t, newTables(t, cfg))
	require.Equal(t, int64(keys*rounds-1), s.Stats().Offset)
	require.Len(t, mustContents(t, s), keys)
	require.NoError(t, s.Close())
}
