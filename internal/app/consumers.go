package app

import (
	"context"
	"fmt"
	"time"

	"github.com/lovoo/goka/storage"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/internal/stream/tablestore"
	"github.com/pin-marketplace/vitrina/sinks/batch"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// holdFlagOff is why the promotion role does not run while its feature flag is off. The instance is ready all the same (D35).
const holdFlagOff = "catalog.promotions.enabled is off"

func (a *App) promotionGate(ctx context.Context) (int64, string, error) {
	if !a.flag.Load() {
		return 0, holdFlagOff, nil
	}
	return a.projectionGate(ctx, postgres.PromotionBoost)
}

func (a *App) popularityGate(ctx context.Context) (int64, string, error) {
	return a.projectionGate(ctx, postgres.Popularity)
}

// projectionGate opens while the projection is open, under its epoch.
func (a *App) projectionGate(ctx context.Context, name string) (int64, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	p, err := postgres.ReadProjection(ctx, a.pool, name)
	switch {
	case err != nil:
		return 0, "", fmt.Errorf("asking PostgreSQL for the epoch of projection %s: %w", name, err)
	case !p.Open:
		return p.Epoch, "projection " + name + " is being rebuilt", nil
	default:
		return p.Epoch, "", nil
	}
}

// runtime makes the processor of a consumer.
func (a *App) runtime(spec stream.Spec, epoch int64, onAssigned func([]int32)) (*stream.Runtime, error) {
	options := stream.Options{
		Kafka:        a.kafka,
		Admin:        a.admin,
		StateDir:     a.cfg.State.Dir,
		Topics:       TopicOptions(a.cfg),
		CreateTopics: true,
		HotStandby:   a.cfg.State.HotStandby,
		OnAssigned:   onAssigned,
		OnLost:       func(l stream.Lost) { a.ready.Lost(l.Topic, l.Partition, l.From, l.To) },
		Backoff:      a.cfg.Backoff.Config(),
		Timing: stream.Timing{
			Stop:  a.cfg.Runtime.ProcessorTimeout(),
			Stall: a.cfg.Runtime.StallTimeout,
			Lag:   a.cfg.Runtime.LagInterval,
		},
		Logger: a.deps.Logger,
		Clock:  a.deps.Clock,
	}
	if spec.Stateful() {
		options.Incarnations = incarnations{pool: a.pool}
		options.Epoch = func(context.Context) (int64, error) { return epoch, nil }
		options.Store = func(dir string) storage.Builder {
			return tablestore.Builder(tablestore.Config{Dir: dir}, a.deps.Logger, a.deps.Registerer)
		}
	}
	return stream.New(spec, options)
}

// letters makes the dead-letter writer of a consumer. While it cannot write, the records that are due there are not finished, and their
// partitions commit no further.
func (a *App) letters(c config.Consumer, health *sinkHealth, count func(), retry func()) (*deadletter.Writer, error) {
	return deadletter.New(deadletter.Config{
		Consumer: c.Role, Topic: c.DLQ, Backoff: a.cfg.Backoff.Config(), DrainTimeout: a.cfg.Runtime.DrainTimeout, Clock: a.deps.Clock,
	}, a.client, a.events, a.deps.Logger, deadletter.Metrics{
		Written: func(code codecs.Code) {
			count()
			a.ready.DeadLetter(c.Role, string(code))
		},
		Retry:  retry,
		Failed: func(oversized bool, err error) { health.failed(lettersWriter(oversized), err) },
		Over:   func(oversized bool) { health.well(lettersWriter(oversized)) },
	})
}

// batchConfig is the one configuration of every sink's batcher.
func batchConfig(cfg *config.Config, name string, rows, bytes int, interval time.Duration) batch.Config {
	return batch.Config{
		Name: name, MaxItems: rows, MaxWait: interval, Buffer: 4 * rows, BufferBytes: bytes,
		Backoff: cfg.Backoff.Config(), DrainTimeout: cfg.Runtime.DrainTimeout,
	}
}

// sinkMetrics count a batcher's tries and report how it fares; batches may be nil. Writers of one sink are numbered from 0.
func sinkMetrics(health *sinkHealth, writer int, retries prometheus.Counter, batches prometheus.Histogram) batch.Metrics {
	return batch.Metrics{
		Retry:  retries.Inc,
		Failed: func(err error, _, _ int) { health.failed(writer, err) },
		Over:   func() { health.well(writer) },
		Flushed: func(items int, _ time.Duration) {
			if batches != nil {
				batches.Observe(float64(items))
			}
		},
	}
}
