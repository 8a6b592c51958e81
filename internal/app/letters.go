package app

import (
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/ops/dlq"
	"github.com/pin-marketplace/vitrina/internal/stream"
)

// DeadLetters is how dead letters are listed and put back, by an instance or by the command line.
func DeadLetters(cfg *config.Config, pool *pgxpool.Pool, admin *stream.Admin, kafka stream.KafkaConfig, instance string, logger *slog.Logger, clock func() time.Time) *dlq.Service {
	return &dlq.Service{
		Kafka: kafka, Admin: admin, Pool: pool, Logger: logger, Clock: clock, Instance: instance,
		MaxReturns: cfg.DeadLetters.MaxReturns, Rate: cfg.DeadLetters.ReplayRate,
		Hashers: map[string]string{config.RolePromotion: cfg.Promotion.Hasher, config.RolePopularity: cfg.Popularity.Hasher},
	}
}
