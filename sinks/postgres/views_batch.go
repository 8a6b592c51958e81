package postgres

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pin-marketplace/vitrina/codecs"
)

// sortKey is what ids are sorted by: cheaper to move and to compare than what they name.
type sortKey struct {
	high, low uint64
	index     int32 // of what the id names; equal ids are sorted by it
}

func keyOf(id [16]byte, index int) sortKey {
	return sortKey{binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(id[8:]), int32(index)} //nolint:gosec // a batch has some thousands
}

func (k sortKey) id() (id [16]byte) {
	binary.BigEndian.PutUint64(id[:8], k.high)
	binary.BigEndian.PutUint64(id[8:], k.low)
	return id
}

func compareKeys(a, b sortKey) int {
	switch {
	case a.high != b.high:
		return cmp.Compare(a.high, b.high)
	case a.low != b.low:
		return cmp.Compare(a.low, b.low)
	default:
		return cmp.Compare(a.index, b.index)
	}
}

// sortKeys sorts keys, of which there is at least one. Ids of one batch are spread evenly between the least and the greatest, by
// time or by chance, so most are alone in their bucket: four times faster than sorting at once.
func sortKeys(keys []sortKey) []sortKey {
	least, greatest := keys[0].high, keys[0].high
	for i := range keys {
		least, greatest = min(least, keys[i].high), max(greatest, keys[i].high)
	}
	shift := bits.Len64((greatest - least) / uint64(len(keys)))
	starts := make([]int32, (greatest-least)>>shift+2)
	for i := range keys {
		starts[(keys[i].high-least)>>shift+1]++
	}
	for i := 1; i < len(starts); i++ {
		starts[i] += starts[i-1]
	}
	sorted := make([]sortKey, len(keys))
	for i := range keys {
		next := &starts[(keys[i].high-least)>>shift]
		sorted[*next] = keys[i]
		*next++
	}
	from := int32(0)
	for _, to := range starts { // by now where each bucket ends
		if to-from > 1 {
			slices.SortFunc(sorted[from:to], compareKeys)
		}
		from = to
	}
	return sorted
}

// divide sorts items by view, and those of one view as they came. The first of each view is fresh or known; others repeat it.
func divide(values []ViewItem) (fresh, known, repeats []*ViewItem) {
	if len(values) == 0 {
		return nil, nil, nil
	}
	keys := make([]sortKey, len(values))
	for i := range values {
		keys[i] = keyOf(values[i].ViewID, i)
	}
	keys = sortKeys(keys)
	fresh = make([]*ViewItem, 0, len(values))
	for i, key := range keys {
		item := &values[key.index]
		switch {
		case i > 0 && keys[i-1].high == key.high && keys[i-1].low == key.low:
			repeats = append(repeats, item)
		case item.Kind == MarkNone:
			fresh = append(fresh, item)
		default:
			known = append(known, item)
		}
	}
	return fresh, known, repeats
}

func sortItems(items []*ViewItem) {
	slices.SortStableFunc(items, func(a, b *ViewItem) int { return bytes.Compare(a.ViewID[:], b.ViewID[:]) })
}

// viewBatch is what one call of apply_views takes. Batches use their memory again.
type viewBatch struct {
	lanes    []int32 // numbers of the lanes
	least    []int64 // of each lane, the least offset
	position map[laneKey]int16
	memo     laneMemo

	objects  []sortKey // as they first came
	viewsOf  []int64   // of each object, how many items are its own
	fates    []fate    // of each object
	objectOf []int32   // of each item, its object's index
	indexOf  map[[16]byte]int32

	laneOf, offsets, views, objectIDs, marked encodedArray // one element an item
	distinct, counts                          encodedArray // one element an object, sorted
	anyMark                                   bool         // that may be too old
}

// fate is what became of an object's views.
type fate uint8

const (
	fateCounted fate = iota
	fateDelisted
	fateMissing
)

