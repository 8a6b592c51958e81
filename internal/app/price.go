package app

import (
	"context"
	"errors"
	"time"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/processors/price"
	"github.com/pin-marketplace/vitrina/sinks/batch"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
)

func (a *App) clickhouseConfig() clickhouse.Config { return ClickHouseConfig(a.cfg) }

// ClickHouseConfig is how ClickHouse is reached and how its table is laid out.
func ClickHouseConfig(cfg *config.Config) clickhouse.Config {
	return clickhouse.Config{
		DSN: cfg.ClickHouse.DSN.Reveal(), Cluster: cfg.Price.Cluster, Replicated: cfg.Price.Replicated,
		InsertTimeout: cfg.ClickHouse.InsertTimeout, QueryTimeout: cfg.ClickHouse.QueryTimeout,
	}
}

// buildPrice makes the price consumer.
func (a *App) buildPrice(_ context.Context, _ int64, health *sinkHealth) (pipeline, *stream.Runtime, error) {
	c, m := config.PriceConsumer(), a.price
	if a.facts == nil {
		return pipeline{}, nil, errors.New("the role price needs clickhouse.dsn")
	}
	letters, err := a.letters(c, health, m.DLQ.Inc, m.Retries.Inc)
	if err != nil {
		return pipeline{}, nil, err
	}
	sink := clickhouse.NewFactSink(a.facts, letters, a.deps.Tracing, a.events, clickhouse.Metrics{
		Ingested:       func(n int) { m.FactsIngested.Add(float64(n)) },
		BatchSize:      func(n int) { m.BatchSize.Observe(float64(n)) },
		InsertDuration: func(d time.Duration) { m.InsertDuration.Observe(float64(d.Milliseconds())) },
	}, a.deps.Clock)
	flush := func(ctx context.Context, tasks []price.Task) error {
		rows := make([]clickhouse.Row, len(tasks))
		for i, t := range tasks {
			rows[i] = clickhouse.Row(t)
		}
		return sink.Flush(ctx, rows)
	}
	batcher, err := batch.New(batchConfig(a.cfg, "fact sink", a.cfg.Price.BatchRows, a.cfg.Price.BufferBytes, a.cfg.Price.BatchInterval), flush, a.deps.Logger,
		sinkMetrics(health, 0, m.Retries, nil))
	if err != nil {
		return pipeline{}, nil, err
	}
	consumer := price.New(price.Config{
		Group: c.Group, Sink: batcher, Letters: letters, Metrics: m, Tracing: a.deps.Tracing, Events: a.events, Clock: a.deps.Clock,
	})
	runtime, err := a.runtime(stream.Spec{
		Name: c.Role, Group: c.Group, Input: c.Topic, Callback: consumer.Handle, DeadLetter: c.DLQ,
	}, 1, func(partitions []int32) { m.Lag.Retain(partitions...) })
	if err != nil {
		return pipeline{}, nil, err
	}
	return pipeline{processor: runtime, sinks: []runner{batcher}, letters: []runner{letters}}, runtime, nil
}
