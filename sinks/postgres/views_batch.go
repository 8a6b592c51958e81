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

// buckets spreads ids in their order.
type buckets struct {
	squeeze bool // all ids have one version, whose four bits are left out: they would leave 15 of 16 buckets empty
	least   uint64
	shift   int
}

func (b buckets) place(high uint64) uint64 {
	if b.squeeze {
		return high>>16<<12 | high&0xfff
	}
	return high
}

func (b buckets) of(high uint64) uint64 { return (b.place(high) - b.least) >> b.shift }

// sortKeys sorts keys, of which there is at least one. Ids of one batch are spread evenly between the least and the greatest, by
// time or by chance, so most are alone in their bucket: several times faster than sorting at once.
func sortKeys(keys []sortKey) []sortKey {
	least, greatest, differ := keys[0].high, keys[0].high, uint64(0)
	for i := range keys {
		least, greatest = min(least, keys[i].high), max(greatest, keys[i].high)
		differ |= keys[i].high ^ keys[0].high
	}
	b := buckets{squeeze: differ&0xf000 == 0}
	b.least = b.place(least)
	b.shift = bits.Len64((b.place(greatest) - b.least) / uint64(len(keys)))
	starts := make([]int32, b.of(greatest)+2)
	for i := range keys {
		starts[b.of(keys[i].high)+1]++
	}
	for i := 1; i < len(starts); i++ {
		starts[i] += starts[i-1]
	}
	sorted := make([]sortKey, len(keys))
	for i := range keys {
		next := &starts[b.of(keys[i].high)]
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
		case item.Kind == codecs.MarkNone:
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
	lanes    []int32 // numbers of the lanes, which are those of Delisted objects besides the others
	frozen   []bool  // of each lane, whether it is that of Delisted objects
	least    []int64 // of each lane, the least offset
	position map[batchLane]int16

	objects  []sortKey // as they first came
	viewsOf  []int64   // of each object, how many items are its own
	guesses  []fate    // of each object, what its fate will be
	fates    []fate    // of each object, what it was
	objectOf []int32   // of each item, its object's index
	indexOf  map[[16]byte]int32

	laneOf, offsets, views, objectIDs, marked encodedArray // one element an item
	distinct, counts                          encodedArray // one element an object, sorted
	delisted                                  encodedArray // the objects that are guessed to be Delisted, sorted
	anyMark, anyDelisted                      bool         // there is one that may be too old; one that is guessed to be Delisted
}

// batchLane is a lane as a batch has it: that of Delisted objects, or that of the others.
type batchLane struct {
	laneKey
	frozen bool
}

// fate is what became of an object's views.
type fate uint8

const (
	fateCounted fate = iota
	fateDelisted
	fateMissing
)

func newViewBatch() *viewBatch {
	return &viewBatch{position: make(map[batchLane]int16), indexOf: make(map[[16]byte]int32)}
}

// batch encodes items, of which there is at least one. It must be released.
func (s *ViewsSink) batch(items []*ViewItem, delisted *delistedObjects) *viewBatch {
	b, ok := s.batches.Get().(*viewBatch)
	if !ok {
		b = newViewBatch()
	}
	b.fill(items, &s.lanes, delisted)
	return b
}

func (s *ViewsSink) release(b *viewBatch) {
	b.empty()
	s.batches.Put(b)
}

func (b *viewBatch) fill(items []*ViewItem, lanes *laneCache, delisted *delistedObjects) {
	n := len(items)
	b.laneOf, b.offsets, b.marked = b.laneOf.begin(pgtype.Int2OID, n), b.offsets.begin(pgtype.Int8OID, n), b.marked.begin(pgtype.Int8OID, n)
	b.views, b.objectIDs = b.views.begin(pgtype.UUIDOID, n), b.objectIDs.begin(pgtype.UUIDOID, n)
	delisted.mu.RLock()
	for _, item := range items {
		index, known := b.indexOf[item.ObjectID]
		if !known {
			key := keyOf(item.ObjectID, len(b.objects))
			index = key.index
			b.indexOf[item.ObjectID] = index
			b.objects, b.viewsOf = append(b.objects, key), append(b.viewsOf, 0)
			b.guesses, b.fates = append(b.guesses, delisted.guess(item.ObjectID)), append(b.fates, fateCounted)
		}
		b.viewsOf[index]++
		b.objectOf = append(b.objectOf, index)

		lane := b.lane(item.Origin, b.guesses[index], lanes)
		b.least[lane-1] = min(b.least[lane-1], item.Origin.Offset)
		marked := item.markedAt()
		b.anyMark = b.anyMark || marked != math.MaxInt64
		b.laneOf, b.offsets, b.marked = b.laneOf.int16(lane), b.offsets.int64(item.Origin.Offset), b.marked.int64(marked)
		b.views, b.objectIDs = b.views.uuid(item.ViewID), b.objectIDs.uuid(item.ObjectID)
	}
	delisted.mu.RUnlock()

	b.distinct, b.counts = b.distinct.begin(pgtype.UUIDOID, len(b.objects)), b.counts.begin(pgtype.Int8OID, len(b.objects))
	guessed := 0
	sorted := sortKeys(b.objects)
	for _, key := range sorted {
		b.distinct, b.counts = b.distinct.uuid(key.id()), b.counts.int64(b.viewsOf[key.index])
		if b.guesses[key.index] == fateDelisted {
			guessed++
		}
	}
	b.anyDelisted = guessed > 0
	b.delisted = b.delisted.begin(pgtype.UUIDOID, guessed)
	for _, key := range sorted {
		if b.guesses[key.index] == fateDelisted {
			b.delisted = b.delisted.uuid(key.id())
		}
	}
}

// lane returns the position, from 1, of a record's lane.
func (b *viewBatch) lane(o codecs.Origin, guess fate, lanes *laneCache) int16 {
	key := batchLane{laneOf(o), guess == fateDelisted}
	position := b.position[key]
	if position == 0 {
		b.lanes, b.frozen, b.least = append(b.lanes, lanes.of(o)), append(b.frozen, key.frozen), append(b.least, math.MaxInt64)
		position = int16(len(b.lanes)) //nolint:gosec // a batch has fewer lanes than items, and those are some thousands
		b.position[key] = position
	}
	return position
}

func (b *viewBatch) empty() {
	b.lanes, b.frozen, b.least = b.lanes[:0], b.frozen[:0], b.least[:0]
	b.objects, b.viewsOf, b.guesses, b.fates, b.objectOf = b.objects[:0], b.viewsOf[:0], b.guesses[:0], b.fates[:0], b.objectOf[:0]
	clear(b.position)
	clear(b.indexOf)
	b.anyMark = false
}

// arguments are those of apply_views; without records.
func (b *viewBatch) arguments(epoch int64, plain bool) []any {
	var marked, delisted any
	if b.anyMark {
		marked = b.marked
	}
	if b.anyDelisted {
		delisted = b.delisted
	}
	return []any{epoch, b.lanes, b.frozen, b.least, b.laneOf, b.offsets, b.views, b.objectIDs, marked, b.distinct, b.counts, delisted,
		plain, nil, nil, nil, time.Duration(0)}
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

// delistedObjects remembers which objects had a Delisted card when they were last counted. It is a guess that saves the database
// to write their views' rows twice; the transaction judges the cards themselves. Safe for concurrent use.
type delistedObjects struct {
	mu  sync.RWMutex
	ids map[[16]byte]struct{}
}

const maxDelistedObjects = 1 << 18 // of 16 bytes; beyond, all are learned anew

// guess is called under the lock.
func (d *delistedObjects) guess(object [16]byte) fate {
	if _, ok := d.ids[object]; ok {
		return fateDelisted
	}
	return fateCounted
}

// learn takes from an answer what became of the batch's objects. Where views were refused, one that is not named may not have been judged.
func (d *delistedObjects) learn(b *viewBatch, r *viewsApplied) {
	if slices.Equal(b.guesses, b.fates) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ids == nil || len(d.ids) > maxDelistedObjects {
		d.ids = make(map[[16]byte]struct{})
	}
	for i, key := range b.objects {
		switch {
		case b.fates[i] == fateDelisted:
			d.ids[key.id()] = struct{}{}
		case b.guesses[i] == fateDelisted && r.refused.len() == 0:
			delete(d.ids, key.id())
		}
	}
}
