package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// TriggerState says whether the recompute hears of changes of one kind of card.
type TriggerState struct {
	Card   string `json:"card"`             // catalog.project_cards or catalog.property_object_cards
	Table  string `json:"table,omitempty"`  // the table behind it that has the triggers
	State  string `json:"state"`            // present, installed (just now) or unavailable
	Detail string `json:"detail,omitempty"` // why unavailable
}

// Trigger states.
const (
	TriggersPresent     = "present"
	TriggersInstalled   = "installed"
	TriggersUnavailable = "unavailable"
)

const installCardTriggers = `SELECT card, coalesce(target, ''), state, coalesce(detail, '') FROM vitrina.install_card_triggers()`

// InstallCardTriggers puts the triggers that note changed cards on the catalog's tables, where they are missing. Migrate
// calls it; so does each pass of the recompute, because the catalog may recreate a table. An unavailable one is no error:
// without the triggers (a view that is no simple one, a role without the TRIGGER privilege) only the sweep finds what the
// catalog changed.
func InstallCardTriggers(ctx context.Context, q Querier) ([]TriggerState, error) {
	rows, err := q.Query(ctx, installCardTriggers)
	if err != nil {
		return nil, fmt.Errorf("installing the card triggers: %w", err)
	}
	states, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (TriggerState, error) {
		var s TriggerState
		err := row.Scan(&s.Card, &s.Table, &s.State, &s.Detail)
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("installing the card triggers: %w", err)
	}
	return states, nil
}

// installAfterMigration is InstallCardTriggers over database/sql.
func installAfterMigration(ctx context.Context, db *sql.DB) (err error) {
	rows, err := db.QueryContext(ctx, installCardTriggers)
	if err != nil {
		return fmt.Errorf("installing the card triggers: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var s TriggerState
		if err := rows.Scan(&s.Card, &s.Table, &s.State, &s.Detail); err != nil {
			return fmt.Errorf("installing the card triggers: %w", err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("installing the card triggers: %w", err)
	}
	return nil
}

// blindness words what of the catalog's changes is not noted; empty when all are.
func blindness(states []TriggerState) string {
	var parts []string
	for _, s := range states {
		if s.State == TriggersUnavailable {
			parts = append(parts, s.Card+": "+s.Detail)
		}
	}
	return strings.Join(parts, "; ")
}
