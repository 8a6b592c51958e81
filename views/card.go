package views

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
	"github.com/pin-marketplace/vitrina/views/pricehistory"
)

// Target is a target's active sum and its contributions.
type Target struct {
	postgres.TargetInfo
	Freshness Freshness `json:"freshness"`
}

// Target answers from PostgreSQL.
func (s *Service) Target(ctx context.Context, target codecs.Target) (*Target, error) {
	t := &Target{Freshness: s.freshness(ctx, "postgresql", config.RolePromotion)}
	err := s.withDatabase(ctx, func() (err error) {
		t.TargetInfo, err = postgres.Target(ctx, s.pool, target)
		return err
	})
	if errors.Is(err, postgres.ErrNotFound) {
		return nil, &NotFoundError{Reason: fmt.Sprintf("no purchase ever named %s %s%s", target.Kind, target.ID, t.Freshness.unseen())}
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Card is a card's row and why its boost is what it is.
type Card struct {
	postgres.CardInfo
	ProjectID   *uuid.UUID  `json:"projectId"` // null for a project
	Explanation Explanation `json:"explanation"`
	Freshness   Freshness   `json:"freshness"`
}

// Explanation are the active contributions that reach a card and what its status makes of them.
type Explanation struct {
	postgres.Explanation
	Reason string `json:"reason"` // one sentence
}

// Card answers from PostgreSQL.
func (s *Service) Card(ctx context.Context, target codecs.Target) (*Card, error) {
	c := &Card{Freshness: s.freshness(ctx, "postgresql", config.RolePromotion, config.RolePopularity)}
	named := false
	err := s.withDatabase(ctx, func() (err error) {
		if c.CardInfo, err = postgres.Card(ctx, s.pool, target); err != nil {
			return err
		}
		if named = len(c.CardInfo.Explanation.Own) > 0; named || c.Status == "Published" {
			return nil
		}
		_, err = postgres.Target(ctx, s.pool, target)
		if named = err == nil; errors.Is(err, postgres.ErrNotFound) {
			return nil
		}
		return err
	})
	if errors.Is(err, postgres.ErrNotFound) {
		return nil, &NotFoundError{Reason: fmt.Sprintf("the catalog has no %s card %s", target.Kind, target.ID)}
	}
	if err != nil {
		return nil, err
	}
	c.ProjectID = c.CardInfo.ProjectID
	c.Explanation = Explanation{Explanation: c.CardInfo.Explanation, Reason: s.reason(c.CardInfo, named)}
	return c, nil
}

// reason says why the card's boost is what it is (D10, D11, D27, D35).
func (s *Service) reason(c postgres.CardInfo, named bool) string {
	e := c.Explanation
	sum, parts := fmt.Sprintf("own and cascaded contributions are %d", e.Boost), "its own and its project's active contributions"
	if c.Kind == codecs.KindProject {
		sum, parts = fmt.Sprintf("contributions are %d", e.Boost), "its active contributions"
	}
	wait := fmt.Sprintf("the recompute takes it up within promotion.reconcile_interval (%s)", s.cfg.Promotion.ReconcileInterval)
	if !e.Queued {
		wait = fmt.Sprintf("nothing has queued it, so the sweep mends it within promotion.sweep_interval (%s)", s.cfg.Promotion.SweepInterval)
	}
	if !s.host.PromotionsEnabled() {
		wait = "catalog.promotions.enabled is off, so boosts stay as they are until it is on"
	}
	switch {
	case c.Status == "Delisted":
		return fmt.Sprintf("the card is Delisted: its boost is frozen at %d whatever its contributions are (%s)", c.PromotionBoost, sum)
	case c.Status != "Published" && !named:
		return fmt.Sprintf("the card is %s and no purchase ever named it: its boost is left at %d until it is Published (%s)", c.Status, c.PromotionBoost, sum)
	case c.PromotionBoost != e.Boost:
		return fmt.Sprintf("the card shows %d while its %s: %s", c.PromotionBoost, sum, wait)
	case c.Status != "Published":
		return fmt.Sprintf("the card is %s, but purchases named it: its boost is %d, the sum of %s", c.Status, c.PromotionBoost, parts)
	case len(e.Own)+len(e.Cascaded) == 0:
		return "nothing promotes the card now"
	}
	return fmt.Sprintf("its boost is %d, the sum of %s", c.PromotionBoost, parts)
}

// PriceHistory is a price history with its age.
type PriceHistory struct {
	pricehistory.Series
	Freshness Freshness `json:"freshness"`
}

// PriceHistory answers from ClickHouse.
func (s *Service) PriceHistory(ctx context.Context, q pricehistory.Query) (*PriceHistory, error) {
	if s.prices == nil {
		return nil, &UnavailableError{After: time.Minute, Reason: "this instance has no ClickHouse, so it cannot tell prices: set clickhouse.dsn (VITRINA_CLICKHOUSE_DSN)"}
	}
	f := s.freshness(ctx, "clickhouse", config.RolePrice)
	series, err := s.prices.Series(ctx, q)
	if errors.Is(err, pricehistory.ErrNotFound) {
		return nil, &NotFoundError{Reason: fmt.Sprintf("there is no price fact of property object %s%s", q.PropertyObjectID, f.unseen())}
	}
	if err != nil {
		return nil, err
	}
	return &PriceHistory{Series: *series, Freshness: f}, nil
}
