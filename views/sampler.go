package views

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
)

// Bounds of asking the broker. Answers share what is younger than fresh.
const (
	fresh         = 250 * time.Millisecond
	brokerTimeout = 3 * time.Second
	rateWindow    = time.Minute
)

// sample is what the broker said about the topics of one consumer at one moment.
type sample struct {
	at     time.Time
	topics map[string][]stream.Positions // those that exist
}

// lag is how many records of the given topics the group has not finished.
func (s sample) lag(topics ...string) (sum int64) {
	for _, topic := range topics {
		for _, p := range s.topics[topic] {
			sum += p.Lag()
		}
	}
	return sum
}

// held is how many offsets a topic holds.
func (s sample) held(topic string) (sum int64) {
	for _, p := range s.topics[topic] {
		sum += p.End - p.Start
	}
	return sum
}

// moved are the sums that rates are made from.
type moved struct {
	at                 time.Time
	received, finished int64
}

// sampler asks the broker about one consumer, at most once at a time and not more often than needed.
type sampler struct {
	consumer config.Consumer
	admin    *stream.Admin
	clock    func() time.Time
	turn     chan struct{} // holds the right to ask; a channel, because waiting must end with the request

	last    sample
	err     error
	errAt   time.Time
	history []moved
}

func newSampler(c config.Consumer, admin *stream.Admin, clock func() time.Time) *sampler {
	return &sampler{consumer: c, admin: admin, clock: clock, turn: make(chan struct{}, 1)}
}

// inputs are the topics that the group commits.
func (s *sampler) inputs() []string {
	if s.consumer.Role == config.RolePrice {
		return []string{s.consumer.Topic}
	}
	return []string{s.consumer.Topic, s.consumer.LoopTopic()}
}

// now returns positions not older than fresh.
func (s *sampler) now(ctx context.Context) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, brokerTimeout)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return sample{}, fmt.Errorf("the broker has not answered: %w", ctx.Err())
	}
	now := s.clock()
	if !s.last.at.IsZero() && now.Sub(s.last.at) < fresh && s.err == nil {
		return s.last, nil
	}
	if s.err != nil && now.Sub(s.errAt) < time.Second {
		return sample{}, s.err // everybody would wait for the same outage
	}
	positions, err := s.ask(ctx)
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) { // that would be the client's going away, not an outage
			s.err, s.errAt = err, s.clock()
		}
		return sample{}, err
	}
	s.last, s.err = sample{at: now, topics: positions}, nil
	s.remember()
	return s.last, nil
}

func (s *sampler) ask(ctx context.Context) (map[string][]stream.Positions, error) {
	names := append(s.inputs(), s.consumer.DLQ)
	if s.consumer.Role != config.RolePrice {
		names = append(names, s.consumer.TableTopic())
	}
	positions, err := s.admin.GroupPositions(ctx, s.consumer.Group, names...)
	if err == nil {
		return positions, nil
	}
	// Topics may be missing: one that was never created has nothing in it.
	topics, lookup := s.admin.Topics(ctx, names...)
	if lookup != nil || len(topics) == len(names) {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		_, ok := topics[name]
		return !ok
	})
	if len(names) == 0 {
		return map[string][]stream.Positions{}, nil
	}
	return s.admin.GroupPositions(ctx, s.consumer.Group, names...)
}

// remember keeps what rates need: one reading a second at most, a minute of them.
func (s *sampler) remember() {
	m := moved{at: s.last.at}
	for _, p := range s.last.topics[s.consumer.Topic] {
		m.received += p.End
		m.finished += max(p.Committed, 0)
	}
	if n := len(s.history); n > 0 && m.at.Sub(s.history[n-1].at) < time.Second {
		return
	}
	s.history = append(s.history, m)
	first := slices.IndexFunc(s.history, func(old moved) bool { return m.at.Sub(old.at) <= rateWindow })
	s.history = slices.Delete(s.history, 0, max(first, 0))
}

// rates are records a second that arrived and were finished lately; ok is false before there are two readings.
func (s *sampler) rates(ctx context.Context) (received, finished float64, ok bool) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return 0, 0, false
	}
	if len(s.history) < 2 {
		return 0, 0, false
	}
	first, last := s.history[0], s.history[len(s.history)-1]
	seconds := last.at.Sub(first.at).Seconds()
	perSecond := func(from, to int64) float64 { return max(0, float64(to-from)/seconds) } // a topic made anew begins at 0
	return perSecond(first.received, last.received), perSecond(first.finished, last.finished), true
}
