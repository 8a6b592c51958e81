// Package processors holds what the three consumers share between Goka's callback and their sink: the deferred commit of a
// record and the ways out of a callback. The rules are in the packages below it and know neither Kafka nor SQL.
package processors

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

// Letters takes dead letters; done is called once the letter is acknowledged, or with an error when the record must come
// again. Submit blocks while its buffer is full, and returns an error without calling done when ctx ends.
type Letters interface {
	Submit(ctx context.Context, l deadletter.Letter, done func(error)) error
}

// Clock is the time source.
type Clock func() time.Time

// Origin is the record's coordinates as delivered: the loop topic's own for a looped record.
func Origin(ctx stream.Context, delivered *record.Record, looped bool) codecs.Origin {
	return codecs.Origin{Incarnation: ctx.Incarnation(), Loop: looped, Partition: delivered.Partition, Offset: delivered.Offset}
}

// Event is what a record says, in the fields that its log lines carry. None of them is personal.
type Event interface {
	LogAttrs() []slog.Attr
}

// Loop is a consumer's way through its group's loop topic: records that lie elsewhere than their id belongs.
type Loop struct {
	Consumer        string // its role, which is also the section of its settings
	IDField         string // the payload's field that the Kafka key must be
	Hasher          string // the setting, named in warnings
	Letters         Letters
	Rekeyed         prometheus.Counter
	PartitionDiffer prometheus.Counter // records whose key is right, but hashes to another partition
	Log             *telemetry.Event
}

// Original returns the source record that a record of the loop topic holds; false where it holds none and was buried.
func (l *Loop) Original(d stream.Context, delivered *record.Record) (*record.Record, bool) {
	original, err := codecs.DecodeRecord(delivered.Value)
	if err != nil {
		fault := &codecs.Fault{Code: codecs.CodeUndecodable, Reason: "the loop topic holds a record that vitrina did not write: " + err.Error()}
		Bury(d.Context(), d, l.Letters, delivered, fault, nil)
		return nil, false
	}
	return original, true
}

// Misplaced tells whether a record of the source topic lies under another key than its id as text, or in another
// partition than that key hashes to: its state would be written to another partition's table than the one it is read from
// (design, section 3, fact 2).
func Misplaced(ctx stream.Context, rec *record.Record, id uuid.UUID) bool {
	return !keyIs(rec.Key, id) || ctx.Home(rec.Key) != rec.Partition
}

// Send sends a misplaced record to where its id belongs, whole: with its own key, headers and coordinates. One that the loop topic
// does not take is buried: the emit would be refused, and the processor would restart at this record for ever.
func (l *Loop) Send(ctx context.Context, d stream.Context, rec *record.Record, id uuid.UUID, event Event, spans ...trace.Span) {
	key := id.String()
	why, mend := "its Kafka key is not the "+l.IDField, ""
	if keyIs(rec.Key, id) {
		l.PartitionDiffer.Inc()
		why = fmt.Sprintf("its key hashes to partition %d", d.Home(rec.Key))
		mend = fmt.Sprintf(": if this is frequent, set %s.hasher (%s) to the producers' partitioner", l.Consumer, l.Hasher)
	}
	value := codecs.EncodeRecord(rec)
	if len(value) > stream.MaxValueBytes {
		Bury(ctx, d, l.Letters, rec, &codecs.Fault{Code: codecs.CodeRecordTooLarge, Reason: fmt.Sprintf(
			"%s, and with %d bytes the record is larger than the %d that the loop topic takes; produce it with the key %s to partition %d, or make it smaller",
			why, len(value), stream.MaxValueBytes, key, d.Home([]byte(key)))}, event.LogAttrs(), spans...)
		return
	}
	l.Rekeyed.Inc()
	if l.Log.Allow(ctx) {
		l.Log.Write(ctx, "the record goes through the loop topic", append([]slog.Attr{slog.String("consumer", l.Consumer),
			slog.String("record", rec.String()), slog.String("reason", why+mend)}, event.LogAttrs()...)...)
	}
	d.Loopback(key, value)
	for _, span := range spans {
		telemetry.EndSpan(span, nil)
	}
}

// keyIs says whether a key is the id as text, without making a string of it: nearly every key is.
func keyIs(key []byte, id uuid.UUID) bool {
	var text [36]byte
	hex.Encode(text[:8], id[:4])
	hex.Encode(text[9:13], id[4:6])
	hex.Encode(text[14:18], id[6:8])
	hex.Encode(text[19:23], id[8:10])
	hex.Encode(text[24:], id[10:])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return bytes.Equal(key, text[:])
}

// Bury hands a record that breaks its contract to the dead letters; the record's commit waits for their acknowledgement.
// The letter is made of rec, which for a looped delivery is the original record; attrs are what its log line says besides; ctx ends
// with the session.
func Bury(ctx context.Context, d stream.Context, letters Letters, rec *record.Record, fault *codecs.Fault, attrs []slog.Attr, spans ...trace.Span) {
	release := d.DeferCommit()
	done := func(err error) {
		for _, span := range spans {
			telemetry.EndSpan(span, err)
		}
		release(err)
	}
	letter := deadletter.Letter{Record: rec, Code: fault.Code, Reason: fault.Reason, Attempts: 1, Attrs: attrs}
	if err := letters.Submit(ctx, letter, done); err != nil {
		done(err)
	}
}

// Work is one record between its callback and its acknowledged transaction.
type Work struct {
	Lag       telemetry.LagMark
	Duration  interface{ Observe(float64) }
	Clock     Clock
	Begun     time.Time
	Spans     [2]trace.Span // process, receive
	Committed func(error)   // the record's deferred commit
}

// Done ends the work, once: nil when the effect is durable, an error when the record must come again.
func (w *Work) Done(err error) {
	if err != nil {
		w.Lag.Abandon()
	} else {
		now := w.Clock()
		w.Lag.Done(now)
		w.Duration.Observe(telemetry.Milliseconds(now.Sub(w.Begun)))
	}
	for _, span := range w.Spans {
		telemetry.EndSpan(span, err)
	}
	w.Committed(err)
}
