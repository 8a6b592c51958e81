package stream

import (
	"sync"

	"github.com/lovoo/goka/storage"
)

// stores knows the recovered stores of the table, so that keys can be read from outside. Goka's own Processor.Get reads the
// store's pointer while a session's setup writes it.
type stores struct {
	mu   sync.RWMutex
	open map[int32]*trackedStore
}

func newStores() *stores { return &stores{open: make(map[int32]*trackedStore)} }

// builder wraps a builder of stores.
func (s *stores) builder(inner storage.Builder) storage.Builder {
	return func(topic string, partition int32) (storage.Storage, error) {
		st, err := inner(topic, partition)
		if err != nil {
			return nil, err
		}
		return &trackedStore{Storage: st, owner: s, partition: partition}, nil
	}
}

// get reads a key of a partition; known is false where the partition is not here or not recovered. The value is a copy.
func (s *stores) get(partition int32, key string) (value []byte, known bool, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock() // the store stays open as long
	st, ok := s.open[partition]
	if !ok {
		return nil, false, nil
	}
	data, err := st.Get(key)
	if err != nil || data == nil {
		return nil, true, err
	}
	return append([]byte{}, data...), true, nil
}

// partitions returns how many are recovered.
func (s *stores) partitions() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.open)
}

// trackedStore is a store that is readable from outside between its recovery and its end.
type trackedStore struct {
	storage.Storage
	owner     *stores
	partition int32
}

func (t *trackedStore) MarkRecovered() error {
	if err := t.Storage.MarkRecovered(); err != nil {
		return err
	}
	t.owner.mu.Lock()
	defer t.owner.mu.Unlock()
	t.owner.open[t.partition] = t
	return nil
}

func (t *trackedStore) Close() error {
	t.owner.mu.Lock()
	if t.owner.open[t.partition] == t {
		delete(t.owner.open, t.partition)
	}
	t.owner.mu.Unlock()
	return t.Storage.Close()
}
