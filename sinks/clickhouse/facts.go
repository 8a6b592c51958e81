package clickhouse

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

// Row is one fact on its way to ClickHouse.
type Row struct {
	Fact   *codecs.Fact
	Record *record.Record    // the event, for a dead letter and for the log
	Span   trace.SpanContext // the event's trace; the zero value has none
}

// Letters writes dead letters: nil means that all in-sync replicas have them. *deadletter.Writer is one.
type Letters interface {
	Write(ctx context.Context, letters ...deadletter.Letter) error
}

// Events writes one line of a named event. *telemetry.EventLog is one.
type Events interface {
	Log(ctx context.Context, level slog.Level, name, msg string, attrs ...slog.Attr)
}

// Metrics are hooks; nil ones are left out. Retries are counted by the batcher.
type Metrics struct {
	Ingested       func(facts int)
	BatchSize      func(facts int)
	InsertDuration func(d time.Duration) // of a batch that went in: its inserts, usually one, and the dead letters of rows that were refused
}

// FactSink is the price sink's batch.Flush: one batch, one acknowledged insert.
type FactSink struct {
	in      *Inserter
	letters Letters
	tracing *telemetry.Tracing
	events  Events
	metrics Metrics
	clock   func() time.Time
}

// NewFactSink returns a sink that writes to the facts table of conn, which should be its own: after a failure the sink moves
// to the next address of the DSN. Nil tracing is none.
func NewFactSink(conn *Conn, letters Letters, tracing *telemetry.Tracing, events Events, m Metrics, clock func() time.Time) *FactSink {
	if tracing == nil {
		tracing = telemetry.NoTracing()
	}
	return &FactSink{in: NewInserter(conn), letters: letters, tracing: tracing, events: events, metrics: m, clock: clock}
}

// Flush inserts the batch. Nil: every fact is acknowledged by ClickHouse, or, where the server refuses its values for good,
// its record is in the dead letters (DATABASE_REJECTED). An error is an outage, an *Outage where ClickHouse is the cause:
// the same batch comes again, and what was written twice collapses, its rows being equal but for IngestionTime.
func (s *FactSink) Flush(ctx context.Context, rows []Row) error {
	started := s.clock()
	spans := make([]trace.SpanContext, 0, len(rows))
	if s.tracing.Enabled() {
		for _, r := range rows {
			spans = append(spans, r.Span)
		}
	}
	ctx, span := s.tracing.StartBatch(ctx, "insert "+FactsTable, len(rows), spans)
	s.events.Log(ctx, slog.LevelInfo, "consumed", "a batch of price facts goes to ClickHouse",
		slog.Int("batch_size", len(rows)), slog.String("offsets", offsets(rows)))
	refused, err := s.in.Write(ctx, factsOf(rows), s.clock)
	if err == nil {
		err = s.bury(ctx, rows, refused)
	}
	span.End(ctx, err, "clickhouse", "INSERT "+FactsTable)
	if err != nil {
		s.in.conn.avoidAfter(err)
		return err
	}
	took, written := s.clock().Sub(started), len(rows)-len(refused)
	s.events.Log(ctx, slog.LevelInfo, "flushed", "price facts are in ClickHouse",
		slog.Int("rows", written), slog.Float64("duration_ms", float64(took.Microseconds())/1000))
	if s.metrics.Ingested != nil {
		s.metrics.Ingested(written)
	}
	if s.metrics.BatchSize != nil {
		s.metrics.BatchSize(len(rows))
	}
	if s.metrics.InsertDuration != nil {
		s.metrics.InsertDuration(took)
	}
	return nil
}

// bury writes the refused rows' records to the dead letters.
func (s *FactSink) bury(ctx context.Context, rows []Row, refused []Refusal) error {
	if len(refused) == 0 {
		return nil
	}
	letters := make([]deadletter.Letter, 0, len(refused))
	for _, r := range refused {
		letters = append(letters, deadletter.Letter{Record: rows[r.Index].Record, Code: codecs.CodeDatabaseRejected,
			Attempts: 1, Reason: r.Reason()})
	}
	if err := s.letters.Write(ctx, letters...); err != nil {
		return fmt.Errorf("%d facts that ClickHouse refuses could not be dead-lettered: %w", len(refused), err)
	}
	return nil
}

func factsOf(rows []Row) []*codecs.Fact {
	facts := make([]*codecs.Fact, len(rows))
	for i, r := range rows {
		facts[i] = r.Fact
	}
	return facts
}

// offsets says where the batch's records lie: "0:[5..9] 3:[7..7]".
func offsets(rows []Row) string {
	type bounds struct{ first, last int64 }
	seen := make(map[int32]bounds)
	for _, r := range rows {
		if r.Record == nil {
			continue
		}
		b, ok := seen[r.Record.Partition]
		if !ok {
			b = bounds{r.Record.Offset, r.Record.Offset}
		}
		seen[r.Record.Partition] = bounds{min(b.first, r.Record.Offset), max(b.last, r.Record.Offset)}
	}
	parts := make([]string, 0, len(seen))
	for _, p := range slices.Sorted(maps.Keys(seen)) {
		parts = append(parts, fmt.Sprintf("%d:[%d..%d]", p, seen[p].first, seen[p].last))
	}
	return strings.Join(parts, " ")
}
