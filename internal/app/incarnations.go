package app

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// incarnations keeps what the groups' states were made from in PostgreSQL.
type incarnations struct{ pool *pgxpool.Pool }

func (i incarnations) Accepted(ctx context.Context, group string) (stream.Accepted, bool, error) {
	got, known, err := postgres.ReadIncarnation(ctx, i.pool, group)
	return stream.Accepted{SourceTopicID: got.SourceTopicID, Partitions: got.Partitions, Hasher: stream.Hasher(got.Hasher)}, known, err
}

func (i incarnations) Accept(ctx context.Context, group string, accepted stream.Accepted) error {
	return postgres.AcceptIncarnation(ctx, i.pool, group, postgres.Incarnation{
		SourceTopicID: accepted.SourceTopicID, Partitions: accepted.Partitions, Hasher: string(accepted.Hasher),
	})
}
