package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/lovoo/goka"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/processors/popularity"
	"github.com/pin-marketplace/vitrina/sinks/batch"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// Specification 002, Traces: receive, process, and the two statements that count the view. Those were written for every record of a batch,
// repeats and views without card among them, and never for a late view.
func TestTracesOfRepeatsAndLateViewsClaimedToHaveCounted(t *testing.T) {
	ctx := t.Context()
	exporter := tracetest.NewInMemoryExporter()
	a := &App{cfg: config.Default(), deps: Deps{Logger: slog.New(slog.DiscardHandler), Clock: time.Now,
		Tracing: telemetry.NewTracingWith(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)))}}
	a.events = telemetry.NewEventLog(a.deps.Logger, 0, time.Now)
	a.views = telemetry.NewPopularity(prometheus.NewRegistry(), nil)
	dsn := devtest.Postgres(t)
	db, err := postgres.OpenMigrator(dsn, postgres.PoolOptions{})
	require.NoError(t, err)
	_, err = postgres.Migrate(ctx, db)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	a.pool, err = postgres.NewPool(ctx, dsn, postgres.PoolOptions{})
	require.NoError(t, err)
	t.Cleanup(a.pool.Close)
	sink, err := postgres.NewViewsSink(a.pool, postgres.ViewsConfig{Epoch: 1, SourceTopic: "views", LoopTopic: "loop", FirstTry: time.Minute}, noLetters{}, a.viewHooks(), a.events)
	require.NoError(t, err)
	workers, err := a.viewWorkers(1, noLetters{}, a.viewHooks())
	require.NoError(t, err)

	p := &partition{ctx: ctx}
	consumer := popularity.New(popularity.Config{Group: "g", Hasher: "crc32", Codec: codecs.NewViewCodec([]string{"Catalog"}), Sink: p, Letters: noLetters{},
		Metrics: a.views, Tracing: a.deps.Tracing, Events: a.events, Clock: time.Now})
	object, unknown := uuid.New(), uuid.New()
	card := func(id uuid.UUID) {
		_, err := a.pool.Exec(ctx, `INSERT INTO catalog.property_object_cards (id, project_id, status) VALUES ($1, $1, 'Published')`, id)
		require.NoError(t, err)
	}
	card(object)
	counted, repeat, again, late := newTrace(1), newTrace(2), newTrace(3), newTrace(4)
	view, lateView := uuid.New(), uuid.New()
	consumer.Handle(p, viewRecord(0, view, object, counted))
	consumer.Handle(p, viewRecord(1, view, object, repeat))
	consumer.Handle(p, viewRecord(2, lateView, unknown, late))
	p.flush(t, a.flushViews(sink))
	consumer.Handle(p, viewRecord(3, view, object, again)) // alone in its batch, after the first is counted
	p.flush(t, a.flushViews(sink))

	path := []string{"producer > receive views", "receive views > process views"}
	counts := []string{"process views > UPDATE catalog.project_cards", "process views > UPDATE catalog.property_object_cards"}
	require.ElementsMatch(t, slices.Concat(path, counts), spansOf(exporter, counted))
	require.ElementsMatch(t, path, spansOf(exporter, repeat))
	require.ElementsMatch(t, path, spansOf(exporter, again))
	require.ElementsMatch(t, path, spansOf(exporter, late), "it waits for its card")

	card(unknown)
	_, err = a.pool.Exec(ctx, `UPDATE vitrina.late_views SET next_try = now()`)
	require.NoError(t, err)
	retry, ok := workers[0].(*postgres.RetryWorker)
	require.True(t, ok)
	_, n, err := retry.Retry(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.ElementsMatch(t, slices.Concat([]string{"producer > UPDATE catalog.project_cards", "producer > UPDATE catalog.property_object_cards"}, path), spansOf(exporter, late))
}

// newTrace is a producer's span.
func newTrace(n byte) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{n}, SpanID: trace.SpanID{n}, TraceFlags: trace.FlagsSampled})
}

// spansOf are the spans of a producer's trace that stand for its record, each with its parent.
func spansOf(exporter *tracetest.InMemoryExporter, producer trace.SpanContext) []string {
	names := map[trace.SpanID]string{producer.SpanID(): "producer"}
	var got []string
	for _, s := range exporter.GetSpans() {
		names[s.SpanContext.SpanID()] = s.Name
	}
	for _, s := range exporter.GetSpans() {
		if s.SpanContext.TraceID() == producer.TraceID() && s.Name != "count views" && s.Name != "count late views" {
			got = append(got, names[s.Parent.SpanID()]+" > "+s.Name)
		}
	}
	return got
}

func viewRecord(offset int64, view, object uuid.UUID, producer trace.SpanContext) *record.Record {
	const value = `{"PropertyObjectViewId":"%s","PropertyObjectId":"%s","SessionId":"%[1]s","AnonymousId":"%[1]s","ViewSource":"Catalog",
		"ViewedAt":"2026-11-30T10:15:30Z","LastActivityAt":"2026-11-30T10:15:30Z","DurationSeconds":1}`
	return &record.Record{ID: record.ID{Topic: "views", Offset: offset}, Key: []byte(view.String()), Value: fmt.Appendf(nil, value, view, object),
		Headers: []record.Header{{Key: "traceparent", Value: fmt.Appendf(nil, "00-%s-%s-01", producer.TraceID(), producer.SpanID())}}}
}

// noLetters takes no dead letter: none is due here.
type noLetters struct{}

func (noLetters) Submit(context.Context, deadletter.Letter, func(error)) error {
	return errors.New("a dead letter")
}
func (noLetters) Write(context.Context, ...deadletter.Letter) error {
	return errors.New("a dead letter")
}

type unused = stream.Context

// partition gives records to the consumer and takes its views, without a table.
type partition struct {
	unused // the rest of stream.Context

	ctx   context.Context //nolint:containedctx // what Context returns
	items []batch.Item[popularity.Task]
}

func (p *partition) Context() context.Context            { return p.ctx }
func (p *partition) Value() any                          { return nil }
func (p *partition) SetValue(any, ...goka.ContextOption) {}
func (p *partition) DeferCommit() func(error)            { return func(error) {} }
func (p *partition) Incarnation() uint32                 { return 1 }
func (p *partition) Home([]byte) int32                   { return 0 }
func (p *partition) Submit(_ context.Context, item batch.Item[popularity.Task]) error {
	p.items = append(p.items, item)
	return nil
}

// flush applies what was taken as one batch.
func (p *partition) flush(t *testing.T, flush batch.Flush[popularity.Task]) {
	t.Helper()
	var tasks []popularity.Task
	for _, item := range p.items {
		tasks = append(tasks, item.Value)
	}
	err := flush(p.ctx, tasks)
	require.NoError(t, err)
	for _, item := range p.items {
		item.Done(err)
	}
	p.items = nil
}
