package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// Tracing makes spans that continue the producer's trace (contracts, section 6). With no OTEL_ variable set it is off, and
// then costs a branch a record. Safe for concurrent use.
type Tracing struct {
	provider   trace.TracerProvider
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	enabled    bool
	shutdown   func(context.Context) error
}

// NoTracing is tracing that is off.
func NoTracing() *Tracing {
	p := noop.NewTracerProvider()
	return &Tracing{
		provider: p, tracer: p.Tracer(""), propagator: propagation.TraceContext{},
		shutdown: func(context.Context) error { return nil },
	}
}

// NewTracing sets tracing up by the standard OTEL_ variables: on when OTEL_TRACES_EXPORTER or an OTLP endpoint is set and OTEL_SDK_DISABLED
// is not. getenv decides that and nothing else: the exporter itself (OTEL_EXPORTER_OTLP_…), service name and attributes (OTEL_SERVICE_NAME,
// OTEL_RESOURCE_ATTRIBUTES) and the sampler (OTEL_TRACES_SAMPLER) are read by OpenTelemetry from the process's environment.
func NewTracing(ctx context.Context, version string, getenv func(string) string, logger *slog.Logger) (*Tracing, error) {
	exporter := getenv("OTEL_TRACES_EXPORTER")
	wanted := exporter != "" || getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
	if !wanted || exporter == "none" || getenv("OTEL_SDK_DISABLED") == "true" {
		return NoTracing(), nil
	}
	spans, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("set up the trace exporter of the OTEL_ variables: %w", err)
	}
	res, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("vitrina"), semconv.ServiceVersion(version)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessRuntimeName(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("read the trace resource from the OTEL_ variables: %w", err)
	}
	t := NewTracingWith(sdktrace.NewTracerProvider(sdktrace.WithBatcher(spans), sdktrace.WithResource(res)))
	logger.LogAttrs(ctx, slog.LevelInfo, "traces are exported", slog.String(EventKey, "tracing-on"))
	return t, nil
}

// NewTracingWith traces into a given provider: tests, and whoever embeds the program.
func NewTracingWith(provider *sdktrace.TracerProvider) *Tracing {
	return &Tracing{
		provider:   provider,
		tracer:     provider.Tracer("github.com/pin-marketplace/vitrina"),
		propagator: propagation.TraceContext{},
		enabled:    true,
		shutdown:   provider.Shutdown,
	}
}

// Enabled says whether spans are made at all.
func (t *Tracing) Enabled() bool { return t.enabled }

// Provider is what instrumented libraries (otelpgx) are given.
func (t *Tracing) Provider() trace.TracerProvider { return t.provider }

// Shutdown exports what is left. Give it a context with a bound.
func (t *Tracing) Shutdown(ctx context.Context) error {
	if err := t.shutdown(ctx); err != nil {
		return fmt.Errorf("export the last spans: %w", err)
	}
	return nil
}

// Producer is the producer's span in a record's traceparent header; not valid where there is none.
func (t *Tracing) Producer(ctx context.Context, rec *record.Record) trace.SpanContext {
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{}) // what Extract leaves where it finds nothing
	return trace.SpanContextFromContext(t.propagator.Extract(ctx, headerCarrier{record: rec}))
}

// StartReceive starts the span of a received record as a child of the producer's span in the record's traceparent header.
// group is the consumer group.
func (t *Tracing) StartReceive(ctx context.Context, rec *record.Record, group string) (context.Context, trace.Span) {
	if !t.enabled {
		return ctx, trace.SpanFromContext(nil) //nolint:staticcheck // nil gives the shared no-op span without allocating
	}
	ctx = t.propagator.Extract(ctx, headerCarrier{record: rec})
	return t.startRecord(ctx, rec, group, "receive")
}

// StartProcess starts the span of a record's rules, a child of its receive span in ctx.
func (t *Tracing) StartProcess(ctx context.Context, rec *record.Record, group string) (context.Context, trace.Span) {
	if !t.enabled {
		return ctx, trace.SpanFromContext(nil) //nolint:staticcheck // nil gives the shared no-op span without allocating
	}
	return t.startRecord(ctx, rec, group, "process")
}

func (t *Tracing) startRecord(ctx context.Context, rec *record.Record, group, operation string) (context.Context, trace.Span) {
	ctx, span := t.tracer.Start(ctx, operation+" "+rec.Topic, trace.WithSpanKind(trace.SpanKindConsumer), //nolint:spancheck // the caller ends it
		trace.WithAttributes(recordAttributes(rec, group, operation)...))
	return ctx, span //nolint:spancheck // the caller ends it
}

