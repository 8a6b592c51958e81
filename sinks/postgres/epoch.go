package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The projections that have an epoch (design E6).
const (
	PromotionBoost = "promotion-boost"
	Popularity     = "popularity"
)

// Projection is one row of vitrina.projections. Every transaction that writes a projection names the epoch it was started
// with and gives up when the row has another one or is closed.
type Projection struct {
	Name  string
	Epoch int64
	Open  bool
}

// Querier is what a pool, a connection and a transaction have in common.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ErrNoProjection says that a projection has no row: the schema is not migrated, or the name is wrong.
var ErrNoProjection = errors.New("no such projection; run `vitrina migrate up`")

// ReadProjection returns a projection's epoch and state, without a lock.
func ReadProjection(ctx context.Context, q Querier, name string) (Projection, error) {
	return scanProjection(name, q.QueryRow(ctx, `SELECT epoch, state = 'open' FROM vitrina.projections WHERE name = $1`, name))
}

// RaiseEpoch closes a projection under a new epoch: from the commit on, every writer that was started before gives up, and
// one that starts again waits until Reopen. It waits for the writers that are inside their transaction.
func RaiseEpoch(ctx context.Context, q Querier, name, reason string) (Projection, error) {
	return scanProjection(name, q.QueryRow(ctx, `
		UPDATE vitrina.projections SET epoch = epoch + 1, state = 'closed', note = $2, changed_at = pg_catalog.clock_timestamp()
		WHERE name = $1 RETURNING epoch, state = 'open'`, name, reason))
}

// Reopen lets writers of the given epoch in again; call it in the transaction that resets the projection. It fails when
// somebody else has raised the epoch meanwhile.
func Reopen(ctx context.Context, q Querier, name string, epoch int64) error {
	tag, err := q.Exec(ctx, `
		UPDATE vitrina.projections SET state = 'open', note = '', changed_at = pg_catalog.clock_timestamp()
		WHERE name = $1 AND epoch = $2`, name, epoch)
	if err != nil {
		return fmt.Errorf("reopening projection %s: %w", name, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("reopening projection %s: its epoch is not %d any more, another rebuild has begun", name, epoch)
	}
	return nil
}

func scanProjection(name string, row pgx.Row) (Projection, error) {
	p := Projection{Name: name}
	err := row.Scan(&p.Epoch, &p.Open)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, fmt.Errorf("projection %q: %w", name, ErrNoProjection)
	}
	if err != nil {
		return p, fmt.Errorf("reading projection %s: %w", name, err)
	}
	return p, nil
}
