package popularity

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/processors"
	"github.com/pin-marketplace/vitrina/sinks/batch"
)

// Task is one view on its way to the ledger.
type Task struct {
	View   *codecs.View
	Origin codecs.Origin // of the record as delivered
	Kind   codecs.MarkKind
	MarkAt time.Time      // of the mark that was found; zero for MarkNone
	Record *record.Record // the original record: what a dead letter is made of
	Span   trace.Span
}

// Sink takes views; it blocks while its buffer is full, which pauses the partition.
type Sink interface {
	Submit(ctx context.Context, item batch.Item[Task]) error
}

// Config is what a Consumer needs. All fields are required.
type Config struct {
	Group   string
	Hasher  string // the setting, named in warnings
	Codec   *codecs.ViewCodec
	Sink    Sink
	Letters processors.Letters
	Metrics *telemetry.Popularity
	Tracing *telemetry.Tracing
	Events  *telemetry.EventLog
	Clock   processors.Clock
}

// Consumer handles the records of the view topic and of the group's loop topic. It is safe for concurrent use by all
// partitions.
type Consumer struct {
	Config
	loop processors.Loop

	consumed, mismatch, unknownSource, negative, unreadable *telemetry.Event
}

// New returns a Consumer.
func New(cfg Config) *Consumer {
	return &Consumer{
		Config: cfg,
		loop: processors.Loop{
			Consumer: "popularity", IDField: "PropertyObjectViewId", Hasher: cfg.Hasher, Letters: cfg.Letters,
			Rekeyed: cfg.Metrics.Rekeyed, PartitionDiffer: cfg.Metrics.KeyPartitionDiffer, Log: cfg.Events.Event("rekeyed", slog.LevelWarn),
		},
		consumed:      cfg.Events.Event("consumed", slog.LevelInfo),
		mismatch:      cfg.Events.Event("contract-mismatch", slog.LevelWarn),
		unknownSource: cfg.Events.Event("unknown-view-source", slog.LevelWarn),
		negative:      cfg.Events.Event("negative-duration", slog.LevelWarn),
		unreadable:    cfg.Events.Event("state-unreadable", slog.LevelError),
	}
}

// Handle takes one record of the source topic.
func (c *Consumer) Handle(d stream.Context, rec *record.Record) { c.handle(d, rec, rec) }

// HandleLoop takes one record of the loop topic: a source record that lay under another key, or in another partition, than
// its view id belongs to.
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
	view, fault := c.Codec.Decode(rec)
	if fault != nil {
		processors.Bury(ctx, d, c.Letters, rec, fault, c.Codec.FaultyAttrs(rec), span, receive)
		return
	}
	if !looped && processors.Misplaced(d, rec, view.ViewID) {
		c.loop.Send(ctx, d, rec, view.ViewID, view, span, receive)
		return
	}
	c.note(ctx, rec, view, now)
	mark := c.mark(ctx, d, rec, view.ViewID)
	origin := processors.Origin(d, delivered, looped)
	decision := Decide(mark, view, origin, now)
	created := view.CreatedAt
	if created.IsZero() {
		created = view.LastActivityAt
	}
	work := &processors.Work{Lag: c.Metrics.Lag.Start(delivered.Partition, created), Duration: c.Metrics.ConsumeDuration, Clock: c.Clock, Begun: now,
		Spans: [2]trace.Span{span, receive}, Committed: d.DeferCommit()}
	value, err := decision.Write.MarshalBinary()
	if err != nil {
		work.Done(err)
		d.Fail(fmt.Errorf("encoding the mark of view %s (record %s): %w", view.ViewID, rec.ID, err))
		return
	}
	d.SetValue(value)
	task := Task{View: view, Origin: origin, Kind: decision.Kind, MarkAt: decision.MarkAt, Record: rec, Span: span}
	if err := c.Sink.Submit(ctx, batch.Item[Task]{Value: task, Size: rec.Size(), Session: d.Context(), Done: work.Done}); err != nil {
		work.Done(err)
	}
}

// mark reads the view's mark. One that cannot be read counts as none: the ledger decides either way.
func (c *Consumer) mark(ctx context.Context, d stream.Context, rec *record.Record, id uuid.UUID) *codecs.Mark {
	value, _ := d.Value().([]byte)
	if len(value) == 0 {
		return nil
	}
	mark, err := codecs.DecodeMark(value)
	if err != nil {
		c.unreadable.Log(ctx, "a mark in the group table cannot be read; the ledger in PostgreSQL decides about this view",
			slog.String("property_object_view_id", id.String()), slog.String("record", rec.String()), slog.Any("error", err))
		return nil
	}
	return &mark
}

// note logs and counts what is odd about a valid view.
func (c *Consumer) note(ctx context.Context, rec *record.Record, view *codecs.View, now time.Time) {
	if view.ContractMismatch {
		c.Metrics.ContractMismatch.Inc()
		c.mismatch.Log(ctx, "ContractVersion is not 1; the event is valid and is processed",
			slog.String("consumer", "popularity"), slog.String("record", rec.String()), slog.Int64("contract_version", view.ContractVersion))
	}
	if view.SourceUnknown {
		c.Metrics.UnknownViewSource.Inc()
		c.unknownSource.Log(ctx, "ViewSource is not in popularity.view_sources; the view counts as Unknown",
			slog.String("record", rec.String()), slog.String("property_object_view_id", view.ViewID.String()))
	}
	if view.DurationSeconds < 0 {
		c.Metrics.NegativeDuration.Inc()
		c.negative.Log(ctx, "DurationSeconds is below 0; the view counts all the same",
			slog.String("record", rec.String()), slog.String("property_object_view_id", view.ViewID.String()),
			slog.Int64("duration_seconds", view.DurationSeconds))
	}
	if c.consumed.AllowAt(ctx, now) {
		c.consumed.Write(ctx, "view received",
			slog.String("consumer", "popularity"), slog.String("record", rec.String()),
			slog.String("property_object_view_id", view.ViewID.String()), slog.String("property_object_id", view.ObjectID.String()),
			slog.String("view_source", view.Source), slog.Int64("duration_seconds", view.DurationSeconds),
			slog.Bool("has_user_id", view.HasUserID), slog.Bool("has_anonymous_id", view.HasAnonymousID), slog.Bool("has_session_id", view.HasSessionID))
	}
}
