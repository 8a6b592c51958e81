package postgres

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
)

// The tests of this file are the acceptance criteria of the promotion document, as far as they are the sink's.

// Активация буста (объект недвижимости).
func TestActivationOfABoost_PropertyObject(t *testing.T) {
	e := newBoostEnv(t)
	e.addProject(t, 1, "Published")
	e.addObject(t, 1, 1, "Published")
	e.addObject(t, 2, 1, "Published")
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 50, object(1)))
	require.Equal(t, 50, e.objectBoost(t, 1))
	require.Equal(t, 0, e.objectBoost(t, 2))
	require.Equal(t, 0, e.projectBoost(t, 1))

	e.flush(t, e.snapshot(2, 1, codecs.StatusActive, 7, object(1)), e.snapshot(3, 1, codecs.StatusActive, 20, project(1)))
	require.Equal(t, 77, e.objectBoost(t, 1), "own contributions and the project's cascade")
	require.Equal(t, 20, e.objectBoost(t, 2))

	_, active, inactive := e.purchase(t, 1)
	require.Equal(t, []uuid.UUID{objectID(1)}, active)
	require.Empty(t, inactive)
	require.Equal(t, 4, e.counts.cards, "the object, then the project and both objects")
	lines := e.events.take("recomputed")
	require.Len(t, lines, 3)
	require.EqualValues(t, 1, lines[0].attrs["cards_affected"])
	require.EqualValues(t, 1, lines[1].attrs["cards_affected"], "the object")
	require.EqualValues(t, 3, lines[2].attrs["cards_affected"], "the project and both objects")
	require.Equal(t, purchaseID(3).String(), lines[2].attrs["purchase_id"])
	require.EqualValues(t, 1, lines[2].attrs["version"])
}

// Каскад проектного буста.
func TestCascadeOfAProjectsBoost(t *testing.T) {
	e := newBoostEnv(t)
	e.addProject(t, 1, "Published")
	e.addProject(t, 2, "Published")
	e.addObject(t, 1, 1, "Published")
	e.addObject(t, 2, 1, "Hidden")
	e.addObject(t, 3, 1, "Delisted")
	e.addObject(t, 4, 1, "Published")
	e.addObject(t, 5, 2, "Published")
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 30, project(1)))
	require.Equal(t, 30, e.projectBoost(t, 1))
	require.Equal(t, []int{30, 0, 0, 30, 0}, []int{e.objectBoost(t, 1), e.objectBoost(t, 2), e.objectBoost(t, 3), e.objectBoost(t, 4), e.objectBoost(t, 5)})
	require.Equal(t, 0, e.projectBoost(t, 2))

	// D10, D27: a Hidden card that a purchase names has the whole formula, from then on.
	e.flush(t, e.snapshot(2, 1, codecs.StatusPending, 5, object(2)))
	require.Equal(t, 30, e.objectBoost(t, 2))
	e.flush(t, e.snapshot(2, 2, codecs.StatusActive, 5, object(2)), e.snapshot(3, 1, codecs.StatusActive, 9, object(3)))
	require.Equal(t, 35, e.objectBoost(t, 2))
	require.Equal(t, 0, e.objectBoost(t, 3), "Delisted is frozen (D11)")
	e.flush(t, e.snapshot(1, 2, codecs.StatusCancelled, 30, project(1)))
	require.Equal(t, 5, e.objectBoost(t, 2))
}

// Снятие буста.
func TestRemovalOfABoost(t *testing.T) {
	for _, status := range []codecs.Status{codecs.StatusExpired, codecs.StatusCancelled, codecs.StatusPending} {
		t.Run(string(status), func(t *testing.T) {
			e := newBoostEnv(t)
			e.addProject(t, 1, "Published")
			e.addObject(t, 1, 1, "Published")
			e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 50, object(1), project(1)), e.snapshot(2, 1, codecs.StatusActive, 1, object(1)))
			require.Equal(t, 101, e.objectBoost(t, 1))
			e.flush(t, e.snapshot(1, 2, status, 50, object(1), project(1)))
			require.Equal(t, 1, e.objectBoost(t, 1))
			require.Equal(t, 0, e.projectBoost(t, 1))
			stored, active, inactive := e.purchase(t, 1)
			require.Equal(t, status, stored)
			require.Empty(t, active)
			require.Equal(t, []uuid.UUID{projectID(1), objectID(1)}, inactive)
		})
	}
}

// Только Post-цели: the snapshot has no target, is stored for the version guard, and changes no card (D4).
func TestPostTargetsOnly(t *testing.T) {
	e := newBoostEnv(t)
	e.addObject(t, 1, 1, "Published")
	before := e.cardRows(t)
	e.flush(t, e.snapshot(1, 2, codecs.StatusActive, 50))
	require.Equal(t, before, e.cardRows(t))
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 50, object(1)))
	require.Equal(t, before, e.cardRows(t), "an older version put back later stays stale")
	require.Equal(t, 1, e.counts.stale)
	require.Len(t, e.events.take("skipped-stale"), 1)

	// A purchase that is known drops its targets (D3).
	e.flush(t, e.snapshot(1, 3, codecs.StatusActive, 50, object(1)))
	require.Equal(t, 50, e.objectBoost(t, 1))
	e.flush(t, e.snapshot(1, 4, codecs.StatusActive, 50))
	require.Equal(t, 0, e.objectBoost(t, 1))
}

