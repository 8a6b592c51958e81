package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ReadHorizons returns the ledger's horizon of each partition of one incarnation of the source topic: every record below it is
// finished. Partitions that were never seen are missing.
func ReadHorizons(ctx context.Context, q Querier, incarnation uint32) (map[int32]int64, error) {
	rows, err := q.Query(ctx, `SELECT partition, horizon_offset FROM vitrina.horizons WHERE incarnation = $1 AND NOT is_loop`, int64(incarnation))
	if err != nil {
		return nil, fmt.Errorf("reading the ledger's horizons: %w", err)
	}
	out := make(map[int32]int64)
	var partition int32
	var offset int64
	if _, err := pgx.ForEachRow(rows, []any{&partition, &offset}, func() error {
		out[partition] = offset
		return nil
	}); err != nil {
		return nil, fmt.Errorf("reading the ledger's horizons: %w", err)
	}
	return out, nil
}
