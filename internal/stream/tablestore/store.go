package tablestore

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/lovoo/goka/storage"
	"github.com/syndtr/goleveldb/leveldb"
	ldberrors "github.com/syndtr/goleveldb/leveldb/errors"
	ldbstorage "github.com/syndtr/goleveldb/leveldb/storage"
)

// ErrClosed is returned by every call on a store that is not open.
var ErrClosed = errors.New("table store is closed")

// Store is one partition of a table; it implements Goka's storage.Storage. All methods are safe for concurrent use. Values given to
// Set and returned by Get are the caller's own.
//
// Once a flush has failed, or a file has turned out damaged, every later call returns that error: what is in memory could
// then be newer than anything the disk will ever hold, and the processor has to start again from the changelog.
type Store struct {
	cfg        Config
	topic      string
	partition  int32
	dir        string
	log        *slog.Logger
	allMetrics *metrics
	labels     []string
	metrics    *storeMetrics // set when the directory is locked
	openFiles  func(dir string) (ldbstorage.Storage, error)
	onOpen     func()
	onClose    func()

	// mu guards the fields up to the next blank line.
	mu        sync.Mutex
	space     *sync.Cond // signalled when writers may go on
	state     state
	failure   error
	pending   *writes // since the last flush began
	flushing  *writes // of the flush under way, which reads them without mu: they do not change until it is done
	filter    *filter
	offset    offsetState
	disk      diskOffset
	lastFlush time.Time
	warned    bool // a pinned offset is logged once
	scanned   bool // the filter was built by a scan

	// life is held for reading while LevelDB is used and for writing while it is closed.
	life      sync.RWMutex
	db        *leveldb.DB
	files     ldbstorage.Storage
	iterMu    sync.Mutex
	iterators map[*iterator]struct{}

	kick    chan struct{}
	tasks   chan task
	quit    chan struct{}
	stopped chan struct{} // the flusher has ended
	closed  chan error    // everything is closed

	flusher flusher // the flusher goroutine's own
}

var _ storage.Storage = (*Store)(nil)

type state int

const (
	stateNew state = iota
	stateOpen
	stateClosed
)

// diskOffset is the offset in LevelDB.
type diskOffset struct {
	value int64
	known bool
}

// Has tells whether the key has a value.
func (s *Store) Has(key string) (bool, error) {
	value, found, err := s.inMemory(key)
	if err != nil || found {
		return value != nil, err
	}
	s.life.RLock()
	defer s.life.RUnlock()
	if s.db == nil {
		return false, s.because(ErrClosed)
	}
	ok, err := s.db.Has(appendKey(nil, key), nil)
	if err != nil {
		return false, s.readFailed(err)
	}
	return ok, nil
}

// Get returns the key's value, or nil when it has none; an empty value is not nil.
func (s *Store) Get(key string) ([]byte, error) {
	value, found, err := s.inMemory(key)
	if err != nil || found {
		return value, err
	}
	s.life.RLock()
	defer s.life.RUnlock()
	if s.db == nil {
		return nil, s.because(ErrClosed)
	}
	var buf [64]byte
	value, err = s.db.Get(appendKey(buf[:0], key), nil)
	if errors.Is(err, leveldb.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, s.readFailed(err)
	}
	return value, nil
}

// inMemory answers what needs no disk, with a nil value for a key that has none: the filter does not know it, or it was deleted.
// Only a key that is not in memory may be looked for in LevelDB: its writes, if any, were flushed before.
func (s *Store) inMemory(key string) (value []byte, found bool, err error) {
	hash := hashOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return nil, false, err
	}
	if !s.filter.has(hash) {
		return nil, true, nil
	}
	for _, w := range [...]*writes{s.pending, s.flushing} {
		if e := w.find(hash, key); e != nil {
			if e.deleted() {
				return nil, true, nil
			}
			return append(make([]byte, 0, e.valueLen), w.value(e)...), true, nil // the flush's end gives its memory to other writes
		}
	}
	return nil, false, nil
}

// Set writes a value into memory and returns; within FlushInterval it is on disk. It waits while four times the flush limits are
// unflushed.
func (s *Store) Set(key string, value []byte) error { return s.put(key, value, false) }

// Delete removes a key. Goka reports no offset for a tombstone, so a Delete by a processor pins the offset until the next recovery.
func (s *Store) Delete(key string) error { return s.put(key, nil, true) }

func (s *Store) put(key string, value []byte, deleted bool) error {
	hash := hashOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if err := s.usable(); err != nil {
			return err
		}
		if len(s.pending.list)+len(s.flushing.list) < blockFactor*s.cfg.FlushWrites &&
			len(s.pending.data)+len(s.flushing.data) < blockFactor*s.cfg.FlushBytes {
			break
		}
		s.kickFlusher()
		s.space.Wait()
	}
	s.offset.wrote()
	if deleted && !s.filter.has(hash) {
		return nil // it is nowhere
	}
	if !deleted {
		s.filter.add(hash)
	}
	s.pending.put(hash, key, value, deleted)
	if len(s.pending.list) >= s.cfg.FlushWrites || len(s.pending.data) >= s.cfg.FlushBytes {
		s.kickFlusher()
	}
	return nil
}

