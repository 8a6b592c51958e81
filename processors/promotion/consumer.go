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
	Route   processors.Route
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
	consumed, duplicate, stale, postOnly, mismatch, unknownKind, rekeyed, unreadable *telemetry.Event
}

// New returns a Consumer.
func New(cfg Config) *Consumer {
	return &Consumer{
		Config:      cfg,
		consumed:    cfg.Events.Event("consumed", slog.LevelInfo),
		duplicate:   cfg.Events.Event("skipped-duplicate", slog.LevelInfo),
		stale:       cfg.Events.Event("skipped-stale", slog.LevelInfo),
		postOnly:    cfg.Events.Event("post-only", slog.LevelInfo),
		mismatch:    cfg.Events.Event("contract-mismatch", slog.LevelWarn),
		unknownKind: cfg.Events.Event("unknown-target-kind", slog.LevelWarn),
		rekeyed:     cfg.Events.Event("rekeyed", slog.LevelWarn),
		unreadable:  cfg.Events.Event("state-unreadable", slog.LevelError),
	}
}

// Handle takes one record of the source topic.
func (c *Consumer) Handle(d processors.Delivery) { c.handle(d, d.Record, false) }

// HandleLoop takes one record of the loop topic: a source record that lay under another key, or in another partition, than
// its purchase id belongs to.
func (c *Consumer) HandleLoop(d processors.Delivery) {
	original, err := codecs.DecodeRecord(d.Record.Value)
	if err != nil {
		fault := &codecs.Fault{Code: codecs.CodeUndecodable, Reason: "the loop topic holds a record that vitrina did not write: " + err.Error()}
		processors.Bury(d, c.Letters, d.Record, fault)
		return
	}
	c.handle(d, original, true)
}

func (c *Consumer) handle(d processors.Delivery, rec *record.Record, looped bool) {
	now := c.Clock()
	ctx, receive := c.Tracing.StartReceive(d.Session(), rec, c.Group)
	ctx, span := c.Tracing.StartProcess(ctx, rec, c.Group)
	event, fault := codecs.DecodePurchase(rec)
	if fault != nil {
		processors.Bury(d, c.Letters, rec, fault, span, receive)
		return
	}
	key := event.PurchaseID.String()
	if !looped && c.Route.Misplaced(d.Record, key) {
		c.rekey(ctx, d, key)
		telemetry.EndSpan(span, nil)
		telemetry.EndSpan(receive, nil)
		return
	}
	decision := Decide(c.state(ctx, d, event.PurchaseID), event, d.Origin, rec.ID)
	c.note(ctx, rec, event, decision)

	lag := c.Metrics.Lag.Start(d.Record.Partition, event.CreatedAt)
	done := d.Defer(func(err error) {
		if err != nil {
			lag.Abandon()
		} else {
			lag.Done()
			c.Metrics.ConsumeDuration.Observe(telemetry.Milliseconds(c.Clock().Sub(now)))
		}
		telemetry.EndSpan(span, err)
		telemetry.EndSpan(receive, err)
	})
	if decision.State != nil {
		value, err := decision.State.MarshalBinary()
		if err != nil {
			done(err)
			d.Ctx.Fail(fmt.Errorf("encoding the state of purchase %s (record %s): %w", key, rec.ID, err))
			return
		}
		d.Ctx.SetValue(value)
	}
	if decision.Emit == nil {
		done(nil)
		return
	}
	task := Task{PurchaseID: event.PurchaseID, State: decision.Emit, Record: rec, Span: span.SpanContext()}
	if err := c.Sink.Submit(ctx, batch.Item[Task]{Value: task, Session: d.Session(), Done: done}); err != nil {
		done(err)
	}
}

// rekey sends the record to where its purchase id belongs, whole: with its own key, headers and coordinates.
func (c *Consumer) rekey(ctx context.Context, d processors.Delivery, key string) {
	c.Metrics.Rekeyed.Inc()
	reason := "its Kafka key is not the PurchaseId"
	if string(d.Record.Key) == key {
		c.Metrics.KeyPartitionDiffer.Inc()
		reason = fmt.Sprintf("its key hashes to partition %d: if this is frequent, set promotion.hasher (%s) to the producers' partitioner",
			c.Route.Partition(key), c.Hasher)
	}
	c.rekeyed.Log(ctx, "the purchase event goes through the loop topic",
		slog.String("consumer", "promotion"), slog.String("record", d.Record.String()), slog.String("purchase_id", key), slog.String("reason", reason))
	d.Ctx.Loopback(key, codecs.EncodeRecord(d.Record))
}

// state reads the purchase's state. One that cannot be read counts as none: the version guard in PostgreSQL decides either
// way, and what is written now replaces it.
func (c *Consumer) state(ctx context.Context, d processors.Delivery, id uuid.UUID) *codecs.PurchaseState {
	value, _ := d.Ctx.Value().([]byte)
	if len(value) == 0 {
		return nil
	}
	state, err := codecs.DecodePurchaseState(value)
	if err != nil {
		c.unreadable.Log(ctx, "a purchase in the group table cannot be read; the version guard in PostgreSQL decides about this event",
			slog.String("purchase_id", id.String()), slog.String("record", d.Record.String()), slog.Any("error", err))
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
