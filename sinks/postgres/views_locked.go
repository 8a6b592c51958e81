package postgres

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// applyAround applies a batch. Cards that another transaction keeps locked for longer than the lock timeout delay their own views only:
// those become pending, and the retry worker counts them once the cards are free. Until nothing is found locked any more, batches ask
// first instead of waiting first.
func (s *ViewsSink) applyAround(ctx context.Context, values []ViewItem) (taken int, err error) {
	if !s.rival.Load() {
		taken, err = s.apply(ctx, values)
		if !lockTimedOut(err) {
			return taken, err
		}
		s.rival.Store(true)
		call(s.metrics.Retries, 1)
	}
	locked, err := s.lockedObjects(ctx, values)
	if err != nil {
		return taken, fmt.Errorf("looking for the cards that are locked: %w", err)
	}
	s.rival.Store(len(locked) > 0)
	free, busy := values, []*ViewItem(nil)
	if len(locked) > 0 {
		free, busy = around(values, locked)
	}
	counted, err := s.apply(ctx, free)
	taken += counted
	if err != nil || len(busy) == 0 {
		return taken, err
	}
	if _, err := s.settleAll(ctx, busy, true); err != nil {
		return taken, err
	}
	s.log.lockedEvent.Log(ctx, "another transaction keeps cards locked; their views wait in the database and are counted once the cards are free",
		slog.String("consumer", "popularity"), slog.Int("cards", len(locked)), slog.Int("views", len(busy)))
	return taken, nil
}

// around takes out the views of locked objects. A view's other records go with it: the first of them decides about its object.
func around(values []ViewItem, locked uuidSet) (free []ViewItem, busy []*ViewItem) {
	wait := make(map[uuid.UUID]bool)
	for i := range values {
		if locked.has(values[i].ObjectID) {
			wait[values[i].ViewID] = true
		}
	}
	free = make([]ViewItem, 0, len(values))
	for i := range values {
		if wait[values[i].ViewID] {
			busy = append(busy, &values[i])
		} else {
			free = append(free, values[i])
		}
	}
	return free, busy
}

func (s *ViewsSink) lockedObjects(ctx context.Context, values []ViewItem) (uuidSet, error) {
	ids := encodedArray(nil).begin(pgtype.UUIDOID, len(values))
	for i := range values {
		ids = ids.uuid(values[i].ObjectID)
	}
	var locked uuidArray
	err := s.transact(ctx, func(ctx context.Context) error {
		locked = nil
		if err := s.pool.QueryRow(ctx, `SELECT vitrina.locked_objects($1)`, ids).Scan(locked.target()); err != nil {
			return err
		}
		return locked.check()
	})
	return newUUIDSet(locked), err
}
