// Package processors holds what the three consumers share between Goka's callback and their sink: the deferred commit of a
// record and the ways out of a callback. The rules are in the packages below it and know neither Kafka nor SQL.
package processors

import (
	"context"
	"time"

	"github.com/lovoo/goka"
	"go.opentelemetry.io/otel/trace"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

// Guard holds a record's commit back for the rest of the session (internal/stream/guard).
type Guard interface {
	AbandonDelivery(rec *record.Record)
}

// Letters takes dead letters; done is called once the letter is acknowledged, or with an error when the record must come
// again. Submit blocks while its buffer is full, and returns an error without calling done when ctx ends.
type Letters interface {
	Submit(ctx context.Context, l deadletter.Letter, done func(error)) error
}

// Delivery is one record in the hands of a callback.
type Delivery struct {
	Ctx    goka.Context
	Record *record.Record // as Kafka delivered it
	Origin codecs.Origin  // its coordinates as delivered: the loop topic's own for a looped record
	Guard  Guard
}

// Session ends when the partition is given up.
func (d Delivery) Session() context.Context { return d.Ctx.Context() }

// Defer takes charge of the record's commit. The returned function ends it, once: nil lets the commit go as far as the
// records before it allow; an error keeps it back, so that the record comes again in the next session.
//
// Goka would commit a record whose callback returned after the end of the session, and would stop the whole processor on
// an error here; so the guard is told, and Goka hears of success either way.
func (d Delivery) Defer(end func(error)) func(error) {
	release := d.Ctx.DeferCommit()
	return func(err error) {
		if err != nil {
			d.Guard.AbandonDelivery(d.Record)
		}
		if end != nil {
			end(err)
		}
		release(nil)
	}
}

// Abandon gives the record up within the callback: it comes again.
func (d Delivery) Abandon() { d.Guard.AbandonDelivery(d.Record) }

// Clock is the time source.
type Clock func() time.Time

// Route says in which partition a key belongs.
type Route struct {
	Of func(key string) int32
}

// Partition is the partition of a canonical key.
func (r Route) Partition(key string) int32 { return r.Of(key) }

// Misplaced tells whether a record of the source topic lies under another key than its canonical one, or in another
// partition than that key hashes to: its state would be written to another partition's table than the one it is read from
// (design, section 3, fact 2).
func (r Route) Misplaced(rec *record.Record, canonical string) bool {
	return string(rec.Key) != canonical || r.Of(canonical) != rec.Partition
}

// Bury hands a record that breaks its contract to the dead letters; the record's commit waits for their acknowledgement.
// The letter is made of rec, which for a looped delivery is the original record.
func Bury(d Delivery, letters Letters, rec *record.Record, fault *codecs.Fault, spans ...trace.Span) {
	done := d.Defer(func(err error) {
		for _, span := range spans {
			telemetry.EndSpan(span, err)
		}
	})
	letter := deadletter.Letter{Record: rec, Code: fault.Code, Reason: fault.Reason, Attempts: 1}
	if err := letters.Submit(d.Session(), letter, done); err != nil {
		done(err)
	}
}
