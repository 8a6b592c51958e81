package app

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/processors/promotion"
	"github.com/pin-marketplace/vitrina/sinks/batch"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// buildPromotion makes the promotion consumer for one epoch of its projection.
func (a *App) buildPromotion(_ context.Context, epoch int64, health *sinkHealth) (pipeline, *stream.Runtime, error) {
	c, m := config.PromotionConsumer(), a.promotion
	letters, err := a.letters(c, health, m.DLQ.Inc, m.Retries.Inc)
	if err != nil {
		return pipeline{}, nil, err
	}
	sink, err := postgres.NewBoostSink(a.pool, postgres.BoostConfig{Epoch: epoch, Enabled: a.flag.Load}, letters, a.events, postgres.BoostMetrics{
		CardsRecomputed: func(n int) { m.CardsRecomputed.Add(float64(n)) },
		Stale:           m.Stale.Inc,
		Retry:           m.Retries.Inc,
		CardConflicts:   func(n int) { m.CardLockConflicts.Add(float64(n)) },
		DirtyCards:      func(n int) { m.DirtyCards.Set(float64(n)) },
	})
	if err != nil {
		return pipeline{}, nil, err
	}
	flush := func(ctx context.Context, tasks []promotion.Task) error {
		snapshots := make([]postgres.Snapshot, len(tasks))
		spans := make([]trace.SpanContext, len(tasks))
		for i, t := range tasks {
			snapshots[i] = postgres.Snapshot{PurchaseID: t.PurchaseID, State: t.State, Record: t.Record}
			spans[i] = t.Span
		}
		ctx, span := a.deps.Tracing.StartBatch(ctx, "apply purchase snapshots", len(tasks), spans)
		err := sink.Flush(ctx, snapshots)
		span.End(ctx, err, "postgresql", "UPSERT vitrina.contributions", "UPDATE catalog.property_object_cards, catalog.project_cards")
		return err
	}
	batcher, err := batch.New(batchConfig(a.cfg, "boost sink", a.cfg.Promotion.BatchRows, a.cfg.Promotion.BufferBytes, a.cfg.Promotion.BatchInterval), flush, a.deps.Logger,
		sinkMetrics(health, 0, m.Retries, m.BatchSize))
	if err != nil {
		return pipeline{}, nil, err
	}
	consumer := promotion.New(promotion.Config{
		Group: c.Group, Hasher: a.cfg.Promotion.Hasher, Sink: batcher, Letters: letters, Metrics: m,
		Tracing: a.deps.Tracing, Events: a.events, Clock: a.deps.Clock,
	})
	runtime, err := a.runtime(stream.Spec{
		Name: c.Role, Group: c.Group, Input: c.Topic, TableCodec: codecs.Bytes{}, Hasher: stream.Hasher(a.cfg.Promotion.Hasher),
		Callback: consumer.Handle, LoopCallback: consumer.HandleLoop, DeadLetter: c.DLQ,
		Mend: "Run `vitrina rebuild promotion-boost`: it accepts the topic as it is and applies it from its beginning",
	}, epoch, func(partitions []int32) { m.Lag.Retain(partitions...) })
	if err != nil {
		return pipeline{}, nil, err
	}
	return pipeline{
		processor: runtime,
		workers: []runner{runFunc(func(ctx context.Context) error {
			a.recompute(ctx, sink)
			return nil
		})},
		sinks:   []runner{batcher},
		letters: []runner{letters},
	}, runtime, nil
}

// recompute gives cards that appeared, moved or were published their boost at each interval, and now and then compares all
// of them. A pass that fails is logged and comes again at the next interval.
func (a *App) recompute(ctx context.Context, sink *postgres.BoostSink) {
	reconcile := time.NewTicker(a.cfg.Promotion.ReconcileInterval)
	defer reconcile.Stop()
	sweep := time.NewTicker(a.cfg.Promotion.SweepInterval)
	defer sweep.Stop()
	pass := func(name string, do func(context.Context) (postgres.Report, error)) postgres.Report {
		started := time.Now()
		report, err := do(ctx)
		a.promotion.ReconcileDuration.Observe(float64(time.Since(started).Milliseconds()))
		if err != nil && ctx.Err() == nil {
			a.deps.Logger.LogAttrs(ctx, slog.LevelWarn, "a recompute of boosts failed and is tried again at the next interval",
				slog.String("event", "recompute-failed"), slog.String("pass", name), slog.Any("error", err))
		}
		return report
	}
	// Where no trigger notes the changes of cards (a role without the TRIGGER privilege, views that cannot be followed), only a
	// sweep finds them; it then runs as often as the cursor would, but for no more than a tenth of the time.
	var swept time.Time
	var took time.Duration
	cursor := func() {
		if r := pass("cursor", sink.Reconcile); r.Blind != "" && time.Since(swept) > 10*took {
			started := time.Now()
			pass("sweep", sink.Sweep)
			swept, took = time.Now(), time.Since(started)
		}
	}
	cursor()
	for {
		select {
		case <-ctx.Done():
			return
		case <-reconcile.C:
			cursor()
		case <-sweep.C:
			pass("sweep", sink.Sweep)
		}
	}
}
