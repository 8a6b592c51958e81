package tablestore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
)

// writes are what LevelDB does not have yet: the last write of each key. There is no pointer in them, so the garbage collector
// passes them by, and once emptied they take the next writes without new memory. Not safe for concurrent use.
type writes struct {
	data  []byte // the keys as they are in LevelDB, and the values; what was written over stays until the flush
	list  []entry
	slots []int32 // a hash table with open addressing: an index into list plus one, or 0
}

// entry is one write: in data, the value follows the key. Small, because most of a Set's time goes into memory it has to wait for.
type entry struct {
	hash     uint64
	at       int
	keyLen   int
	valueLen int // deletedValue when the key was deleted
}

const deletedValue = -1

func (e *entry) deleted() bool { return e.valueLen == deletedValue }

func (w *writes) key(e *entry) []byte { return w.data[e.at : e.at+e.keyLen] }

func (w *writes) value(e *entry) []byte { return w.data[e.at+e.keyLen:][:e.valueLen] }

// find returns a key's write, or nil. It is valid until the next put.
func (w *writes) find(hash uint64, key string) *entry {
	if len(w.list) == 0 {
		return nil
	}
	mask := uint64(len(w.slots) - 1)
	for slot := hash & mask; w.slots[slot] != 0; slot = (slot + 1) & mask {
		e := &w.list[w.slots[slot]-1]
		if e.hash == hash && string(w.key(e)[1:]) == key {
			return e
		}
	}
	return nil
}

// put notes a key's value, or its end.
func (w *writes) put(hash uint64, key string, value []byte, deleted bool) {
	e := entry{hash: hash, at: len(w.data), keyLen: len(key) + 1, valueLen: len(value)}
	if deleted {
		e.valueLen = deletedValue
	}
	old := w.find(hash, key)
	w.data = append(append(append(w.data, tablePrefix), key...), value...)
	if old != nil {
		*old = e
		return
	}
	w.list = append(w.list, e)
	if 2*len(w.list) <= len(w.slots) {
		w.index(len(w.list) - 1)
		return
	}
	w.slots = make([]int32, max(64, 2*len(w.slots)))
	for i := range w.list {
		w.index(i)
	}
}

func (w *writes) index(i int) {
	mask := uint64(len(w.slots) - 1)
	slot := w.list[i].hash & mask
	for w.slots[slot] != 0 {
		slot = (slot + 1) & mask
	}
	w.slots[slot] = int32(i + 1) //nolint:gosec // writers wait long before
}

// reset forgets everything; the memory of more than keep bytes is given back.
func (w *writes) reset(keep int) {
	if cap(w.data) > keep {
		w.data = nil
	}
	w.data, w.list = w.data[:0], w.list[:0]
	clear(w.slots)
}

// place is a write's place in the order of the keys: most pairs are told apart by the eight bytes behind what all keys have in
// common, which for the ids of one second is much.
type place struct {
	bytes uint64
	index int
}

// sorted returns the writes in the order of their keys, in the given memory.
func (w *writes) sorted(places []place) []place {
	places = places[:0]
	if len(w.list) == 0 {
		return places
	}
	common := w.key(&w.list[0])
	for i := range w.list {
		for key := w.key(&w.list[i]); !bytes.HasPrefix(key, common); {
			common = common[:len(common)-1]
		}
	}
	for i := range w.list {
		var b [8]byte // a key that ends before is smaller, or a tie
		copy(b[:], w.key(&w.list[i])[len(common):])
		places = append(places, place{binary.BigEndian.Uint64(b[:]), i})
	}
	slices.SortFunc(places, func(a, b place) int {
		if a.bytes != b.bytes {
			return cmp.Compare(a.bytes, b.bytes)
		}
		return bytes.Compare(w.key(&w.list[a.index]), w.key(&w.list[b.index]))
	})
	return places
}
