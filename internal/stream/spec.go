package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/lovoo/goka"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// Callback processes one record. It runs in its partition's goroutine, one record at a time and partition; the partition
// stands still while it waits, which is the partition pause.
//
//   - Goka's rules hold: Fail, SetValue and Emit may panic to stop the processor; do not recover, do not keep the context.
//   - A record whose effect is not durable when Callback returns takes ctx.DeferCommit and has the function called exactly
//     once: with nil when the effect is durable, with any error when the record must come again.
//   - A wait selects on ctx.Context().Done() as well, and then returns: a callback that returns after its session has ended
//     without having deferred its commit has abandoned its record (Goka alone would commit it).
//   - rec is what Kafka delivered and must not be changed; it may be kept.
type Callback func(ctx Context, rec *record.Record)

// Context is Goka's context with what Goka does not show.
type Context interface {
	goka.Context
	// Incarnation is that of the topic the record was delivered from (the loop topic's for a looped record).
	Incarnation() uint32
	// Home is the partition to which state under a key belongs. A record that lies elsewhere goes through Loopback.
	Home(key []byte) int32
}

// Source is what a runtime has found out about its input before a start.
type Source struct {
	Topic      string
	ID         TopicID
	Partitions int32
	Positions  []Positions // by partition, with the group's committed offsets
}

// Spec describes one consumer.
type Spec struct {
	Name  string // role: promotion, popularity, price; also the name of its section in the configuration
	Group string
	Input string // the source topic
	// TableCodec makes the consumer stateful: the codec of its group table. The codecs of streams are bytes: a codec's error
	// would end the processor, so decoding is the callback's business.
	TableCodec goka.Codec
	Hasher     Hasher   // of the input's producers; default crc32
	Callback   Callback // for records of Input
	// LoopCallback, when set, gives the group a loop topic and handles its records. Values above MaxValueBytes do not fit.
	LoopCallback Callback
	DeadLetter   string // dead-letter topic: created and checked with the others, written by somebody else
	// Mend says what to do when the source was recreated, for example "Run vitrina rebuild popularity".
	Mend string
	// Lasting is GroupTopics.Lasting.
	Lasting bool
	// Check, when set, is asked before each start, for example whether the ledger's horizon lies above the source's end.
	Check func(ctx context.Context, source Source) error
}

// Validate returns what is wrong with the description, or nil.
func (s *Spec) Validate() error {
	var errs []error
	for name, value := range map[string]string{"name": s.Name, "group": s.Group, "input": s.Input} {
		if value == "" {
			errs = append(errs, fmt.Errorf("the consumer %q has no %s", s.Name, name))
		}
	}
	if s.Callback == nil {
		errs = append(errs, fmt.Errorf("the consumer %q has no callback", s.Name))
	}
	if _, err := ParseHasher(string(s.hasher())); err != nil {
		errs = append(errs, fmt.Errorf("the consumer %q: %w", s.Name, err))
	}
	return errors.Join(errs...)
}

// Topics are the topics the consumer works with.
func (s *Spec) Topics() GroupTopics {
	return GroupTopics{Group: s.Group, Source: s.Input, Table: s.Stateful(), Loop: s.LoopCallback != nil, DeadLetter: s.DeadLetter, Lasting: s.Lasting}
}

// Stateful says whether the consumer has a group table.
func (s *Spec) Stateful() bool { return s.TableCodec != nil }

func (s *Spec) hasher() Hasher {
	if s.Hasher == "" {
		return CRC32
	}
	return s.Hasher
}

// consumed lists the topics whose offsets the group commits.
func (s *Spec) consumed() []string {
	if s.LoopCallback != nil {
		return []string{s.Input, LoopTopic(s.Group)}
	}
	return []string{s.Input}
}

func (s *Spec) changed(problem string) error {
	mend := s.Mend
	if mend == "" {
		mend = "Rebuild its projection (vitrina rebuild)"
	}
	return &SourceChangedError{Group: s.Group, Source: s.Input, Problem: problem, Mend: mend}
}
