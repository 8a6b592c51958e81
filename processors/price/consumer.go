// Package price carries price events to facts: decode, validate and map, then into the batch of the ClickHouse sink. It has
// no table: a repeated event makes the same fact again, and readers see it once (specification 004, "Идемпотентность").
package price

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/processors"
	"github.com/pin-marketplace/vitrina/sinks/batch"
)

// Task is one fact on its way to ClickHouse.
type Task struct {
	Fact   *codecs.Fact
	Record *record.Record
	Span   trace.SpanContext
}

// Sink takes facts; it blocks while its buffer is full, which pauses the partition.
type Sink interface {
	Submit(ctx context.Context, item batch.Item[Task]) error
}

// Config is what a Consumer needs. All fields are required.
type Config struct {
	Group   string
	Sink    Sink
	Letters processors.Letters
	Metrics *telemetry.Price
	Tracing *telemetry.Tracing
	Events  *telemetry.EventLog
	Clock   processors.Clock
}

// Consumer handles the records of the price topic. It is safe for concurrent use by all partitions.
type Consumer struct {
	Config
	poison, mismatch, nonRUB, tenant *telemetry.Event
}

// New returns a Consumer.
func New(cfg Config) *Consumer {
	return &Consumer{
		Config:   cfg,
		poison:   cfg.Events.Event("skipped-poison", slog.LevelError),
		mismatch: cfg.Events.Event("contract-mismatch", slog.LevelWarn),
		nonRUB:   cfg.Events.Event("currency-not-rub", slog.LevelWarn),
		tenant:   cfg.Events.Event("tenant-mismatch", slog.LevelWarn),
	}
}

// Handle takes one record. It returns when the record is in the buffer of the sink or of the dead letters; the record's
// commit waits for their acknowledgement.
func (c *Consumer) Handle(d stream.Context, rec *record.Record) {
	now := c.Clock()
	ctx, receive := c.Tracing.StartReceive(d.Context(), rec, c.Group)
	ctx, span := c.Tracing.StartProcess(ctx, rec, c.Group)
	event, fault := codecs.DecodePrice(rec, now)
	if fault != nil {
		c.dead(ctx, d, rec, fault, span, receive)
		return
	}
	c.warn(ctx, rec, event)
	work := &processors.Work{Lag: c.Metrics.Lag.Start(rec.Partition, event.EventTime), Duration: c.Metrics.ConsumeDuration, Clock: c.Clock, Begun: now,
		Spans: [2]trace.Span{span, receive}, Committed: d.DeferCommit()}
	task := Task{Fact: &event.Fact, Record: rec, Span: span.SpanContext()}
	if err := c.Sink.Submit(ctx, batch.Item[Task]{Value: task, Size: rec.Size(), Session: d.Context(), Done: work.Done}); err != nil {
		work.Done(err)
	}
}

// dead writes the record to the dead letters; its commit waits for their acknowledgement.
func (c *Consumer) dead(ctx context.Context, d stream.Context, rec *record.Record, fault *codecs.Fault, spans ...trace.Span) {
	if c.poison.Allow(ctx) {
		c.poison.Write(ctx, "the price event breaks its contract and goes to the dead letters",
			slog.String("record", rec.String()), slog.String("code", string(fault.Code)), slog.String("field", fault.Field),
			slog.String("reason", fault.Reason), slog.String("source_event_id", codecs.EventID(rec)))
	}
	processors.Bury(ctx, d, c.Letters, rec, fault, nil, spans...)
}

func (c *Consumer) warn(ctx context.Context, rec *record.Record, event *codecs.Price) {
	if event.ContractMismatch {
		c.Metrics.ContractMismatch.Inc()
		c.mismatch.Log(ctx, "ContractVersion is not 1; the event is valid and is processed",
			slog.String("consumer", "price"), slog.String("record", rec.String()), slog.Int64("contract_version", event.ContractVersion))
	}
	if event.NonRUB {
		c.Metrics.NonRUB.Inc()
		c.nonRUB.Log(ctx, "the price is not in RUB; the fact is written with its own currency",
			slog.String("record", rec.String()), slog.String("source_event_id", event.SourceEventID),
			slog.String("iso_code", event.CurrencyIsoCode), slog.Int("currency_id", int(event.CurrencyID)))
	}
	if event.TenantMismatch {
		c.Metrics.TenantMismatch.Inc()
		c.tenant.Log(ctx, "the metadata name another tenant than the payload's DeveloperId; the payload wins",
			slog.String("record", rec.String()), slog.String("source_event_id", event.SourceEventID))
	}
}
