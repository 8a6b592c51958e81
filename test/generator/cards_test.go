// Package generator_test holds what the generator needs a database for.
package generator_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
	"github.com/pin-marketplace/vitrina/test/model"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

func TestCardsAreInsertedOnceAndLeftAsTheyAre(t *testing.T) {
	ctx := t.Context()
	dsn := devtest.Postgres(t)
	db, err := postgres.OpenMigrator(dsn, postgres.PoolOptions{})
	require.NoError(t, err)
	_, err = postgres.Migrate(ctx, db)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(ctx))) }()

	o := generate.Defaults()
	o.Start, o.Objects, o.Views, o.Purchases, o.Prices = time.Now().UTC(), 300, 0, 0, 0
	var cards []generate.Card
	m := model.New(time.Now())
	for item := range generate.Items(o) {
		item.Give(m)
		cards = append(cards, *item.Card)
	}
	sink := generate.PostgresCards{DB: conn}
	require.NoError(t, sink.WriteCards(ctx, cards))
	_, err = conn.Exec(ctx, `update catalog.project_cards set popularity_views = 5 where id = $1`, cards[0].ID)
	require.NoError(t, err)
	require.NoError(t, sink.WriteCards(ctx, cards), "again: nothing changes")

	got := map[model.Ref]model.CardState{}
	rows, err := conn.Query(ctx, `
		select 'Project', id::text, promotion_boost, popularity_views from catalog.project_cards
		union all select 'PropertyObject', id::text, promotion_boost, popularity_views from catalog.property_object_cards`)
	require.NoError(t, err)
	var ref model.Ref
	var state model.CardState
	_, err = pgx.ForEachRow(rows, []any{&ref.Kind, &ref.ID, &state.PromotionBoost, &state.PopularityViews}, func() error {
		got[ref] = state
		return nil
	})
	require.NoError(t, err)
	want := m.Expected().Cards
	changed := want[cards[0].Ref()]
	changed.PopularityViews = 5
	want[cards[0].Ref()] = changed
	require.Equal(t, want, got)

	broken := cards[:1]
	broken[0].ID = "no uuid"
	require.ErrorContains(t, sink.WriteCards(ctx, broken), "no uuid")
}
