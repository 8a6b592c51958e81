package guard

import (
	"github.com/IBM/sarama"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// claim passes the messages of sarama's claim on, each after it was noted as delivered.
type claim struct {
	sarama.ConsumerGroupClaim
	guard   *Guard
	tracker *tracker
	out     chan *sarama.ConsumerMessage
	stop    chan struct{} // closed when Goka has let the claim go
	stopped chan struct{} // closed when the forwarder is gone
	names   map[string]string
}

func newClaim(inner sarama.ConsumerGroupClaim, t *tracker, g *Guard) *claim {
	return &claim{
		ConsumerGroupClaim: inner, guard: g, tracker: t,
		out:  make(chan *sarama.ConsumerMessage, g.buffer),
		stop: make(chan struct{}), stopped: make(chan struct{}),
		names: make(map[string]string),
	}
}

// Messages is what Goka reads.
func (c *claim) Messages() <-chan *sarama.ConsumerMessage { return c.out }

func (c *claim) close() {
	close(c.stop)
	<-c.stopped
}

// forward runs until the claim ends. A record is in the tracker before it is in the channel, so a record that Goka never
// takes holds the commit as well.
func (c *claim) forward() {
	defer close(c.stopped)
	defer close(c.out)
	in := c.ConsumerGroupClaim.Messages()
	for {
		msg := c.receive(in)
		if msg == nil {
			return
		}
		switch c.note(c.record(msg)) {
		case repeated: // it was passed on
		case full:
			return
		case delivered:
			if !c.send(msg) {
				return
			}
		}
	}
}

// receive returns the next message, or nil when the claim has ended. It first tries without the stop channel: a select over
// two channels costs several times as much.
func (c *claim) receive(in <-chan *sarama.ConsumerMessage) *sarama.ConsumerMessage {
	select {
	case msg := <-in:
		return msg
	default:
	}
	select {
	case msg := <-in:
		return msg
	case <-c.stop:
		return nil
	}
}

func (c *claim) send(msg *sarama.ConsumerMessage) bool {
	select {
	case c.out <- msg:
		return true
	default:
	}
	select {
	case c.out <- msg:
		return true
	case <-c.stop:
		return false
	}
}

// note enters the record into the window, waiting for room; full means that the claim ended first.
func (c *claim) note(rec *record.Record) outcome {
	for {
		result := c.tracker.deliver(rec)
		if result != full {
			return result
		}
		select {
		case <-c.tracker.room:
		case <-c.stop:
			return full
		}
	}
}

// record copies what sarama decoded, without copying the bytes. Null stays nil.
func (c *claim) record(msg *sarama.ConsumerMessage) *record.Record {
	rec := &record.Record{
		ID:        record.ID{Topic: c.tracker.topic, Partition: msg.Partition, Offset: msg.Offset},
		Key:       msg.Key,
		Value:     msg.Value,
		Timestamp: msg.Timestamp,
	}
	if len(msg.Headers) > 0 {
		rec.Headers = make([]record.Header, len(msg.Headers))
		for i, h := range msg.Headers {
			rec.Headers[i] = record.Header{Key: c.name(h.Key), Value: h.Value}
		}
	}
	return rec
}

// maxNames bounds the table of header names: a producer that invents names must not fill the memory.
const maxNames = 256

// name returns the header's name as a string; the few names that a topic uses are allocated once.
func (c *claim) name(b []byte) string {
	if s, ok := c.names[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(c.names) < maxNames {
		c.names[s] = s
	}
	return s
}
