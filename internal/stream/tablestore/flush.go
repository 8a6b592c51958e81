package tablestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/syndtr/goleveldb/leveldb"
	"github.com/syndtr/goleveldb/leveldb/opt"
)

// flusher is the state of the goroutine that writes to disk.
type flusher struct {
	files   *filterFiles
	number  uint64 // of the last flush, in LevelDB and in the filter's log
	savedAt time.Time
	batch   leveldb.Batch
	places  []place
	hashes  []uint64
}

type taskKind int

const (
	taskFlush taskKind = iota
	taskSaveFilter
)

// task asks the flusher to do something now.
type task struct {
	kind  taskKind
	reply chan error
}

// ask has the flusher do something and waits for it.
func (s *Store) ask(kind taskKind) error {
	s.mu.Lock()
	err := s.usable()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	t := task{kind: kind, reply: make(chan error, 1)}
	select {
	case s.tasks <- t:
		return <-t.reply
	case <-s.stopped:
		return s.because(ErrClosed)
	}
}

// runFlusher flushes when told to and every interval until the store is closed, then a last time.
func (s *Store) runFlusher() error {
	defer close(s.stopped)
	ticker := time.NewTicker(s.cfg.FlushInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.quit:
			return s.lastWords()
		case t := <-s.tasks:
			t.reply <- s.do(t.kind)
		case <-s.kick:
			s.routine()
		case <-ticker.C:
			s.routine()
		}
	}
}

// routine is a flush nobody waits for: the store keeps its error for the next caller.
func (s *Store) routine() {
	if s.flush() == nil && time.Since(s.flusher.savedAt) >= s.cfg.FilterSaveInterval {
		s.saveFilter(false)
	}
}

func (s *Store) do(kind taskKind) error {
	if err := s.flush(); err != nil || kind == taskFlush {
		return err
	}
	s.saveFilter(true)
	return nil
}

// lastWords is what Close waits for.
func (s *Store) lastWords() error {
	err := s.flush()
	if err == nil {
		s.saveFilter(false)
	}
	return errors.Join(err, s.flusher.files.close())
}

// flush writes what is in memory, and the offset, in one synced batch. Nothing changed: nothing is written.
func (s *Store) flush() error {
	s.mu.Lock()
	if s.failure != nil {
		defer s.mu.Unlock()
		return s.failure
	}
	// One lock takes the writes and the offset: every write the offset stands for is in this batch or on disk.
	offset := diskOffset{s.offset.value, s.offset.known}
	if len(s.pending.list) == 0 && offset == s.disk {
		s.mu.Unlock()
		return nil
	}
	s.pending, s.flushing = s.flushing, s.pending
	writes := s.flushing
	s.mu.Unlock()

	begin := time.Now()
	if err := s.write(writes, offset); err != nil {
		return s.fail(fmt.Errorf("flushing %d writes: %w", len(writes.list), err))
	}
	s.metrics.flushSeconds.Observe(time.Since(begin).Seconds())

	s.mu.Lock()
	defer s.mu.Unlock()
	writes.reset(2 * s.cfg.FlushBytes) // still s.flushing: no read looks for them in memory any more
	s.disk = offset
	s.lastFlush = time.Now()
	s.space.Broadcast()
	s.metrics.unflushed.Set(float64(len(s.pending.list)))
	s.metrics.filterBytes.Set(float64(s.filter.bytes()))
	s.metrics.keys.Set(float64(s.filter.keys()))
	return nil
}

// write puts the batch on disk: first the filter's log, then LevelDB. A crash in between leaves a hash too many.
func (s *Store) write(writes *writes, offset diskOffset) error {
	f := &s.flusher
	f.number++
	f.hashes = f.hashes[:0]
	for i := range writes.list {
		if e := &writes.list[i]; !e.deleted() {
			f.hashes = append(f.hashes, e.hash)
		}
	}
	if err := f.files.append(f.number, f.hashes); err != nil {
		return err
	}
	f.batch.Reset()
	f.places = writes.sorted(f.places) // LevelDB takes sorted keys in much less time
	for _, p := range f.places {
		if e := &writes.list[p.index]; e.deleted() {
			f.batch.Delete(writes.key(e))
		} else {
			f.batch.Put(writes.key(e), writes.value(e))
		}
	}
	f.batch.Put([]byte(ownFlush), binary.LittleEndian.AppendUint64(nil, f.number))
	if offset.known {
		f.batch.Put([]byte(ownOffset), strconv.AppendInt(nil, offset.value, 10))
	} else {
		f.batch.Delete([]byte(ownOffset))
	}
	return s.db.Write(&f.batch, &opt.WriteOptions{Sync: true})
}

// saveFilter writes a snapshot of the filter, unless the log since the last one is short. It follows a flush in the same
// goroutine, so the filter covers at least what is on disk. A failure costs a scan at the next start, nothing else.
func (s *Store) saveFilter(always bool) {
	f := &s.flusher
	f.savedAt = time.Now()
	s.mu.Lock()
	if !always && !f.files.worthSaving(s.filter) {
		s.mu.Unlock()
		return
	}
	snapshot := s.filter.snapshot()
	s.mu.Unlock()
	if err := f.files.save(snapshot, f.number); err != nil {
		s.log.Warn("the table store's filter could not be saved: the next start may scan all keys",
			"event", "table-filter-not-saved", "dir", s.dir, "error", err)
	}
}
