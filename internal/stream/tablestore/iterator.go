package tablestore

import (
	"fmt"

	"github.com/lovoo/goka/storage"
	ldbiterator "github.com/syndtr/goleveldb/leveldb/iterator"
	"github.com/syndtr/goleveldb/leveldb/opt"
	"github.com/syndtr/goleveldb/leveldb/util"
)

// iterator walks over a snapshot of the table, the store's own keys left out. It is for one goroutine; when the store is closed
// meanwhile it ends with ErrClosed.
type iterator struct {
	store *Store
	it    ldbiterator.Iterator // nil once released
	err   error
	// LevelDB's slices may be gone with the store: the caller gets copies that live until the next step.
	key, value []byte
}

// Iterator flushes and returns an iterator over everything written before the call.
func (s *Store) Iterator() (storage.Iterator, error) {
	return s.iterate(util.Range{Start: []byte{tablePrefix}, Limit: []byte{tableLimit}})
}

// IteratorWithRange is Iterator over the keys from start up to, without, limit; as with Goka's LevelDB store an empty limit means
// all keys that begin with start.
func (s *Store) IteratorWithRange(start, limit []byte) (storage.Iterator, error) {
	from := appendKey(nil, string(start))
	if len(limit) == 0 {
		return s.iterate(*util.BytesPrefix(from))
	}
	return s.iterate(util.Range{Start: from, Limit: appendKey(nil, string(limit))})
}

func (s *Store) iterate(keys util.Range) (storage.Iterator, error) {
	if err := s.ask(taskFlush); err != nil {
		return nil, err
	}
	s.life.RLock()
	defer s.life.RUnlock()
	if s.db == nil {
		return nil, s.because(ErrClosed)
	}
	i := &iterator{store: s, it: s.db.NewIterator(&keys, &opt.ReadOptions{DontFillCache: true})}
	s.iterMu.Lock()
	defer s.iterMu.Unlock()
	s.iterators[i] = struct{}{}
	return i, nil
}

// Next moves to the next pair and tells whether there is one.
func (i *iterator) Next() bool {
	return i.move(func() bool { return i.it.Next() })
}

// Seek moves to the first pair whose key is not below the given one; as with Goka's LevelDB store, Key and Value then give that
// pair and Next the one behind it.
func (i *iterator) Seek(key []byte) bool {
	return i.move(func() bool { return i.it.Seek(appendKey(nil, string(key))) })
}

func (i *iterator) move(step func() bool) bool {
	i.store.life.RLock()
	defer i.store.life.RUnlock()
	i.key, i.value = i.key[:0], i.value[:0]
	if i.it == nil {
		return false
	}
	if !step() {
		i.key, i.value = nil, nil
		if err := i.it.Error(); err != nil && i.err == nil {
			i.err = i.store.readFailed(fmt.Errorf("iterating: %w", err))
		}
		return false
	}
	i.key = append(i.key, i.it.Key()[1:]...)
	i.value = append(i.value, i.it.Value()...)
	return true
}

// Err returns what ended the iteration early, or nil.
func (i *iterator) Err() error {
	i.store.life.RLock()
	defer i.store.life.RUnlock()
	return i.err
}

// Key returns the current key, or nil when there is none; it is valid until the next step.
func (i *iterator) Key() []byte { return i.key }

// Value returns the current value, or nil when there is none; it is valid until the next step.
func (i *iterator) Value() ([]byte, error) { return i.value, nil }

// Release ends the iterator. It may be called more than once.
func (i *iterator) Release() {
	i.store.life.RLock()
	defer i.store.life.RUnlock()
	i.store.iterMu.Lock()
	defer i.store.iterMu.Unlock()
	i.release(nil)
}

// release is called with the store's iterMu held.
func (i *iterator) release(err error) {
	if i.it == nil {
		return
	}
	i.it.Release()
	i.it = nil
	i.err = err
	delete(i.store.iterators, i)
}
