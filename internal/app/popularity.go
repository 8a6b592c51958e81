package app

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/processors/popularity"
	"github.com/pin-marketplace/vitrina/sinks/batch"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// buildPopularity makes the popularity consumer for one epoch of its projection.
func (a *App) buildPopularity(_ context.Context, epoch int64, health *sinkHealth) (pipeline, *stream.Runtime, error) {
	c, m := config.PopularityConsumer(), a.views
	letters, err := a.letters(c, health, m.DLQ.Inc, m.Retries.Inc)
	if err != nil {
		return pipeline{}, nil, err
	}
	hooks := a.viewHooks()
	sink, err := postgres.NewViewsSink(a.pool, postgres.ViewsConfig{
		Epoch: epoch, SourceTopic: c.Topic, LoopTopic: c.LoopTopic(), FirstTry: a.cfg.Popularity.RetryDelays[0],
	}, letters, hooks, a.events)
	if err != nil {
		return pipeline{}, nil, err
	}
	writers, err := a.newViewWriters(sink, health)
	if err != nil {
		return pipeline{}, nil, err
	}
	workers, err := a.viewWorkers(epoch, letters, hooks)
	if err != nil {
		return pipeline{}, nil, err
	}
	consumer := popularity.New(popularity.Config{
		Group: c.Group, Hasher: a.cfg.Popularity.Hasher, Codec: codecs.NewViewCodec(a.cfg.Popularity.ViewSources), Sink: writers, Letters: letters,
		Metrics: m, Tracing: a.deps.Tracing, Events: a.events, Clock: a.deps.Clock,
	})
	runtime, err := a.runtime(stream.Spec{
		Name: c.Role, Group: c.Group, Input: c.Topic, TableCodec: codecs.Bytes{}, Hasher: stream.Hasher(a.cfg.Popularity.Hasher),
		Callback: consumer.Handle, LoopCallback: consumer.HandleLoop, DeadLetter: c.DLQ,
		Mend:  "Run `vitrina rebuild popularity`: it keeps what was counted and accepts the topic as it is",
		Check: a.checkHorizons, Lasting: true,
	}, epoch, func(partitions []int32) { m.Lag.Retain(partitions...) })
	if err != nil {
		return pipeline{}, nil, err
	}
	return pipeline{processor: runtime, workers: workers, sinks: writers.runners(), letters: []runner{letters}}, runtime, nil
}

// viewWriters are batchers side by side: while one's transaction waits for the disk or for a lock, another's works. A partition keeps
// to one of them, so that a view and its repeats, which lie in one partition, do not meet in two transactions.
type viewWriters []*batch.Batcher[popularity.Task]

func (a *App) newViewWriters(sink *postgres.ViewsSink, health *sinkHealth) (viewWriters, error) {
	var writers viewWriters
	for i := range a.cfg.Popularity.Writers {
		cfg := batchConfig(a.cfg, fmt.Sprintf("views sink %d", i+1), a.cfg.Popularity.BatchRows, a.cfg.Popularity.BufferBytes, a.cfg.Popularity.BatchInterval)
		cfg.Buffer = cfg.MaxItems // the next batch grows while one is flushed: more would only be memory, and work for the collector
		batcher, err := batch.New(cfg, a.flushViews(sink), a.deps.Logger, sinkMetrics(health, i, a.views.Retries, a.views.BatchSize))
		if err != nil {
			return nil, err
		}
		writers = append(writers, batcher)
	}
	return writers, nil
}

// Submit blocks while the buffer of the partition's writer is full.
func (w viewWriters) Submit(ctx context.Context, item batch.Item[popularity.Task]) error {
	return w[int(item.Value.Origin.Partition)%len(w)].Submit(ctx, item)
}

func (w viewWriters) runners() []runner {
	runners := make([]runner, len(w))
	for i, b := range w {
		runners[i] = b
	}
	return runners
}

// flushViews hands a batch to the ledger, with the trace of each record continued to the statements that count its view. One that is a
// repeat, waits for its card or is of a Delisted one is not counted: its trace ends at its process span.
func (a *App) flushViews(sink *postgres.ViewsSink) batch.Flush[popularity.Task] {
	return func(ctx context.Context, tasks []popularity.Task) error {
		items := make([]postgres.ViewItem, len(tasks))
		for i := range tasks {
			t := &tasks[i]
			items[i] = postgres.ViewItem{
				ViewID: t.View.ViewID, ObjectID: t.View.ObjectID, Origin: t.Origin, Kind: t.Kind, MarkAt: t.MarkAt,
				Record: t.Record, ViewSource: t.View.Source, DurationSeconds: t.View.DurationSeconds,
			}
		}
		var spans []trace.SpanContext
		if a.deps.Tracing.Enabled() {
			spans = make([]trace.SpanContext, len(tasks))
			for i := range tasks {
				spans[i] = tasks[i].Span.SpanContext()
			}
		}
		ctx, span := a.deps.Tracing.StartBatch(ctx, "count views", len(tasks), spans)
		err := sink.Flush(ctx, items)
		counted := spans[:0]
		for i := range spans {
			if items[i].Counted {
				counted = append(counted, spans[i])
			}
		}
		span.EndOf(ctx, counted, err, "postgresql", postgres.CountObject, postgres.CountProject)
		return err
	}
}

