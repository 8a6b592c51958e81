package tablestore

import (
	"github.com/cespare/xxhash/v2"
	"github.com/parquet-go/parquet-go/bloom"
)

const (
	// filterBits per key in a full layer give about 0.4 % false positives.
	filterBits = 12
	// A full layer is followed by one four times as large, so ten million keys take five layers.
	filterGrowth   = 4
	firstLayerKeys = 1 << 16
	maxLayerKeys   = 1 << 26
)

// hashOf is what the filter and its files know of a key. It is on disk: changing it makes every filter file invalid.
func hashOf(key string) uint64 { return xxhash.Sum64String(key) }

// filter tells which keys may exist: never no for a key that was added. It is a blocked bloom filter (one cache line a look),
// in layers because it cannot grow in place. Not safe for concurrent use: Store guards it with its lock.
type filter struct {
	layers []*layer
}

type layer struct {
	capacity int64
	keys     int64
	blocks   bloom.SplitBlockFilter
}

func newLayer(capacity int64) *layer {
	return &layer{capacity: capacity, blocks: make(bloom.SplitBlockFilter, bloom.NumSplitBlocksOf(capacity, filterBits))}
}

func newFilter() *filter { return &filter{layers: []*layer{newLayer(firstLayerKeys)}} }

func (f *filter) has(hash uint64) bool {
	// Newest first: it is the largest.
	for i := len(f.layers) - 1; i >= 0; i-- {
		if f.layers[i].blocks.Check(hash) {
			return true
		}
	}
	return false
}

func (f *filter) add(hash uint64) {
	if f.has(hash) {
		return
	}
	last := f.layers[len(f.layers)-1]
	if last.keys >= last.capacity {
		last = newLayer(min(last.capacity*filterGrowth, maxLayerKeys))
		f.layers = append(f.layers, last)
	}
	last.blocks.Insert(hash)
	last.keys++
}

// keys is the number of different keys added, a little too low by the false positives.
func (f *filter) keys() int64 {
	var n int64
	for _, l := range f.layers {
		n += l.keys
	}
	return n
}

func (f *filter) bytes() int64 {
	var n int64
	for _, l := range f.layers {
		n += int64(len(l.blocks)) * bloom.BlockSize
	}
	return n
}

// snapshot returns a filter that stays as it is now. Only the newest layer changes, so only that one is copied.
func (f *filter) snapshot() *filter {
	layers := append([]*layer(nil), f.layers...)
	last := *layers[len(layers)-1]
	last.blocks = append(bloom.SplitBlockFilter(nil), last.blocks...)
	layers[len(layers)-1] = &last
	return &filter{layers: layers}
}
