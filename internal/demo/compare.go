package demo

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/test/model"
	"github.com/pin-marketplace/vitrina/test/observe"
)

// Sources are where the results are read.
type Sources struct {
	Postgres   *pgxpool.Pool
	ClickHouse driver.Conn
	Kafka      []kgo.Opt
}

// read takes everything the model speaks of.
func (s Sources) read(ctx context.Context) (*model.Actual, error) {
	cards, err := observe.Cards(ctx, s.Postgres)
	if err != nil {
		return nil, err
	}
	facts, err := observe.Facts(ctx, s.ClickHouse)
	if err != nil {
		return nil, err
	}
	letters, err := observe.Letters(ctx, s.Kafka, config.TopicPromotionDLQ, config.TopicPopularityDLQ, config.TopicPriceDLQ)
	if err != nil {
		return nil, err
	}
	return &model.Actual{Cards: cards, Facts: facts, DeadLetters: letters}, nil
}

// Settle compares until nothing differs, or until patience has passed without a change of the differences' number; it returns
// the last comparison. Cards that came late take a recompute, views of late cards a retry.
func (s Sources) Settle(ctx context.Context, want *model.Expected, patience time.Duration) ([]model.Difference, error) {
	last, since := -1, time.Now()
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		got, err := s.read(ctx)
		if err != nil {
			return nil, err
		}
		differences := model.Compare(want, got)
		if len(differences) == 0 {
			return nil, nil
		}
		if len(differences) != last {
			last, since = len(differences), time.Now()
		}
		if time.Since(since) > patience {
			return differences, nil
		}
		select {
		case <-ctx.Done():
			return differences, context.Cause(ctx)
		case <-ticker.C:
		}
	}
}