func (a *App) viewHooks() postgres.ViewsMetrics {
	m := a.views
	return postgres.ViewsMetrics{
		Counted:        func(source string, n int) { m.Incremented(source).Add(float64(n)) },
		Duplicates:     func(n int) { m.Duplicates.Add(float64(n)) },
		Delisted:       func(n int) { m.DelistedSkipped.Add(float64(n)) },
		NotFound:       func(n int) { m.ObjectNotFound.Add(float64(n)) },
		ProjectMissing: func(n int) { m.ProjectMissing.Add(float64(n)) },
		Retries:        func(n int) { m.Retries.Add(float64(n)) },
	}
}

// viewWorkers are the retry worker and the pruner, which every instance runs: the database shares their work out.
func (a *App) viewWorkers(epoch int64, letters postgres.Letters, hooks postgres.ViewsMetrics) ([]runner, error) {
	m := a.views
	retry, err := postgres.NewRetryWorker(a.pool, postgres.RetryConfig{
		Epoch: epoch, Delays: a.cfg.Popularity.RetryDelays, Poll: a.cfg.Popularity.RetryInterval, Backoff: a.cfg.Backoff.Config(),
		Tracing: a.deps.Tracing,
	}, letters, hooks, postgres.RetryHooks{
		Late: func(late postgres.LateViews, now time.Time) {
			m.Pending.Set(float64(late.Pending))
			age := 0.0
			if !late.OldestPending.IsZero() {
				age = now.Sub(late.OldestPending).Seconds()
			}
			m.OldestPending.Set(age)
		},
	}, a.events, a.deps.Logger, a.deps.Clock)
	if err != nil {
		return nil, err
	}
	prune, err := postgres.NewPruner(a.pool, postgres.PruneConfig{
		Epoch: epoch, Window: a.cfg.Popularity.LedgerWindow, Interval: a.cfg.Popularity.PruneInterval, Backoff: a.cfg.Backoff.Config(),
	}, viewProgress{admin: a.admin}, a.deps.Logger, a.deps.Clock)
	if err != nil {
		return nil, err
	}
	return []runner{retry, prune}, nil
}

// viewProgress reads how far the popularity group has come, for the ledger's horizon.
type viewProgress struct{ admin *stream.Admin }

func (v viewProgress) ViewProgress(ctx context.Context) ([]postgres.LaneProgress, error) {
	c := config.PopularityConsumer()
	names := []string{c.Topic, c.LoopTopic()}
	before, err := v.admin.Topics(ctx, names...)
	if err != nil {
		return nil, err
	}
	positions, err := v.admin.GroupPositions(ctx, c.Group, names...)
	if err != nil {
		return nil, err
	}
	after, err := v.admin.Topics(ctx, names...)
	if err != nil {
		return nil, err
	}
	var out []postgres.LaneProgress
	for _, name := range names {
		topic, ok := before[name]
		if !ok || after[name].ID != topic.ID {
			return nil, fmt.Errorf("topic %s is missing or is being created anew", name)
		}
		for p, pos := range positions[name] {
			committed := pos.Committed
			if committed < 0 {
				committed = pos.Start
			}
			end := pos.End
			more, err := v.admin.Deliverable(ctx, name, int32(p), max(committed, pos.Start), end) //nolint:gosec // a partition number
			if err != nil {
				return nil, err
			}
			if !more {
				end = committed // what is left is never delivered: a transaction's marker
			}
			out = append(out, postgres.LaneProgress{
				Lane:      postgres.Lane{Incarnation: stream.Incarnation(topic.ID), Loop: name != c.Topic, Partition: int32(p), Topic: name}, //nolint:gosec // as above
				Committed: committed, End: end,
			})
		}
	}
	return out, nil
}

// checkHorizons refuses a source that ends below the ledger's horizon: its records would be taken for finished ones (design, E6).
func (a *App) checkHorizons(ctx context.Context, source stream.Source) error {
	horizons, err := postgres.ReadHorizons(ctx, a.pool, stream.Incarnation(source.ID))
	if err != nil {
		return err
	}
	for p, position := range source.Positions {
		if horizon := horizons[int32(p)]; horizon > position.End { //nolint:gosec // a partition number
			return fmt.Errorf("topic %s partition %d ends at offset %d, but the ledger has finished records up to %d: the topic was restored to an earlier state. "+
				"Run `vitrina rebuild popularity`: it keeps what was counted and accepts the topic as it is", source.Topic, p, position.End, horizon)
		}
	}
	return nil
}