func recordAttributes(rec *record.Record, group, operation string) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		semconv.MessagingSystemKafka,
		semconv.MessagingOperationName(operation),
		semconv.MessagingOperationTypeKey.String(operation),
		semconv.MessagingDestinationName(rec.Topic),
		semconv.MessagingDestinationPartitionID(strconv.Itoa(int(rec.Partition))),
		semconv.MessagingKafkaOffsetKey.Int64(rec.Offset),
		semconv.MessagingConsumerGroupName(group),
	}
	if rec.Value == nil {
		attrs = append(attrs, semconv.MessagingKafkaMessageTombstone(true))
	} else {
		attrs = append(attrs, semconv.MessagingMessageBodySize(len(rec.Value)))
	}
	return attrs
}

// maxLinks is how many records of a batch the batch's span links to: the SDK keeps 128.
const maxLinks = 128

// Batch is one write of many records: one span for the write, and for each traced record a span in its own trace, so that
// every producer's trace reaches the database statement. The zero value does nothing.
type Batch struct {
	t       *Tracing
	span    trace.Span
	records []trace.SpanContext
	start   time.Time
}

// StartBatch starts the span of a write; records are the span contexts of the records in it (invalid ones are skipped).
// The write's span continues the first record's trace and links to the others.
func (t *Tracing) StartBatch(ctx context.Context, name string, size int, records []trace.SpanContext) (context.Context, Batch) {
	if !t.enabled {
		return ctx, Batch{}
	}
	b := Batch{t: t, start: time.Now()}
	var links []trace.Link
	for _, sc := range records {
		if !sc.IsValid() || !sc.IsSampled() {
			continue
		}
		if len(b.records) > 0 && len(links) < maxLinks {
			links = append(links, trace.Link{SpanContext: sc})
		}
		b.records = append(b.records, sc)
	}
	if len(b.records) > 0 {
		ctx = trace.ContextWithRemoteSpanContext(ctx, b.records[0])
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithLinks(links...), trace.WithTimestamp(b.start), //nolint:spancheck // End ends it
		trace.WithAttributes(semconv.MessagingBatchMessageCount(size)))
	b.span = span
	return ctx, b //nolint:spancheck // End ends it
}

// End ends the write. Each statement is recorded as one span in the trace of every traced record: its name is the
// operation and the table ("UPDATE catalog.project_cards"), system the database ("postgresql", "clickhouse").
func (b Batch) End(ctx context.Context, err error, system string, statements ...string) {
	b.end(ctx, b.records, err, err, system, statements)
}

// EndOf ends a write that had an effect for these records only, done whatever became of the rest: only their traces get the statements.
func (b Batch) EndOf(ctx context.Context, records []trace.SpanContext, err error, system string, statements ...string) {
	b.end(ctx, records, nil, err, system, statements)
}

func (b Batch) end(ctx context.Context, records []trace.SpanContext, recordErr, err error, system string, statements []string) {
	if b.t == nil {
		return
	}
	end := time.Now()
	link := trace.WithLinks(trace.Link{SpanContext: b.span.SpanContext()})
	for _, sc := range records {
		if !sc.IsValid() || !sc.IsSampled() {
			continue
		}
		parent := trace.ContextWithRemoteSpanContext(context.WithoutCancel(ctx), sc)
		for _, statement := range statements {
			_, span := b.t.tracer.Start(parent, statement, trace.WithSpanKind(trace.SpanKindClient), link,
				trace.WithTimestamp(b.start), trace.WithAttributes(semconv.DBSystemNameKey.String(system)))
			endSpan(span, recordErr, end)
		}
	}
	endSpan(b.span, err, end)
}

func endSpan(span trace.Span, err error, at time.Time) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
	span.End(trace.WithTimestamp(at))
}

// EndSpan ends a span, with the error if there is one.
func EndSpan(span trace.Span, err error) {
	if span.IsRecording() {
		endSpan(span, err, time.Now())
	}
}

// headerCarrier reads trace context from a record's headers.
type headerCarrier struct{ record *record.Record }

func (c headerCarrier) Get(key string) string {
	value, _ := c.record.Header(key)
	return string(value)
}

// Set does nothing: records are shared and never changed.
func (c headerCarrier) Set(string, string) {}

func (c headerCarrier) Keys() []string {
	keys := make([]string, len(c.record.Headers))
	for i, h := range c.record.Headers {
		keys[i] = h.Key
	}
	return keys
}
