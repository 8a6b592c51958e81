package telemetry_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

const producerTrace = "4bf92f3577b34da6a3ce929d0e0e4736"

func traced() *record.Record {
	return &record.Record{
		ID: record.ID{Topic: "pin.promotion.purchase-changed.v1", Partition: 2, Offset: 42}, Value: []byte(`{}`),
		Headers: []record.Header{
			{Key: "Traceparent", Value: []byte("00-" + producerTrace + "-00f067aa0ba902b7-01")},
			{Key: "tracestate", Value: []byte("pin=1")},
		},
	}
}

func TestSpansContinueTheProducersTraceToTheStatement(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	tracing := telemetry.NewTracingWith(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)))
	ctx, receive := tracing.StartReceive(t.Context(), traced(), "group")
	_, process := tracing.StartProcess(ctx, traced(), "group")
	process.End()
	receive.End()
	flushCtx, batch := tracing.StartBatch(t.Context(), "flush promotion", 2,
		[]trace.SpanContext{process.SpanContext(), {}})
	batch.End(flushCtx, errors.New("down"), "postgresql", "UPDATE catalog.project_cards", "UPDATE catalog.property_object_cards")

	spans := exporter.GetSpans()
	require.Len(t, spans, 5)
	parents := map[string]trace.SpanID{}
	for _, s := range spans {
		require.Equal(t, producerTrace, s.SpanContext.TraceID().String(), s.Name)
		parents[s.Name] = s.Parent.SpanID()
	}
	require.Equal(t, "00f067aa0ba902b7", parents["receive pin.promotion.purchase-changed.v1"].String())
	require.Equal(t, receive.SpanContext().SpanID(), parents["process pin.promotion.purchase-changed.v1"])
	require.Equal(t, process.SpanContext().SpanID(), parents["UPDATE catalog.project_cards"])
	require.Equal(t, codes.Error, spans[len(spans)-1].Status.Code)
	attrs := attribute.NewSet(spans[0].Attributes...)
	offset, ok := attrs.Value("messaging.kafka.offset")
	require.True(t, ok)
	require.Equal(t, int64(42), offset.AsInt64())
}

func TestTracingIsOffAndFreeWithoutVariables(t *testing.T) {
	tracing, err := telemetry.NewTracing(t.Context(), "dev", func(string) string { return "" }, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.False(t, tracing.Enabled())
	rec, ctx := traced(), t.Context()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		c, span := tracing.StartReceive(ctx, rec, "group")
		c, inner := tracing.StartProcess(c, rec, "group")
		inner.End()
		span.End()
		_, batch := tracing.StartBatch(c, "x", 1, nil)
		batch.End(c, nil, "postgresql", "UPDATE")
	}))
	require.NoError(t, tracing.Shutdown(ctx))

	off := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"}
	tracing, err = telemetry.NewTracing(ctx, "dev", func(k string) string { return off[k] }, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.False(t, tracing.Enabled())
}

func TestTracingTurnsOnByTheStandardVariables(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "console")
	env := map[string]string{"OTEL_TRACES_EXPORTER": "console"}
	tracing, err := telemetry.NewTracing(t.Context(), "dev", func(k string) string { return env[k] }, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.True(t, tracing.Enabled())
	require.NoError(t, tracing.Shutdown(t.Context()))

	t.Setenv("OTEL_TRACES_EXPORTER", "nonsense")
	env["OTEL_TRACES_EXPORTER"] = "nonsense"
	_, err = telemetry.NewTracing(t.Context(), "dev", func(k string) string { return env[k] }, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "OTEL_")
}