// Карточка ещё не доехала.
func TestCardHasNotArrivedYet(t *testing.T) {
	e := newBoostEnv(t)
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 50, object(1)), e.snapshot(2, 1, codecs.StatusActive, 4, project(1)))
	require.Empty(t, e.letters.take(), "a missing card is no error")
	target, err := Target(t.Context(), e.pool, object(1))
	require.NoError(t, err)
	require.Equal(t, 50, target.Boost)

	e.addProject(t, 1, "Published")
	e.addObject(t, 1, 1, "Published")
	r := e.reconcile(t)
	require.Equal(t, 2, r.Written)
	require.Equal(t, 54, e.objectBoost(t, 1))
	require.Equal(t, 4, e.projectBoost(t, 1))
}

// Stale / дубль.
func TestStaleOrDuplicate(t *testing.T) {
	e := newBoostEnv(t)
	e.addObject(t, 1, 1, "Published")
	v3 := e.snapshot(1, 3, codecs.StatusActive, 30, object(1))
	e.flush(t, v3)
	before := e.cardRows(t)
	e.flush(t, e.snapshot(1, 2, codecs.StatusActive, 20, object(1)), e.snapshot(2, 1, codecs.StatusActive, 1, object(2)))
	require.Equal(t, before, e.cardRows(t))
	require.Equal(t, 1, e.counts.stale)
	e.flush(t, v3)
	require.Equal(t, before, e.cardRows(t), "the same snapshot again changes nothing")
	require.Equal(t, 1, e.counts.stale, "and is not stale")

	// D7: an equal version of another message is applied; rule 8: not over a newer revision of that version.
	other := e.snapshot(1, 3, codecs.StatusActive, 33, object(1))
	other.State.Revision = 1
	e.flush(t, other)
	require.Equal(t, 33, e.objectBoost(t, 1))
	e.flush(t, v3)
	require.Equal(t, 33, e.objectBoost(t, 1))
	require.Equal(t, 2, e.counts.stale)
}

// Флаг выключен: the recompute leaves boosts as they are (D35).
func TestFlagSwitchedOff(t *testing.T) {
	enabled := false
	e := boostEnvOn(t, migrated(t), BoostConfig{Enabled: func() bool { return enabled }})
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 50, object(1)))
	e.addObject(t, 1, 1, "Published")
	require.True(t, e.reconcile(t).Off)
	r, err := e.sink.Sweep(t.Context())
	require.NoError(t, err)
	require.True(t, r.Off)
	require.Equal(t, 0, e.objectBoost(t, 1))
	enabled = true
	require.Equal(t, 1, e.reconcile(t).Written)
	require.Equal(t, 50, e.objectBoost(t, 1))
}

// Инвариант невмешательства.
func TestNonInterference(t *testing.T) {
	e := newBoostEnv(t)
	e.addProject(t, 1, "Published")
	e.addProject(t, 2, "Hidden")
	for n, status := range []string{"Published", "Hidden", "Delisted"} {
		e.addObject(t, n, 1, status)
	}
	before := e.otherColumns(t)
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 50, object(0), object(1), object(2), project(1), project(2)))
	e.flush(t, e.snapshot(1, 2, codecs.StatusExpired, 50, object(0)))
	e.reconcile(t)
	require.Equal(t, before, e.otherColumns(t))
	require.Equal(t, int64(3), scalar[int64](t.Context(), t, e.pool, `SELECT row_version FROM catalog.property_object_cards WHERE id = $1`, objectID(0)))
}

// Replay.
func TestReplayAfterRebuild(t *testing.T) {
	e := newBoostEnv(t)
	for p := range 3 {
		e.addProject(t, p, "Published")
		for n := range 4 {
			e.addObject(t, 10*p+n, p, []string{"Published", "Published", "Hidden", "Delisted"}[n])
		}
	}
	var history []Snapshot
	for n := range 20 {
		history = append(history, e.snapshot(n%7, int64(n/7+1), []codecs.Status{codecs.StatusActive, codecs.StatusActive, codecs.StatusExpired}[n%3], int32(n+1),
			object(10*(n%3)+n%4), project(n%3)))
	}
	e.flush(t, history...)
	want := e.boosts(t)

	tx, err := e.pool.Begin(t.Context())
	require.NoError(t, err)
	raised, err := RaiseEpoch(t.Context(), tx, PromotionBoost, "rebuild")
	require.NoError(t, err)
	reset, err := ResetBoosts(t.Context(), tx)
	require.NoError(t, err)
	require.EqualValues(t, 7, reset.Purchases)
	require.NoError(t, Reopen(t.Context(), tx, PromotionBoost, raised.Epoch))
	require.NoError(t, tx.Commit(t.Context()))
	for card, boost := range e.boosts(t) {
		require.Zero(t, boost, card)
	}

	again := boostEnvOn(t, e.pool, BoostConfig{})
	for _, s := range history {
		again.flush(t, s)
	}
	require.Equal(t, want, again.boosts(t), "one by one and in one batch give the same")
}

func (e *boostEnv) boosts(t testing.TB) map[string]int {
	t.Helper()
	m := map[string]int{}
	rows, err := e.pool.Query(t.Context(), `SELECT id::text, promotion_boost FROM catalog.project_cards UNION ALL SELECT id::text, promotion_boost FROM catalog.property_object_cards`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var card string
		var boost int
		require.NoError(t, rows.Scan(&card, &boost))
		m[card] = boost
	}
	require.NoError(t, rows.Err())
	return m
}