var viewBatches = sync.Pool{New: func() any {
	return &viewBatch{position: make(map[laneKey]int16), indexOf: make(map[[16]byte]int32)}
}}

// newViewBatch encodes items, of which there is at least one. The batch must be released.
func newViewBatch(items []*ViewItem, lanes *laneCache) *viewBatch {
	b := viewBatches.Get().(*viewBatch)
	n := len(items)
	b.laneOf, b.offsets, b.marked = b.laneOf.begin(pgtype.Int2OID, n), b.offsets.begin(pgtype.Int8OID, n), b.marked.begin(pgtype.Int8OID, n)
	b.views, b.objectIDs = b.views.begin(pgtype.UUIDOID, n), b.objectIDs.begin(pgtype.UUIDOID, n)
	for _, item := range items {
		lane := b.lane(item.Origin, lanes)
		b.laneOf, b.offsets = b.laneOf.int16(lane), b.offsets.int64(item.Origin.Offset)
		b.least[lane-1] = min(b.least[lane-1], item.Origin.Offset)
		marked := item.markedAt()
		b.marked = b.marked.int64(marked)
		b.anyMark = b.anyMark || marked != math.MaxInt64
		b.views, b.objectIDs = b.views.uuid(item.ViewID), b.objectIDs.uuid(item.ObjectID)

		index, known := b.indexOf[item.ObjectID]
		if !known {
			key := keyOf(item.ObjectID, len(b.objects))
			index = key.index
			b.indexOf[item.ObjectID] = index
			b.objects, b.viewsOf, b.fates = append(b.objects, key), append(b.viewsOf, 0), append(b.fates, fateCounted)
		}
		b.viewsOf[index]++
		b.objectOf = append(b.objectOf, index)
	}
	b.distinct, b.counts = b.distinct.begin(pgtype.UUIDOID, len(b.objects)), b.counts.begin(pgtype.Int8OID, len(b.objects))
	for _, key := range sortKeys(b.objects) {
		b.distinct, b.counts = b.distinct.uuid(key.id()), b.counts.int64(b.viewsOf[key.index])
	}
	return b
}

// lane returns the position, from 1, of a record's lane.
func (b *viewBatch) lane(o codecs.Origin, lanes *laneCache) int16 {
	key := laneOf(o)
	if position := b.memo.get(key); position != 0 {
		return position
	}
	position := b.position[key]
	if position == 0 {
		b.lanes, b.least = append(b.lanes, lanes.of(o)), append(b.least, math.MaxInt64)
		position = int16(len(b.lanes)) //nolint:gosec // a batch has fewer lanes than items, and those are some thousands
		b.position[key] = position
	}
	b.memo.set(key, position)
	return position
}

func (b *viewBatch) release() {
	b.lanes, b.least = b.lanes[:0], b.least[:0]
	b.objects, b.viewsOf, b.fates, b.objectOf = b.objects[:0], b.viewsOf[:0], b.fates[:0], b.objectOf[:0]
	clear(b.position)
	clear(b.indexOf)
	b.memo, b.anyMark = laneMemo{}, false
	viewBatches.Put(b)
}

// arguments are those of apply_views; without records.
func (b *viewBatch) arguments(epoch int64, plain bool) []any {
	var marked any
	if b.anyMark {
		marked = b.marked
	}
	return []any{epoch, b.lanes, b.least, b.laneOf, b.offsets, b.views, b.objectIDs, marked, b.distinct, b.counts, plain, nil, nil, nil, time.Duration(0)}
}

// judge takes in which objects the answer does not count.
func (b *viewBatch) judge(r *viewsApplied) {
	b.doom(r.delisted, fateDelisted)
	b.doom(r.missing, fateMissing)
}

func (b *viewBatch) doom(objects uuidArray, to fate) {
	for i := range objects.len() {
		if index, ok := b.indexOf[objects.at(i)]; ok {
			b.fates[index] = to
		}
	}
}

// fate is what became of item i if the ledger took it.
func (b *viewBatch) fate(i int) fate { return b.fates[b.objectOf[i]] }
