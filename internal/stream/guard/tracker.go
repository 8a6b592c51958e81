package guard

import (
	"sort"
	"sync"
	"time"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// state is what became of one delivered record.
type state uint8

const (
	pending   state = iota // Goka has it, or will get it
	finished               // its callback, emits, table writes and deferred commits are done
	abandoned              // given up in this session: it must come again
)

// entry is one delivered record in the window.
type entry struct {
	offset int64
	rec    *record.Record // nil once finished: a long window must not hold the data of records that are done
	state  state
}

// tracker is the window of one partition in one session: every record from the first unfinished one to the last one
// delivered, in the order of delivery. Contiguity is over delivered records, not over numbers: compaction, aborted
// transactions and control records leave gaps.
type tracker struct {
	topic     string
	partition int32
	limit     int              // records in the window at most; more wait in deliver
	maxBytes  int              // of records that are pending; more wait in deliver
	mark      func(next int64) // commits up to next; called in order, under mu
	clock     func() time.Time

	room chan struct{} // one token: the window has room again

	mu      sync.Mutex
	ring    []entry   // length is a power of two
	head    int       // index of the oldest entry
	count   int       // entries in the window
	open    int       // entries that are pending
	bytes   int       // what their records have
	lost    int       // entries that are abandoned
	last    int64     // highest offset delivered, -1 before the first
	next    int64     // offset up to which may be committed, -1 before the first finished record
	since   time.Time // see status
	total   uint64    // records delivered in this session
	done    uint64    // records whose finish could be committed
	waiting bool      // a delivery waits for room
}

const initialRing = 256

func newTracker(topic string, partition int32, limit, maxBytes int, mark func(int64), clock func() time.Time) *tracker {
	return &tracker{
		topic: topic, partition: partition, limit: limit, maxBytes: maxBytes, mark: mark, clock: clock,
		room: make(chan struct{}, 1), ring: make([]entry, initialRing), last: -1, next: -1,
	}
}

// outcome is the answer of deliver.
type outcome uint8

const (
	delivered outcome = iota // noted: pass it on
	repeated                 // delivered before in this session
	full                     // no room in the window: wait for t.room, then deliver again
)

// deliver notes a record before Goka can see it. An offset that was delivered before in this session is not noted: the first
// delivery stands for it, and a second one would be a record without a place in the order.
func (t *tracker) deliver(rec *record.Record) outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rec.Offset <= t.last {
		return repeated
	}
	if t.count >= t.limit || t.bytes >= t.maxBytes {
		t.waiting = true
		return full
	}
	if t.count == len(t.ring) {
		t.grow()
	}
	if t.count == 0 {
		t.since = t.clock()
	}
	t.ring[(t.head+t.count)&(len(t.ring)-1)] = entry{offset: rec.Offset, rec: rec}
	t.count++
	t.open++
	t.bytes += rec.Size()
	t.total++
	t.last = rec.Offset
	return delivered
}

func (t *tracker) grow() {
	bigger := make([]entry, 2*len(t.ring))
	n := copy(bigger, t.ring[t.head:])
	copy(bigger[n:], t.ring[:t.head])
	t.ring, t.head = bigger, 0
}

// finish notes that Goka is done with a record and commits as far as the window allows.
func (t *tracker) finish(offset int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.find(offset)
	if e == nil || e.state != pending {
		return
	}
	t.drop(e, finished)
	if t.ring[t.head].state == finished {
		t.advance()
	}
	t.admit()
}

// drop lets go of the record of an entry that is pending no more.
func (t *tracker) drop(e *entry, to state) {
	t.bytes -= e.rec.Size()
	t.open--
	e.state, e.rec = to, nil
}

// admit wakes a delivery that waits, once there is room.
func (t *tracker) admit() {
	if !t.waiting || t.count >= t.limit || t.bytes >= t.maxBytes {
		return
	}
	t.waiting = false
	select {
	case t.room <- struct{}{}:
	default:
	}
}

// advance drops the finished records at the head of the window and commits up to them.
func (t *tracker) advance() {
	mask := len(t.ring) - 1
	for t.count > 0 && t.ring[t.head].state == finished {
		t.next = t.ring[t.head].offset + 1
		t.head = (t.head + 1) & mask
		t.count--
		t.done++
	}
	t.since = time.Time{}
	t.mark(t.next)
}

// abandon gives a record up. With rec set only that delivery is meant, not another one of the same offset. It returns
// whether the record was pending.
func (t *tracker) abandon(offset int64, rec *record.Record) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.find(offset)
	if e == nil || e.state != pending || (rec != nil && e.rec != rec) {
		return false
	}
	t.drop(e, abandoned)
	t.lost++
	t.admit()
	return true
}

// get returns a record that is pending.
func (t *tracker) get(offset int64) *record.Record {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.find(offset); e != nil {
		return e.rec
	}
	return nil
}

// find returns the entry of an offset, or nil. Offsets are nearly always contiguous, so the first guess nearly always hits.
func (t *tracker) find(offset int64) *entry {
	if t.count == 0 {
		return nil
	}
	mask := len(t.ring) - 1
	if i := offset - t.ring[t.head].offset; i < 0 {
		return nil
	} else if i < int64(t.count) {
		if e := &t.ring[(t.head+int(i))&mask]; e.offset == offset {
			return e
		}
	}
	i := sort.Search(t.count, func(i int) bool { return t.ring[(t.head+i)&mask].offset >= offset })
	if i == t.count {
		return nil
	}
	if e := &t.ring[(t.head+i)&mask]; e.offset == offset {
		return e
	}
	return nil
}

func (t *tracker) status() Partition {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := Partition{
		Topic: t.topic, Partition: t.partition, LastDelivered: t.last, Next: t.next,
		Delivered: t.total, Finished: t.done, Unfinished: t.open, Abandoned: t.lost, Window: t.count, Oldest: -1,
	}
	if t.count > 0 {
		// An entry is the oldest since somebody has looked: reading the clock at every finish tells nobody more.
		if t.since.IsZero() {
			t.since = t.clock()
		}
		p.Oldest, p.Since = t.ring[t.head].offset, t.since
	}
	return p
}
