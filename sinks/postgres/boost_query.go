package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pin-marketplace/vitrina/codecs"
)

// ErrNotFound says that the replica or the catalog does not have what was asked for.
var ErrNotFound = errors.New("not found")

// maxListed bounds every list that a query returns; Truncated says that there is more.
const maxListed = 1000

// TargetInfo is a target's active sum and its contributions, active ones first.
type TargetInfo struct {
	Kind          codecs.TargetKind `json:"kind"`
	ID            uuid.UUID         `json:"id"`
	Boost         int               `json:"boost"`
	Contributions []Contribution    `json:"contributions"`
	Truncated     bool              `json:"truncated,omitempty"`
}

// Contribution is what one purchase adds to a target.
type Contribution struct {
	PurchaseID  uuid.UUID     `json:"purchaseId"`
	BoostWeight int           `json:"boostWeight"`
	Status      codecs.Status `json:"status"`
	Version     int64         `json:"version"`
	Active      bool          `json:"active"`
}

// Target returns the contributions to a target, or ErrNotFound when no purchase ever named it.
func Target(ctx context.Context, q Querier, target codecs.Target) (TargetInfo, error) {
	info := TargetInfo{Kind: target.Kind, ID: target.ID}
	err := inSnapshot(ctx, q, func(q Querier) error {
		var named bool
		err := q.QueryRow(ctx, `SELECT boost, named FROM vitrina.promotion_targets WHERE kind = $1 AND id = $2`, kindOf(target.Kind), target.ID).Scan(&info.Boost, &named)
		if err == nil && !named {
			err = pgx.ErrNoRows
		}
		if err != nil {
			return queryError(err, "target "+string(target.Kind), target.ID)
		}
		info.Contributions, info.Truncated, err = contributions(ctx, q, target, false)
		return err
	})
	return info, err
}

// CardInfo is a card's row and why its boost is what it is.
type CardInfo struct {
	Kind            codecs.TargetKind `json:"kind"`
	ID              uuid.UUID         `json:"id"`
	ProjectID       *uuid.UUID        `json:"projectId,omitempty"` // of an object
	Status          string            `json:"status"`
	PromotionBoost  int               `json:"promotionBoost"`
	PopularityViews int64             `json:"popularityViews"`
	RowVersion      int64             `json:"rowVersion"`
	UpdatedAt       time.Time         `json:"updatedAt"`
	Explanation     Explanation       `json:"explanation"`
}

// Explanation lists the active contributions that reach a card, whether or not its status lets them count.
type Explanation struct {
	Own       []Contribution `json:"own"`
	Cascaded  []Contribution `json:"cascaded"` // through the object's project; empty for a project
	Truncated bool           `json:"truncated,omitempty"`
	// Boost is the sum that the replica holds for the card. The card shows another one when it is Delisted, or Hidden and never
	// named by a purchase, or until the recompute has seen it (Queued).
	Boost  int  `json:"boost"`
	Queued bool `json:"queued"`
}

// Card returns a card and explains its boost, or ErrNotFound when the catalog has no such card.
func Card(ctx context.Context, q Querier, target codecs.Target) (CardInfo, error) {
	c := CardInfo{Kind: target.Kind, ID: target.ID}
	err := inSnapshot(ctx, q, func(q Querier) error {
		query := `SELECT NULL::uuid, status, promotion_boost, popularity_views, row_version, updated_at FROM catalog.project_cards WHERE id = $1`
		if target.Kind != codecs.KindProject {
			query = `SELECT project_id, status, promotion_boost, popularity_views, row_version, updated_at FROM catalog.property_object_cards WHERE id = $1`
		}
		err := q.QueryRow(ctx, query, target.ID).Scan(&c.ProjectID, &c.Status, &c.PromotionBoost, &c.PopularityViews, &c.RowVersion, &c.UpdatedAt)
		if err != nil {
			return queryError(err, string(target.Kind)+" card", target.ID)
		}
		c.UpdatedAt = c.UpdatedAt.UTC()
		var own, cascaded bool
		if c.Explanation.Own, own, err = contributions(ctx, q, target, true); err != nil {
			return err
		}
		c.Explanation.Cascaded = []Contribution{}
		if c.ProjectID != nil {
			if c.Explanation.Cascaded, cascaded, err = contributions(ctx, q, codecs.Target{Kind: codecs.KindProject, ID: *c.ProjectID}, true); err != nil {
				return err
			}
		}
		c.Explanation.Truncated = own || cascaded
		return explainSum(ctx, q, target, &c)
	})
	return c, err
}

func explainSum(ctx context.Context, q Querier, target codecs.Target, c *CardInfo) error {
	err := q.QueryRow(ctx, `
		SELECT coalesce((SELECT sum(t.boost) FROM vitrina.promotion_targets t WHERE (t.kind = $1 AND t.id = $2) OR (t.kind = 1 AND t.id = $3)), 0),
			EXISTS (SELECT FROM vitrina.changed_cards m WHERE m.kind = $1 AND m.id = $2) OR EXISTS (SELECT FROM vitrina.dirty_cards m WHERE m.kind = $1 AND m.id = $2)`,
		kindOf(target.Kind), target.ID, c.ProjectID).Scan(&c.Explanation.Boost, &c.Explanation.Queued)
	if err != nil {
		return fmt.Errorf("explaining the boost of %s card %s: %w", target.Kind, target.ID, err)
	}
	return nil
}

func contributions(ctx context.Context, q Querier, target codecs.Target, activeOnly bool) (list []Contribution, truncated bool, err error) {
	rows, err := q.Query(ctx, `
		SELECT c.purchase_id, c.boost_weight, c.status, c.version, c.active FROM vitrina.contributions c
		WHERE c.kind = $1 AND c.target_id = $2 AND (c.active OR NOT $3) ORDER BY c.active DESC, c.purchase_id LIMIT $4`,
		kindOf(target.Kind), target.ID, activeOnly, maxListed+1)
	if err != nil {
		return nil, false, fmt.Errorf("reading the contributions to %s %s: %w", target.Kind, target.ID, err)
	}
	list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Contribution, error) {
		var c Contribution
		err := row.Scan(&c.PurchaseID, &c.BoostWeight, &c.Status, &c.Version, &c.Active)
		return c, err
	})
	if err != nil {
		return nil, false, fmt.Errorf("reading the contributions to %s %s: %w", target.Kind, target.ID, err)
	}
	return list[:min(len(list), maxListed)], len(list) > maxListed, nil
}

// beginner is a Querier that can open a transaction: a pool or a connection.
type beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// inSnapshot runs queries that must agree with each other; in a transaction of the caller's it runs as it is.
func inSnapshot(ctx context.Context, q Querier, do func(Querier) error) error {
	b, ok := q.(beginner)
	if !ok {
		return do(q)
	}
	return pgx.BeginTxFunc(ctx, b, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error { return do(tx) })
}

func queryError(err error, what string, key uuid.UUID) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%s %s: %w", what, key, ErrNotFound)
	}
	return fmt.Errorf("reading %s %s: %w", what, key, err)
}
