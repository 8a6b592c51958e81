package promotion

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/processors"
	"github.com/pin-marketplace/vitrina/sinks/batch"
)

// Task is one purchase snapshot on its way to the boost sink.
type Task struct {
	PurchaseID uuid.UUID
	State      *codecs.PurchaseState
	Record     *record.Record // the original record: what a dead letter is made of
	Span       trace.SpanContext
}

// Sink takes snapshots; it blocks while its buffer is full, which pauses the partition.
type Sink interface {
	Submit(ctx context.Context, item batch.Item[Task]) error
}

// Config is what a Consumer needs. All fields are required.
type Config struct {
	Group   string
	Hasher  string // the setting, named in warnings
	Sink    Sink
	Letters processors.Letters
	Metrics *telemetry.Promotion
	Tracing *telemetry.Tracing
	Events  *telemetry.EventLog
	Clock   processors.Clock
}

// Consumer handles the records of the purchase topic and of the group's loop topic. It is safe for concurrent use by all
// partitions.
type Consumer struct {
	Config
	loop processors.Loop

	consumed, duplicate, stale, postOnly, mismatch, unknownKind, unreadable *telemetry.Event
}

// New returns a Consumer.
func New(cfg Config) *Consumer {
	return &Consumer{
		Config: cfg,
		loop: processors.Loop{
			Consumer: "promotion", IDField: "PurchaseId", Hasher: cfg.Hasher, Letters: cfg.Letters,
			Rekeyed: cfg.Metrics.Rekeyed, PartitionDiffer: cfg.Metrics.KeyPartitionDiffer, Log: cfg.Events.Event("rekeyed", slog.LevelWarn),
		},
		consumed:    cfg.Events.Event("consumed", slog.LevelInfo),
		duplicate:   cfg.Events.Event("skipped-duplicate", slog.LevelInfo),
		stale:       cfg.Events.Event("skipped-stale", slog.LevelInfo),
		postOnly:    cfg.Events.Event("post-only", slog.LevelInfo),
		mismatch:    cfg.Events.Event("contract-mismatch", slog.LevelWarn),
		unknownKind: cfg.Events.Event("unknown-target-kind", slog.LevelWarn),
		unreadable:  cfg.Events.Event("state-unreadable", slog.LevelError),
	}
}

// Handle takes one record of the source topic.
func (c *Consumer) Handle(d stream.Context, rec *record.Record) { c.handle(d, rec, rec) }

// HandleLoop takes one record of the loop topic: a source record that lay under another key, or in another partition, than
// its purchase id belongs to.
func (c *Consumer) HandleLoop(d stream.Context, delivered *record.Record) {
	if original, ok := c.loop.Original(d, delivered); ok {
		c.handle(d, delivered, original)
	}
}

// handle takes a record as delivered and the original it stands for, which is the same for the source topic.
func (c *Consumer) handle(d stream.Context, delivered, rec *record.Record) {
	now, looped := c.Clock(), delivered != rec
	ctx, receive := c.Tracing.StartReceive(d.Context(), rec, c.Group)
	ctx, span := c.Tracing.StartProcess(ctx, rec, c.Group)
	event, fault := codecs.DecodePurchase(rec)
	if fault != nil {
		processors.Bury(ctx, d, c.Letters, rec, fault, codecs.FaultyPurchaseAttrs(rec), span, receive)
		return
	}
	if !looped && processors.Misplaced(d, rec, event.PurchaseID) {
		c.loop.Send(ctx, d, rec, event.PurchaseID, event, span, receive)
		return
	}
	origin := processors.Origin(d, delivered, looped)
	decision := Decide(c.state(ctx, d, rec, event.PurchaseID), event, origin, rec.ID)
	c.note(ctx, rec, event, decision)

	work := &processors.Work{Lag: c.Metrics.Lag.Start(delivered.Partition, event.CreatedAt), Duration: c.Metrics.ConsumeDuration, Clock: c.Clock, Begun: now,
		Spans: [2]trace.Span{span, receive}, Committed: d.DeferCommit()}
	value, err := decision.State.MarshalBinary()
	if err != nil {
		work.Done(err)
		d.Fail(fmt.Errorf("encoding the state of purchase %s (record %s): %w", event.PurchaseID, rec.ID, err))
		return
	}
	d.SetValue(value)
	if decision.Emit == nil {
		work.Done(nil)
		return
	}
	task := Task{PurchaseID: event.PurchaseID, State: decision.Emit, Record: rec, Span: span.SpanContext()}
	if err := c.Sink.Submit(ctx, batch.Item[Task]{Value: task, Size: rec.Size(), Session: d.Context(), Done: work.Done}); err != nil {
		work.Done(err)
	}
}

// state reads the purchase's state. One that cannot be read counts as none: the version guard in PostgreSQL decides either
// way, and what is written now replaces it.
func (c *Consumer) state(ctx context.Context, d stream.Context, rec *record.Record, id uuid.UUID) *codecs.PurchaseState {
	value, _ := d.Value().([]byte)
	if len(value) == 0 {
		return nil
	}
	state, err := codecs.DecodePurchaseState(value)
	if err != nil {
		c.unreadable.Log(ctx, "a purchase in the group table cannot be read; the version guard in PostgreSQL decides about this event",
			slog.String("purchase_id", id.String()), slog.String("record", rec.String()), slog.Any("error", err))
		return nil
	}
	return state
}

// note logs and counts what the event is and what the rules made of it.
func (c *Consumer) note(ctx context.Context, rec *record.Record, event *codecs.Purchase, decision Decision) {
	about := func() []slog.Attr {
		return []slog.Attr{
			slog.String("consumer", "promotion"), slog.String("record", rec.String()), slog.String("purchase_id", event.PurchaseID.String()),
			slog.Int64("version", event.Version), slog.String("status", string(event.Status)), slog.String("message_id", event.MessageID.String()),
		}
	}
	if c.consumed.Allow(ctx) {
		c.consumed.Write(ctx, "purchase event received", append(about(), slog.String("tenant_id", event.TenantID.String()), slog.Int("targets", len(event.Targets)))...)
	}
	if event.ContractMismatch {
		c.Metrics.ContractMismatch.Inc()
		c.mismatch.Log(ctx, "ContractVersion is not 1; the event is valid and is processed", append(about(), slog.Int64("contract_version", event.ContractVersion))...)
	}
	if len(event.UnknownKinds) > 0 {
		c.Metrics.UnknownTargetKind.Add(float64(len(event.UnknownKinds)))
		c.unknownKind.Log(ctx, "targets of an unknown kind are ignored", append(about(), slog.String("kinds", strings.Join(event.UnknownKinds, ", ")))...)
	}
	switch decision.Outcome {
	case Duplicate, DuplicateReemit:
		c.Metrics.Duplicates.Inc()
		c.duplicate.Log(ctx, "the MessageId was applied before", about()...)
	case Stale:
		c.Metrics.Stale.Inc()
		c.stale.Log(ctx, "a newer version of the purchase is stored", about()...)
	case Reapplied:
		c.duplicate.Log(ctx, "the record that was applied last has come again; its snapshot is handed to the sink once more", about()...)
	case Applied, PostOnly:
	}
	if len(event.Targets) == 0 && (decision.Outcome == Applied || decision.Outcome == PostOnly) {
		c.Metrics.PostOnly.Inc()
		c.postOnly.Log(ctx, "the event names no project and no object", about()...)
	}
}