func (s *Store) kickFlusher() {
	select {
	case s.kick <- struct{}{}:
	default: // it has been told
	}
}

// GetOffset returns the offset up to which the table is complete, or def when there is none.
func (s *Store) GetOffset(def int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return 0, err
	}
	if !s.offset.known {
		return def, nil
	}
	return s.offset.value, nil
}

// SetOffset notes that the record at this changelog offset is in the table. During recovery, and in a view, every higher
// offset counts; afterwards only the next one (E2), another leaves the offset where it is. It goes to disk with the next flush.
func (s *Store) SetOffset(offset int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	before := s.offset
	switch s.offset.set(offset) {
	case passed:
		s.metrics.pinned.Set(0)
	case gap:
		s.metrics.pinned.Set(1)
		s.warnPinned("table-offset-pinned", before, offset,
			"another writer's records lie before this one: the table's offset stays and the next recovery reads more")
	case regressed:
		s.metrics.pinned.Set(1)
		s.warnPinned("table-offset-regressed", before, offset,
			"the changelog contradicts the table's offset: none is kept and the next recovery reads the whole topic")
	case ignored:
	}
	return nil
}

func (s *Store) warnPinned(event string, at offsetState, got int64, message string) {
	if s.warned {
		return
	}
	s.warned = true
	offset := int64(-1)
	if at.known {
		offset = at.value
	}
	s.log.Warn(message, "event", event, "table_offset", offset, "acknowledged_offset", got)
}

// MarkRecovered says that from now on offsets are acknowledgements of this process's writes. What recovery read is flushed.
func (s *Store) MarkRecovered() error {
	s.mu.Lock()
	if err := s.usable(); err != nil {
		s.mu.Unlock()
		return err
	}
	s.offset.markRecovered()
	s.mu.Unlock()
	return s.ask(taskFlush)
}

// Stats returns the store's numbers.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{
		Topic: s.topic, Partition: s.partition,
		Offset: -1, OnDisk: -1,
		Recovered: s.offset.recovered,
		Pinned:    s.offset.pinned,
		Unflushed: len(s.pending.list) + len(s.flushing.list),
		LastFlush: s.lastFlush,
		Scanned:   s.scanned,
		Err:       s.usable(),
	}
	if s.offset.known {
		st.Offset = s.offset.value
	}
	if s.disk.known {
		st.OnDisk = s.disk.value
	}
	if s.filter != nil {
		st.Keys, st.FilterBytes = s.filter.keys(), s.filter.bytes()
	}
	return st
}

// usable is called with mu held.
func (s *Store) usable() error {
	if s.failure != nil {
		return s.failure
	}
	if s.state != stateOpen {
		return s.because(ErrClosed)
	}
	return nil
}

func (s *Store) because(err error) error {
	return fmt.Errorf("table %s partition %d: %w", s.topic, s.partition, err)
}

// fail makes an error final and lets waiting writers go. Damaged files are remembered in the directory: without that, a store
// opened again would stumble over the same block for ever.
func (s *Store) fail(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil {
		return s.failure
	}
	s.failure = s.because(err)
	s.space.Broadcast()
	event, message := "table-store-failed", "the table store cannot be used any more: the processor has to start again"
	if isDamage(err) {
		event, message = "table-store-damaged", "a file of the table store is damaged: its directory is dropped at the next start and read again from the changelog"
		if markErr := writeMarker(s.dir, err); markErr != nil {
			s.failure = errors.Join(s.failure, markErr)
		}
	}
	s.log.Error(message, "event", event, "dir", s.dir, "error", s.failure)
	return s.failure
}

func (s *Store) readFailed(err error) error {
	if errors.Is(err, leveldb.ErrClosed) {
		return s.because(ErrClosed)
	}
	return s.fail(fmt.Errorf("reading: %w", err))
}

// isDamage tells contents that cannot be right from a disk that cannot be used now.
func isDamage(err error) bool {
	var inLevelDB *ldberrors.ErrCorrupted
	var inStorage *ldbstorage.ErrCorrupted
	return errors.As(err, &inLevelDB) || errors.As(err, &inStorage) || errors.Is(err, errIncomplete)
}

// Keys in LevelDB: 'k' before the table's keys, so that no key of a topic can collide with the store's own, which begin with 'm'.
const (
	tablePrefix = 'k'
	tableLimit  = 'l'

	ownOffset   = "m__offset"
	ownFlush    = "m__flush"  // number of the last flush
	ownFilterID = "m__filter" // which filter files belong to it
)

func appendKey(b []byte, key string) []byte {
	return append(append(slices.Grow(b, len(key)+1), tablePrefix), key...)
}
