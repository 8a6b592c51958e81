// Package guard is the commit guard (design, E1): it stands between sarama's consumer group and Goka and lets a consumer
// group's offset rise only up to the first delivered record that is not finished.
//
// Goka marks a record's offset when its callback, emits and table writes are done, and sarama's mark is a maximum: a later
// record that finishes first commits past an earlier one that has not, and a crash then loses the earlier one. A failed emit
// stops the processor, but the records behind it commit past the failed one. A callback that waits and returns because its
// session ended is committed as if it had done its work. With the guard none of the three loses a record.
//
// The guard also keeps every raw record as Kafka delivered it until the record is finished: Goka shows callbacks a key as
// string and headers as a map, which loses null keys and repeated headers, and a dead letter must carry the record as it came.
package guard

import (
	"sync/atomic"
	"time"

	"github.com/lovoo/goka"

	"github.com/IBM/sarama"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// Config sets a Guard up. The zero value is ready for production.
type Config struct {
	// Window is how many records of one partition may be between the first unfinished one and the last one delivered;
	// delivery of further ones waits. It bounds memory when one record is held up while the ones behind it finish, for
	// example a dead letter whose topic is away. Default 262,144 (24 bytes each).
	Window int
	// Bytes is how much the unfinished records of one partition may have, one more may go beyond; delivery of further ones waits.
	// It bounds memory whatever the size of the records, wherever they wait: here, in Goka's channel, in a sink. Default 16 MiB.
	Bytes int
	// Buffer is how many delivered records may wait for Goka per partition, besides Goka's own channel. Default 1024.
	Buffer int
	// Clock is the time source of Partition.Since. Default time.Now.
	Clock func() time.Time
}

// Guard serves the successive sessions of one consumer group member. All methods are safe for concurrent use.
type Guard struct {
	window  int
	bytes   int
	buffer  int
	clock   func() time.Time
	current atomic.Pointer[session]
	signal  chan record.ID
}

// New returns a Guard. One Guard belongs to one goka.Processor at a time.
func New(cfg Config) *Guard {
	g := &Guard{window: cfg.Window, bytes: cfg.Bytes, buffer: cfg.Buffer, clock: cfg.Clock, signal: make(chan record.ID, 1)}
	if g.window <= 0 {
		g.window = 1 << 18
	}
	if g.bytes <= 0 {
		g.bytes = 16 << 20
	}
	if g.buffer <= 0 {
		g.buffer = 1024
	}
	if g.clock == nil {
		g.clock = time.Now
	}
	return g
}

// Builder wraps the builder of the consumer group that Goka shall use.
func (g *Guard) Builder(inner goka.ConsumerGroupBuilder) goka.ConsumerGroupBuilder {
	return func(brokers []string, group, clientID string) (sarama.ConsumerGroup, error) {
		cg, err := inner(brokers, group, clientID)
		if err != nil {
			return nil, err
		}
		return &consumerGroup{ConsumerGroup: cg, guard: g}, nil
	}
}

// Record returns the raw record of an id while it is delivered and neither finished nor abandoned in the current session.
func (g *Guard) Record(id record.ID) (*record.Record, bool) {
	t := g.tracker(id)
	if t == nil {
		return nil, false
	}
	rec := t.get(id.Offset)
	return rec, rec != nil
}

// Abandon says that a record must come again: it is never committed in the current session, and a later finish of it is
// ignored. While the session goes on nothing would deliver it again and its partition could never commit past it, so the id
// is then sent to Abandoned, and whoever runs the processor must start it anew.
func (g *Guard) Abandon(id record.ID) { g.abandon(id, nil) }

// AbandonDelivery is Abandon for one delivery of a record, as Record returned it: when the record has meanwhile been
// delivered anew, in a later session, that later delivery is not touched.
func (g *Guard) AbandonDelivery(rec *record.Record) { g.abandon(rec.ID, rec) }

func (g *Guard) abandon(id record.ID, rec *record.Record) {
	s := g.current.Load()
	if s == nil {
		return
	}
	t := s.tracker(id.Topic, id.Partition)
	if t == nil || !t.abandon(id.Offset, rec) {
		return
	}
	if s.Context().Err() != nil {
		return // the session ends anyway: the record comes again in the next one
	}
	select {
	case g.signal <- id:
	default: // one restart serves them all
	}
}

// Abandoned delivers the id of a record that was abandoned while its session went on. At most one id waits.
func (g *Guard) Abandoned() <-chan record.ID { return g.signal }

// Partition is the state of one claimed partition in the current session.
type Partition struct {
	Topic         string
	Partition     int32
	LastDelivered int64     // offset of the last record passed on, -1 if none
	Next          int64     // the position up to which records are finished and may be committed, -1 if none
	Delivered     uint64    // records passed on in this session
	Finished      uint64    // records below Next
	Unfinished    int       // records neither finished nor abandoned
	Abandoned     int       // records given up in this session
	Window        int       // records from the oldest unfinished one to the last delivered
	Oldest        int64     // offset of the oldest record that is not finished, -1 if none
	Since         time.Time // when it was first seen to be the oldest; zero if none
}

// Status returns the state of every partition claimed in the current session; nothing between sessions.
func (g *Guard) Status() []Partition {
	s := g.current.Load()
	if s == nil {
		return nil
	}
	var out []Partition
	for _, partitions := range s.trackers {
		for _, t := range partitions {
			if t != nil {
				out = append(out, t.status())
			}
		}
	}
	return out
}

func (g *Guard) tracker(id record.ID) *tracker {
	s := g.current.Load()
	if s == nil {
		return nil
	}
	return s.tracker(id.Topic, id.Partition)
}
