package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func viewsOf(object string, from, n int) []ViewItem {
	items := make([]ViewItem, n)
	for i := range items {
		items[i] = view(fmt.Sprintf("%s %d", object, from+i), object, at(0, int64(from+i)))
	}
	return items
}

// A constraint of the catalog that refused every view once sent the whole topic to the dead letters.
func TestACatalogThatRefusesEveryViewIsAnOutage(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	e.object("gone", "p", "Delisted")
	late := viewsOf("late", 0, 20)
	require.NoError(t, e.flush(late...))
	for _, name := range []string{"o", "late"} {
		e.object(name, "p", "Published")
	}
	exec(t, e.pool, `ALTER TABLE catalog.property_object_cards ADD CONSTRAINT no_views CHECK (popularity_views = 0)`)

	// What is taken without writing a card proves nothing about the cards.
	items := append(viewsOf("gone", 100, 1), append(viewsOf("none", 200, 1), viewsOf("o", 300, 40)...)...)
	require.ErrorContains(t, e.flush(items...), "no_views")
	require.ErrorContains(t, e.flush(viewsOf("o", 300, refusesAll)...), "no_views")
	e.shift(time.Minute)
	_, _, err := e.worker.Retry(t.Context())
	require.ErrorContains(t, err, "no_views")
	left, err := ReadLateViews(t.Context(), e.pool)
	require.NoError(t, err)
	require.Zero(t, left.Dead)
	require.Empty(t, e.letters.keys())

	exec(t, e.pool, `ALTER TABLE catalog.property_object_cards DROP CONSTRAINT no_views`)
	require.NoError(t, e.flush(items...))
	require.EqualValues(t, 40, e.objectViews(t, "o"))
	_, _, err = e.worker.Retry(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 20, e.objectViews(t, "late"))
}

// Bad views among good ones are no fault of the catalog, in a batch that comes again because they could not be stored as dead either.
func TestBadViewsOfABatchThatComesAgainAreDead(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	e.object("o", "p", "Published")
	e.object("poison", "p", "Published")
	exec(t, e.pool, `UPDATE catalog.property_object_cards SET popularity_views = 9223372036854775807 WHERE id = $1`, named("poison"))
	items := append(viewsOf("o", 0, 20), viewsOf("poison", 20, 20)...)
	mutate(t, e.pool, "reject_view", "v_now timestamptz := pg_catalog.now();", "v_now timestamptz := vitrina.away();") // no such function: an outage
	require.Error(t, e.flush(items...))
	require.EqualValues(t, 20, e.objectViews(t, "o"))
	mutate(t, e.pool, "reject_view", "vitrina.away()", "pg_catalog.now()")
	require.NoError(t, e.flush(items...))
	require.EqualValues(t, 20, e.objectViews(t, "o"))
	require.Equal(t, StateDead, e.state(t, "poison 39"))
}
