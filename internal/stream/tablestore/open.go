package tablestore

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/syndtr/goleveldb/leveldb"
	ldbfilter "github.com/syndtr/goleveldb/leveldb/filter"
	"github.com/syndtr/goleveldb/leveldb/opt"
	"github.com/syndtr/goleveldb/leveldb/util"
)

const (
	// markerFile in a directory says that a file in it was found damaged while in use.
	markerFile = "DAMAGED"
	// A directory to be dropped is renamed first: a crash while it is being removed then leaves no half of it to be opened.
	droppedSuffix = ".dropped"

	levelZeroTrigger  = 16
	levelZeroSlowdown = 48
	levelZeroPause    = 64
	tableFilterBits   = 10
)

// Open opens the directory, or drops it and starts empty when it cannot be opened as it is: the changelog has everything.
// A directory that somebody else has open, a full disk or missing rights are errors and leave the directory alone.
func (s *Store) Open() error {
	s.mu.Lock()
	state := s.state
	s.mu.Unlock()
	if state != stateNew {
		return s.because(errors.New("it was opened before"))
	}
	begin := time.Now()
	scanned, err := s.openDirectory()
	if err != nil && !isEnvironment(err) {
		if err = s.drop(err); err == nil {
			scanned, err = s.openDirectory()
		}
	}
	if err != nil {
		return s.because(errors.Join(fmt.Errorf("opening %s: %w", s.dir, err), s.closeFiles()))
	}
	s.mu.Lock()
	s.state, s.scanned = stateOpen, scanned
	s.mu.Unlock()
	s.onOpen()
	s.metrics.pinned.Set(0)
	go s.live()
	st := s.Stats()
	s.log.Info("table store opened", "event", "table-store-opened", "dir", s.dir, "offset", st.Offset, "keys", st.Keys,
		"filter_scanned", scanned, "duration_ms", time.Since(begin).Milliseconds())
	return nil
}

// openDirectory leaves open what it has opened when it fails: the lock protects the directory until it is dropped.
func (s *Store) openDirectory() (scanned bool, err error) {
	if err := s.openLevelDB(); err != nil {
		return false, err
	}
	if err := s.readOwnKeys(); err != nil {
		return false, err
	}
	return s.loadFilter()
}

func (s *Store) openLevelDB() error {
	if err := os.RemoveAll(s.dir + droppedSuffix); err != nil {
		return fmt.Errorf("removing what was dropped before: %w", err)
	}
	files, err := s.openFiles(s.dir) // takes the lock
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("another store or process has it open: %w", err)
	}
	if err != nil {
		return err
	}
	s.files = files
	s.metrics = s.allMetrics.of(s.labels)
	if reason, err := os.ReadFile(filepath.Join(s.dir, markerFile)); err == nil {
		return fmt.Errorf("%w: found damaged while in use: %s", errIncomplete, reason)
	}
	empty, err := inspect(files)
	if err != nil {
		return err
	}
	s.db, err = leveldb.Open(files, s.options(empty))
	return err
}

func (s *Store) options(empty bool) *opt.Options {
	return &opt.Options{
		ErrorIfMissing:         !empty,
		WriteBuffer:            s.cfg.WriteBuffer,
		BlockCacheCapacity:     s.cfg.BlockCache,
		CompactionL0Trigger:    levelZeroTrigger,
		WriteL0SlowdownTrigger: levelZeroSlowdown,
		WriteL0PauseTrigger:    levelZeroPause,
		Compression:            opt.NoCompression, // ids do not shrink
		Filter:                 ldbfilter.NewBloomFilter(tableFilterBits),
		Strict:                 opt.StrictAll,
		// A large batch would bypass the journal, and with it what inspect can tell.
		DisableLargeBatchTransaction: true,
	}
}

func (s *Store) readOwnKeys() error {
	offset, found, err := s.own(ownOffset)
	if err != nil {
		return err
	}
	if found {
		value, err := strconv.ParseInt(string(offset), 10, 64)
		if err != nil {
			return fmt.Errorf("%w: offset %q", errIncomplete, offset)
		}
		s.disk = diskOffset{value, true}
		s.offset.value, s.offset.known = value, true
	} else {
		s.disk = diskOffset{}
		s.offset.value, s.offset.known = 0, false
	}
	number, found, err := s.own(ownFlush)
	if err != nil {
		return err
	}
	s.flusher.number = 0
	if found {
		if len(number) != 8 {
			return fmt.Errorf("%w: flush number %q", errIncomplete, number)
		}
		s.flusher.number = binary.LittleEndian.Uint64(number)
	}
	return nil
}

