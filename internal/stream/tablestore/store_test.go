package tablestore

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
