package rebuild

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// CrashAt makes the runner's process "die" when ask says so.
func (r *Runner) CrashAt(ask func(point string) error) { r.crash = ask }

// Seize takes the lease from whoever has it, as if it had run out, and works on the operation.
func (r *Runner) Seize(ctx context.Context, id uuid.UUID) error {
	tag, err := r.cfg.Pool.Exec(ctx, `UPDATE vitrina.operations SET state = 'running', started_at = coalesce(started_at, now()), lease_holder = $2,
		lease_until = clock_timestamp() + $3::interval WHERE id = $1 AND state IN ('pending', 'running')`, id, r.holder, r.cfg.Lease)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("operation %s is not active", id)
	}
	op, err := postgres.ReadOperation(ctx, r.cfg.Pool, id)
	if err != nil {
		return err
	}
	_, err = r.workOn(ctx, op)
	return err
}