func (s *Store) own(key string) ([]byte, bool, error) {
	value, err := s.db.Get([]byte(key), nil)
	if errors.Is(err, leveldb.ErrNotFound) {
		return nil, false, nil
	}
	return value, err == nil, err
}

// loadFilter uses the filter's files if they cover exactly what LevelDB holds, and scans the keys otherwise.
func (s *Store) loadFilter() (scanned bool, err error) {
	id, found, err := s.own(ownFilterID)
	if err != nil {
		return false, err
	}
	files := &filterFiles{dir: s.dir}
	s.flusher.files, s.flusher.savedAt = files, time.Now()
	if found && len(id) == len(files.id) {
		files.id = filterID(id)
		loaded, last, err := files.load()
		// One more than LevelDB: the crash came between the filter's log and the batch, the hashes are merely too many.
		if err == nil && (last == s.flusher.number || last == s.flusher.number+1) {
			s.filter, s.flusher.number = loaded, last
			return false, nil
		}
		if err := files.close(); err != nil {
			return false, err
		}
	}
	if _, err := rand.Read(files.id[:]); err != nil {
		return false, fmt.Errorf("making an id for the filter: %w", err)
	}
	if err := s.db.Put([]byte(ownFilterID), files.id[:], &opt.WriteOptions{Sync: true}); err != nil {
		return false, fmt.Errorf("writing the filter's id: %w", err)
	}
	s.filter, err = s.scan()
	s.flusher.savedAt = time.Time{} // save it soon
	return true, err
}

func (s *Store) scan() (*filter, error) {
	f := newFilter()
	it := s.db.NewIterator(&util.Range{Start: []byte{tablePrefix}, Limit: []byte{tableLimit}}, &opt.ReadOptions{DontFillCache: true})
	defer it.Release()
	for it.Next() {
		f.add(xxhash.Sum64(it.Key()[1:])) // as hashOf, without a copy
	}
	if err := it.Error(); err != nil {
		return nil, fmt.Errorf("scanning the keys: %w", err)
	}
	return f, nil
}

// isEnvironment tells errors that dropping the directory would not mend.
func isEnvironment(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EWOULDBLOCK, syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT,
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// drop moves the directory away and removes it, lock file and all.
func (s *Store) drop(reason error) error {
	s.log.Warn("the table store cannot be opened: its directory is dropped and read again from the changelog",
		"event", "table-store-dropped", "dir", s.dir, "error", reason)
	s.allMetrics.dropped.WithLabelValues(s.labels...).Inc()
	away := s.dir + droppedSuffix
	if err := os.Rename(s.dir, away); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("moving the damaged directory away: %w", err)
	}
	if err := s.closeFiles(); err != nil {
		s.log.Debug("closing the damaged table store", "event", "table-store-dropped", "dir", away, "error", err)
	}
	if err := os.RemoveAll(away); err != nil {
		return fmt.Errorf("removing the damaged directory: %w", err)
	}
	return nil
}

// live runs the flusher and then closes everything.
func (s *Store) live() {
	err := s.runFlusher()
	s.life.Lock()
	s.iterMu.Lock()
	for i := range s.iterators {
		i.release(s.because(ErrClosed))
	}
	s.iterMu.Unlock()
	s.onClose()
	s.metrics.forget() // while the lock still keeps a successor out
	err = errors.Join(err, s.closeFiles())
	s.life.Unlock()
	s.closed <- err
}

func (s *Store) closeFiles() error {
	var err error
	if s.db != nil {
		err = s.db.Close()
		s.db = nil
	}
	if s.files != nil {
		err = errors.Join(err, s.files.Close())
		s.files = nil
	}
	return err
}

// Close flushes, saves the filter and gives the directory free, within CloseTimeout. Waiting writers are sent away, open iterators end.
// After a timeout the work goes on, and until it ends the directory cannot be opened again. Closing twice does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	was := s.state
	s.state = stateClosed
	s.space.Broadcast()
	s.mu.Unlock()
	if was != stateOpen {
		return nil
	}
	close(s.quit)
	timer := time.NewTimer(s.cfg.CloseTimeout)
	defer timer.Stop()
	select {
	case err := <-s.closed:
		if err != nil {
			return s.because(fmt.Errorf("closing: %w", err))
		}
		return nil
	case <-timer.C:
		return s.because(fmt.Errorf("closing took longer than %s: the disk does not answer; what was not flushed is read again from the changelog", s.cfg.CloseTimeout))
	}
}

func writeMarker(dir string, reason error) error {
	err := os.WriteFile(filepath.Join(dir, markerFile), []byte(reason.Error()+"\n"), 0o600)
	if err != nil {
		return fmt.Errorf("noting the damage: %w", err)
	}
	return nil
}
