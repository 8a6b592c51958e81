package generate

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pin-marketplace/vitrina/test/model"
)

// Executor is what inserts: a pgx connection, pool or transaction.
type Executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// PostgresCards inserts cards into the catalog's tables. A card that is there already is left as it is.
type PostgresCards struct{ DB Executor }

const insertProjects = `
insert into catalog.project_cards (id, status, promotion_boost, popularity_views, min_price, max_price, property_objects_available)
select * from unnest($1::uuid[], $2::text[], $3::int[], $4::bigint[], $5::numeric[], $6::numeric[], $7::int[])
on conflict (id) do nothing`

const insertObjects = `
insert into catalog.property_object_cards (id, project_id, status, promotion_boost, popularity_views, price)
select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::int[], $5::bigint[], $6::numeric[])
on conflict (id) do nothing`

// WriteCards inserts cards of both kinds.
func (p PostgresCards) WriteCards(ctx context.Context, cards []Card) error {
	projects, objects := &cardColumns{}, &cardColumns{}
	for _, c := range cards {
		columns := projects
		if c.Kind == model.PropertyObject {
			columns = objects
		}
		if err := columns.add(c); err != nil {
			return err
		}
	}
	if len(projects.ids) > 0 {
		if _, err := p.DB.Exec(ctx, insertProjects, projects.ids, projects.statuses, projects.boosts, projects.views,
			projects.minPrices, projects.maxPrices, projects.available); err != nil {
			return fmt.Errorf("insert %d project cards: %w", len(projects.ids), err)
		}
	}
	if len(objects.ids) > 0 {
		if _, err := p.DB.Exec(ctx, insertObjects, objects.ids, objects.projects, objects.statuses, objects.boosts,
			objects.views, objects.prices); err != nil {
			return fmt.Errorf("insert %d property object cards: %w", len(objects.ids), err)
		}
	}
	return nil
}

type cardColumns struct {
	ids, projects                []uuid.UUID
	statuses                     []string
	boosts, available            []int32
	views                        []int64
	prices, minPrices, maxPrices []*string
}

func (c *cardColumns) add(card Card) error {
	id, err := uuid.Parse(card.ID)
	if err != nil {
		return fmt.Errorf("card %s %q: %w", card.Kind, card.ID, err)
	}
	project := uuid.Nil
	if card.Kind == model.PropertyObject {
		if project, err = uuid.Parse(card.ProjectID); err != nil {
			return fmt.Errorf("card %s %s: project %q: %w", card.Kind, card.ID, card.ProjectID, err)
		}
	}
	c.ids, c.projects = append(c.ids, id), append(c.projects, project)
	c.statuses, c.views = append(c.statuses, card.Status), append(c.views, card.PopularityViews)
	c.boosts = append(c.boosts, int32(card.PromotionBoost))
	c.available = append(c.available, int32(card.Available))
	c.prices = append(c.prices, optional(card.Price))
	c.minPrices, c.maxPrices = append(c.minPrices, optional(card.MinPrice)), append(c.maxPrices, optional(card.MaxPrice))
	return nil
}

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
