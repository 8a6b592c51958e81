package guard

import (
	"context"
	"sync/atomic"

	"github.com/IBM/sarama"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// consumerGroup hands sarama a handler that sees guarded sessions and claims.
type consumerGroup struct {
	sarama.ConsumerGroup
	guard *Guard
}

func (c *consumerGroup) Consume(ctx context.Context, topics []string, h sarama.ConsumerGroupHandler) error {
	return c.ConsumerGroup.Consume(ctx, topics, &handler{ConsumerGroupHandler: h, guard: c.guard})
}

// handler lives as long as one call of Consume, which is one session: Goka's balance strategy is an eager one.
type handler struct {
	sarama.ConsumerGroupHandler
	guard   *Guard
	session atomic.Pointer[session]
}

// Setup gives the session its trackers before Goka can see it, because Goka keeps the session it is given here for every
// later mark.
func (h *handler) Setup(inner sarama.ConsumerGroupSession) error {
	s := newSession(inner, h.guard)
	h.session.Store(s)
	h.guard.current.Store(s)
	return h.ConsumerGroupHandler.Setup(s)
}

// Cleanup lets Goka wait for what is in flight: finishes that come until then still count, because sarama commits for the
// last time after Cleanup. What comes later is ignored.
func (h *handler) Cleanup(inner sarama.ConsumerGroupSession) error {
	s := h.session.Load()
	if s == nil {
		return h.ConsumerGroupHandler.Cleanup(inner)
	}
	defer func() {
		s.ended.Store(true)
		h.guard.current.CompareAndSwap(s, nil)
	}()
	return h.ConsumerGroupHandler.Cleanup(s)
}

func (h *handler) ConsumeClaim(_ sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	s := h.session.Load()
	t := s.tracker(c.Topic(), c.Partition())
	if t == nil {
		// Only a cooperative rebalance adds claims to a running session, and Goka cannot work with one.
		return &unclaimedError{topic: c.Topic(), partition: c.Partition()}
	}
	guarded := newClaim(c, t, h.guard)
	go guarded.forward()
	// The forwarder is gone before sarama drains the claim, so that no record is noted as delivered after that.
	defer guarded.close()
	return h.ConsumerGroupHandler.ConsumeClaim(s, guarded)
}

// session is sarama's session with marks that go through the trackers.
type session struct {
	sarama.ConsumerGroupSession
	trackers map[string][]*tracker // topic, then partition; nil where not claimed. Never changed after newSession.
	ended    atomic.Bool
}

func newSession(inner sarama.ConsumerGroupSession, g *Guard) *session {
	claims := inner.Claims()
	s := &session{ConsumerGroupSession: inner, trackers: make(map[string][]*tracker, len(claims))}
	for topic, partitions := range claims {
		var list []*tracker
		for _, p := range partitions {
			for int(p) >= len(list) {
				list = append(list, nil)
			}
			list[p] = newTracker(topic, p, g.window, g.bytes, func(next int64) { inner.MarkOffset(topic, p, next, "") }, g.clock)
		}
		s.trackers[topic] = list
	}
	return s
}

func (s *session) tracker(topic string, partition int32) *tracker {
	list := s.trackers[topic]
	if partition < 0 || int(partition) >= len(list) {
		return nil
	}
	return list[partition]
}

// MarkOffset is how Goka says that the record at offset-1 is finished. An offset that was not delivered in this session, or
// that was abandoned, changes nothing. The metadata is dropped: Goka's is always empty.
func (s *session) MarkOffset(topic string, partition int32, offset int64, _ string) {
	if s.ended.Load() {
		return
	}
	if t := s.tracker(topic, partition); t != nil {
		t.finish(offset - 1)
	}
}

// MarkMessage is MarkOffset for a message.
func (s *session) MarkMessage(msg *sarama.ConsumerMessage, metadata string) {
	s.MarkOffset(msg.Topic, msg.Partition, msg.Offset+1, metadata)
}

// ResetOffset and Commit pass through: the one only lowers an offset, the other only sends what was marked.

type unclaimedError struct {
	topic     string
	partition int32
}

func (e *unclaimedError) Error() string {
	return "partition " + record.ID{Topic: e.topic, Partition: e.partition}.String() +
		" was given to a running session: only an eager balance strategy (Goka's copartitioning) works with the commit guard"
}
