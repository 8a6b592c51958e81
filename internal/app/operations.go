package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/ops/rebuild"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// OperationsConfig is how rebuilds and replays are run, by an instance or by the command line.
func OperationsConfig(cfg *config.Config, pool *pgxpool.Pool, admin *stream.Admin, kafka stream.KafkaConfig, instance string, promotionsEnabled func() bool, logger *slog.Logger) rebuild.Config {
	return rebuild.Config{
		Pool: pool, Admin: admin, Kafka: kafka, Topics: TopicOptions(cfg), Instance: instance,
		PromotionsEnabled: promotionsEnabled, Backoff: cfg.Backoff.Config(), Logger: logger,
	}
}

// runOperations works on rebuilds and replays, as every instance does: the database shares them out.
func (a *App) runOperations(ctx context.Context) error {
	runner, err := rebuild.New(OperationsConfig(a.cfg, a.pool, a.admin, a.kafka, a.instance, a.flag.Load, a.deps.Logger))
	if err != nil {
		return err
	}
	return runner.Run(ctx)
}

// operations are the administrative calls about rebuilds.
func (a *App) operations() rebuild.API {
	return rebuild.API{Pool: a.pool, PromotionsEnabled: a.flag.Load, Instance: a.instance, Logger: a.deps.Logger}
}

// priceGate holds the price role while a replay moves its group's offsets. The role does not need PostgreSQL: as long as nobody can
// say that it must wait, it runs. A replay that begins meanwhile waits for the group to be empty, and the broker refuses to
// move the offsets of one that is not.
func (a *App) priceGate(ctx context.Context) (int64, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	p, err := postgres.ReadProjection(ctx, a.pool, postgres.PriceHistory)
	if err == nil && !p.Open {
		return 1, "price history is being replayed: the offsets of its group are being moved", nil
	}
	return 1, "", nil
}
