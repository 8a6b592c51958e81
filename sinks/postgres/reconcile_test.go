package postgres

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
)

func marks(t testing.TB, e *boostEnv) int {
	t.Helper()
	return scalar[int](t.Context(), t, e.pool, `SELECT count(*) FROM vitrina.changed_cards`)
}

// A card that is published, or changes project, later gets its boost by the next pass; an idle pass examines nothing.
func TestRecomputeFindsPublishedAndMovedCards(t *testing.T) {
	e := newBoostEnv(t)
	e.addProject(t, 1, "Hidden")
	e.addObject(t, 1, 1, "Hidden")
	e.addObject(t, 2, 1, "Published")
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 30, project(1)), e.snapshot(2, 1, codecs.StatusActive, 4, project(2)))
	r := e.reconcile(t)
	require.Equal(t, 3, r.Examined)
	require.Equal(t, 0, r.Written)
	require.Equal(t, []int{30, 0, 30}, []int{e.projectBoost(t, 1), e.objectBoost(t, 1), e.objectBoost(t, 2)}, "Hidden and never named: as it is (D27)")

	exec(t, e.pool, `UPDATE catalog.property_object_cards SET status = 'Published', row_version = row_version + 1 WHERE id = $1`, objectID(1))
	exec(t, e.pool, `UPDATE catalog.property_object_cards SET project_id = $2, row_version = row_version + 1 WHERE id = $1`, objectID(2), projectID(2))
	r = e.reconcile(t)
	require.Equal(t, 2, r.Written)
	require.Equal(t, []int{30, 4}, []int{e.objectBoost(t, 1), e.objectBoost(t, 2)})
	lines := e.events.take("reconciled")
	require.EqualValues(t, 2, lines[len(lines)-1].attrs["cards_affected"])
	require.Equal(t, 0, marks(t, e))

	exec(t, e.pool, `UPDATE catalog.property_object_cards SET popularity_views = 5, price = 7, updated_at = now(), row_version = row_version + 1, status = status`)
	require.Equal(t, 0, marks(t, e), "what does not matter to boosts is not noted, our own writes neither")
	require.Equal(t, Report{Took: 1}, func() Report { r := e.reconcile(t); r.Took = 1; return r }())
}

// D36: a card inserted by a long transaction is picked up although its updated_at lies before cards that were long recomputed.
func TestD36_CardCommittedLate(t *testing.T) {
	e := newBoostEnv(t)
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 30, project(1)))
	long := held(t, e)
	_, err := long.Exec(t.Context(), `INSERT INTO catalog.property_object_cards (id, project_id, status) VALUES ($1, $2, 'Published')`, objectID(1), projectID(1))
	require.NoError(t, err)
	e.addObject(t, 2, 1, "Published")
	require.Equal(t, 1, e.reconcile(t).Written)
	require.Equal(t, 0, e.reconcile(t).Examined)
	require.NoError(t, long.Commit(t.Context()))
	require.Equal(t, 1, e.reconcile(t).Written)
	require.Equal(t, 30, e.objectBoost(t, 1))
}

// Rule 9: a change during a recompute is kept.
func TestRule9_ChangeDuringARecomputeIsKept(t *testing.T) {
	for name, change := range map[string]string{
		"hidden": `UPDATE catalog.property_object_cards SET status = 'Hidden', row_version = row_version + 1`,
		"moved":  `UPDATE catalog.property_object_cards SET project_id = '10000000-0000-0000-0000-000000000002', row_version = row_version + 1`,
	} {
		t.Run(name, func(t *testing.T) {
			e := newBoostEnv(t)
			e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 30, project(1)), e.snapshot(2, 1, codecs.StatusActive, 4, project(2)))
			e.addObject(t, 1, 1, "Published")
			blocker := held(t, e) // stops the recompute after it has read the notes
			_, err := blocker.Exec(t.Context(), `SELECT FROM vitrina.promotion_targets WHERE id = $1 FOR UPDATE`, projectID(1))
			require.NoError(t, err)
			recompute := background(func() error {
				_, err := e.sink.Reconcile(t.Context())
				return err
			})
			waitBlocked(t, e.pool, 1)
			exec(t, e.pool, change)
			require.NoError(t, blocker.Commit(t.Context()))
			require.NoError(t, recompute())
			require.Equal(t, 1, marks(t, e), "the note of the second change is not deleted with the first")
			e.reconcile(t)
			require.Equal(t, map[string]int{"hidden": 0, "moved": 4}[name], e.objectBoost(t, 1))
			require.Equal(t, 0, marks(t, e))
		})
	}
}

// A catalog transaction holds a changed card and its note for long: neither waits for the other, and its card comes later.
func TestRecomputeDoesNotWaitForTheCatalog(t *testing.T) {
	e := newBoostEnv(t)
	e.addObject(t, 1, 1, "Hidden")
	e.addObject(t, 2, 1, "Published")
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 30, project(1)))
	exec(t, e.pool, `UPDATE catalog.property_object_cards SET promotion_boost = 0, status = 'Published', row_version = row_version + 1`)
	exec(t, e.pool, `INSERT INTO catalog.property_object_cards (id, project_id, status, promotion_boost) VALUES ($1, $2, 'Published', 30)`, objectID(3), projectID(1))
	catalog := held(t, e)
	_, err := catalog.Exec(t.Context(), `UPDATE catalog.property_object_cards SET status = 'Hidden', row_version = row_version + 1 WHERE id <> $1`, objectID(2))
	require.NoError(t, err)
	start := time.Now()
	r := e.reconcile(t)
	require.Less(t, time.Since(start), 4*time.Second, "below the lock timeout")
	require.Equal(t, 1, r.Written)
	require.Equal(t, 1, r.Remaining)
	require.Equal(t, 2, marks(t, e), "the note of object 3 is locked, although there was nothing to write")
	require.NoError(t, catalog.Rollback(t.Context()))
	require.Equal(t, 1, e.reconcile(t).Written)
	require.Equal(t, []int{30, 30}, []int{e.objectBoost(t, 1), e.objectBoost(t, 2)})
	require.Equal(t, 0, e.counts.dirty)
	require.Equal(t, 0, marks(t, e))
}

// Many changes are drained in steps.
func TestRecomputeGoesInSteps(t *testing.T) {
	e := boostEnvOn(t, migrated(t), BoostConfig{Step: 10})
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 30, project(1)))
	for n := range 35 {
		e.addObject(t, n, 1, "Published")
	}
	e.addProject(t, 1, "Published")
	exec(t, e.pool, `INSERT INTO vitrina.dirty_cards (kind, id, reason) SELECT 2, id, 'test' FROM catalog.property_object_cards`)
	r := e.reconcile(t)
	require.Equal(t, 36, r.Examined)
	require.Equal(t, 36, r.Written)
	require.Equal(t, 0, r.Dirty)
	require.Equal(t, 0, marks(t, e))
}

// A card whose boost the database refuses does not stop the others; it is reported each time.
func TestRecomputeGoesAroundARefusedCard(t *testing.T) {
	e := newBoostEnv(t)
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 30, project(1)), e.snapshot(2, 1, codecs.StatusActive, 95, object(3)))
	exec(t, e.pool, `ALTER TABLE catalog.property_object_cards ADD CONSTRAINT boost_limit CHECK (promotion_boost < 90)`)
	for n := range 6 {
		e.addObject(t, n, 1, "Published")
	}
	for range 2 {
		r := e.reconcile(t)
		require.Equal(t, 1, r.Rejected)
		require.Equal(t, objectID(3).String(), e.events.take("card-rejected")[0].attrs["card_id"])
	}
	for n := range 6 {
		if n != 3 {
			require.Equal(t, 30, e.objectBoost(t, n))
		}
	}
	exec(t, e.pool, `ALTER TABLE catalog.property_object_cards DROP CONSTRAINT boost_limit`)
	require.Equal(t, 1, e.reconcile(t).Written)
	require.Equal(t, 125, e.objectBoost(t, 3))
}

// The sweep heals anything, and touches nothing that is right.
func TestSweepHealsAnything(t *testing.T) {
	e := boostEnvOn(t, migrated(t), BoostConfig{Step: 3})
	for n := range 3 {
		e.addProject(t, n, "Published")
	}
	for n := range 10 {
		e.addObject(t, n, n%3, "Published")
	}
	e.addObject(t, 10, 0, "Hidden")
	e.addObject(t, 11, 0, "Delisted")
	for n := range 5 {
		e.flush(t, e.snapshot(n, 1, codecs.StatusActive, int32(n+1), project(n%3), object(n), object(10+n%2)))
	}
	e.reconcile(t)
	want := e.boosts(t)
	before := e.cardRows(t)
	r, err := e.sink.Sweep(t.Context())
	require.NoError(t, err)
	require.True(t, r.Swept)
	require.Equal(t, []int{15, 0, 0}, []int{r.Examined, r.Written, r.Targets})
	require.Equal(t, before, e.cardRows(t))

	exec(t, e.pool, `ALTER TABLE catalog.property_object_cards DISABLE TRIGGER USER`)
	exec(t, e.pool, `UPDATE catalog.property_object_cards SET promotion_boost = promotion_boost + 1000 WHERE status <> 'Delisted' AND id::text LIKE '%2'`)
	exec(t, e.pool, `UPDATE catalog.project_cards SET promotion_boost = 77`)
	exec(t, e.pool, `UPDATE vitrina.promotion_targets SET boost = boost + 5 WHERE kind = 1 AND id = $1`, projectID(0))
	exec(t, e.pool, `UPDATE vitrina.promotion_targets SET named = false WHERE kind = 2 AND id = $1`, objectID(10))
	exec(t, e.pool, `DELETE FROM vitrina.promotion_targets WHERE kind = 2 AND id IN ($1, $2)`, objectID(3), objectID(4))
	exec(t, e.pool, `INSERT INTO vitrina.promotion_targets (kind, id, boost) VALUES (2, $1, 6)`, objectID(9))
	r, err = e.sink.Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, 5, r.Targets)
	require.Equal(t, want, e.boosts(t))
	require.Len(t, e.events.take("swept"), 2)
	require.NotNil(t, scalar[*time.Time](t.Context(), t, e.pool, `SELECT finished_at FROM vitrina.card_sweep`))
}

// A rebuild from snapshots ends as a reset and a replay would, in one step for readers, and leaves right cards alone.
func TestReplaceBoostsFromSnapshots(t *testing.T) {
	e := newBoostEnv(t)
	for n := range 3 {
		e.addProject(t, n, []string{"Published", "Hidden", "Published"}[n])
	}
	for n := range 12 {
		e.addObject(t, n, n%3, []string{"Published", "Published", "Hidden", "Delisted"}[n%4])
	}
	var states []Snapshot
	for n := range 9 {
		s := e.snapshot(n, 2, []codecs.Status{codecs.StatusActive, codecs.StatusExpired}[n%2], int32(n+1), project(n%3), object(n))
		s.State.EverTargets = append(s.State.EverTargets, object(10))
		states = append(states, s)
	}
	e.flush(t, states...)
	e.reconcile(t)
	want := e.boosts(t)
	exec(t, e.pool, `UPDATE catalog.property_object_cards SET promotion_boost = promotion_boost + 1 WHERE id = $1`, objectID(0))
	exec(t, e.pool, `DELETE FROM vitrina.contributions WHERE purchase_id = $1`, purchaseID(1))
	before := e.cardRows(t)

	tx := held(t, e)
	raised, err := RaiseEpoch(t.Context(), tx, PromotionBoost, "rebuild")
	require.NoError(t, err)
	require.NoError(t, Reopen(t.Context(), tx, PromotionBoost, raised.Epoch))
	r, err := ReplaceBoosts(t.Context(), tx, raised.Epoch, func(yield func(Snapshot, error) bool) {
		for _, s := range states {
			if !yield(s, nil) {
				return
			}
		}
	})
	require.NoError(t, err)
	require.Equal(t, ResetReport{Purchases: 9, Contributions: 24, Snapshots: 9, Cards: 1}, r)
	require.Equal(t, before, e.cardRows(t), "readers see nothing before the commit")
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, want, e.boosts(t))
	for card, row := range e.cardRows(t) {
		require.Equal(t, card == objectID(0), row != before[card], card)
	}
	sum, err := Target(t.Context(), e.pool, object(10))
	require.NoError(t, err)
	require.Zero(t, sum.Boost, "targets named once are known again (D27)")
}

// Triggers are put on whatever stands behind the names.
func TestCardTriggersBehindViews(t *testing.T) {
	dsn := devtest.Postgres(t)
	pool := newPool(t, dsn, PoolOptions{})
	exec(t, pool, `CREATE SCHEMA catalog`)
	exec(t, pool, `CREATE SCHEMA shop`)
	exec(t, pool, `CREATE TABLE shop.flats (flat uuid, home uuid NOT NULL, state text NOT NULL, boost integer NOT NULL DEFAULT 0, views bigint NOT NULL DEFAULT 0,
		lock bigint NOT NULL DEFAULT 1, changed timestamptz NOT NULL DEFAULT now(), city text NOT NULL, PRIMARY KEY (flat, city)) PARTITION BY LIST (city)`)
	exec(t, pool, `CREATE TABLE shop.flats_msk PARTITION OF shop.flats FOR VALUES IN ('msk')`)
	exec(t, pool, `CREATE TABLE shop.flats_spb PARTITION OF shop.flats FOR VALUES IN ('spb')`)
	exec(t, pool, `CREATE VIEW shop.live AS SELECT flat AS key, home, state AS "State", boost, views, lock, changed FROM shop.flats`)
	exec(t, pool, `CREATE VIEW catalog.property_object_cards AS SELECT key AS id, home AS project_id, "State" AS status, boost AS promotion_boost, views AS popularity_views,
		0::float8 AS popularity_score, lock AS row_version, changed AS updated_at FROM shop.live`)
	exec(t, pool, `CREATE TABLE shop.houses (house uuid PRIMARY KEY, state int NOT NULL, boost integer NOT NULL DEFAULT 0, views bigint NOT NULL DEFAULT 0,
		lock bigint NOT NULL DEFAULT 1, changed timestamptz NOT NULL DEFAULT now())`)
	exec(t, pool, `CREATE VIEW catalog.project_cards AS SELECT house AS id, CASE state WHEN 1 THEN 'Published' ELSE 'Hidden' END AS status, boost AS promotion_boost,
		views AS popularity_views, 0::float8 AS popularity_score, lock AS row_version, changed AS updated_at FROM shop.houses`)
	_, err := Migrate(t.Context(), openMigrator(t, dsn))
	require.NoError(t, err)

	states, err := InstallCardTriggers(t.Context(), pool)
	require.NoError(t, err)
	require.Equal(t, []TriggerState{
		{Card: "catalog.project_cards", State: TriggersUnavailable, Detail: "column status of view catalog.project_cards is no plain column of one table"},
		{Card: "catalog.property_object_cards", Table: "shop.flats", State: TriggersPresent},
	}, states)

	e := boostEnvOn(t, pool, BoostConfig{})
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 30, project(1)))
	exec(t, pool, `INSERT INTO shop.flats (flat, home, state, city) VALUES ($1, $3, 'Hidden', 'spb'), ($2, $3, 'Published', 'msk')`, objectID(1), objectID(2), projectID(1))
	exec(t, pool, `INSERT INTO shop.houses (house, state) VALUES ($1, 1)`, projectID(1))
	r := e.reconcile(t)
	require.Equal(t, 1, r.Written)
	require.Contains(t, r.Blind, "catalog.project_cards")
	require.Len(t, e.events.take("card-triggers-missing"), 1)
	e.reconcile(t)
	require.Empty(t, e.events.take("card-triggers-missing"), "said once")
	require.Equal(t, []int{0, 30, 0}, []int{e.objectBoost(t, 1), e.objectBoost(t, 2), e.projectBoost(t, 1)})
	exec(t, pool, `UPDATE shop.flats SET state = 'Published', lock = lock + 1, city = 'msk' WHERE flat = $1`, objectID(1))
	require.Equal(t, 1, e.reconcile(t).Written, "also into another partition")
	r, err = e.sink.Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, r.Written, "the sweep sees what no trigger can note")
	require.Equal(t, 30, e.projectBoost(t, 1))
}

// The catalog recreates its table, or renames a column: the triggers come back, and a sweep finds what happened without them.
func TestCardTriggersComeBack(t *testing.T) {
	e := newBoostEnv(t)
	e.addObject(t, 1, 1, "Published")
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 30, project(1)))
	exec(t, e.pool, `ALTER TABLE catalog.property_object_cards RENAME TO old_cards`)
	exec(t, e.pool, `CREATE TABLE catalog.property_object_cards (LIKE catalog.old_cards INCLUDING ALL)`)
	e.addObject(t, 2, 1, "Published")
	r := e.reconcile(t)
	require.True(t, r.Swept, "what came before the triggers is not noted")
	require.Len(t, e.events.take("card-triggers-installed"), 1)
	require.Equal(t, 30, e.objectBoost(t, 2))
	e.addObject(t, 3, 1, "Published")
	r = e.reconcile(t)
	require.False(t, r.Swept)
	require.Equal(t, 30, e.objectBoost(t, 3))
	exec(t, e.pool, `INSERT INTO catalog.old_cards (id, project_id, status) VALUES ($1, $2, 'Published')`, objectID(9), projectID(1))

	// A renamed key must not break the catalog's writes, whatever becomes of the notes.
	exec(t, e.pool, `ALTER TABLE catalog.property_object_cards RENAME COLUMN id TO card`)
	exec(t, e.pool, `INSERT INTO catalog.property_object_cards (card, project_id, status) VALUES ($1, $2, 'Published')`, objectID(4), projectID(1))
	exec(t, e.pool, `UPDATE catalog.property_object_cards SET status = 'Hidden'`)
	states, err := InstallCardTriggers(t.Context(), e.pool)
	require.NoError(t, err)
	require.Equal(t, "table catalog.property_object_cards has no column id", states[1].Detail)
	exec(t, e.pool, `ALTER TABLE catalog.property_object_cards RENAME TO flats`)
	exec(t, e.pool, `CREATE VIEW catalog.property_object_cards AS SELECT card AS id, project_id, status, promotion_boost, popularity_views, row_version, updated_at FROM catalog.flats`)
	exec(t, e.pool, `UPDATE catalog.flats SET status = 'Published', promotion_boost = 0`)
	require.True(t, e.reconcile(t).Swept)
	require.Equal(t, []int{30, 30, 30}, []int{e.objectBoost(t, 2), e.objectBoost(t, 3), e.objectBoost(t, 4)})
	require.Equal(t, 2, scalar[int](t.Context(), t, e.pool, `SELECT count(*) FROM pg_trigger WHERE tgrelid = 'catalog.flats'::regclass`), "the old triggers are gone")
}

// The catalog's role has no rights in schema vitrina, and needs none.
func TestCardTriggersNeedNoRightsOfTheWriter(t *testing.T) {
	e := newBoostEnv(t)
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 30, project(1)))
	tx := held(t, e)
	for _, statement := range []string{
		`DROP ROLE IF EXISTS vitrina_test_catalog`, `CREATE ROLE vitrina_test_catalog`,
		`GRANT USAGE ON SCHEMA catalog TO vitrina_test_catalog`, `GRANT ALL ON ALL TABLES IN SCHEMA catalog TO vitrina_test_catalog`,
		`SET LOCAL ROLE vitrina_test_catalog`,
		`INSERT INTO catalog.property_object_cards (id, project_id, status) VALUES ('20000000-0000-0000-0000-000000000001', '10000000-0000-0000-0000-000000000001', 'Published')`,
		`RESET ROLE`,
		`REVOKE ALL ON ALL TABLES IN SCHEMA catalog FROM vitrina_test_catalog`, `REVOKE ALL ON SCHEMA catalog FROM vitrina_test_catalog`, `DROP ROLE vitrina_test_catalog`,
	} {
		_, err := tx.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, 1, e.reconcile(t).Written)
	require.Equal(t, 30, e.objectBoost(t, 1))
}

// Installing triggers must not stop the catalog: it gives up at once where a writer holds the table.
func TestCardTriggersDoNotStopTheCatalog(t *testing.T) {
	e := newBoostEnv(t)
	e.addObject(t, 1, 1, "Published")
	exec(t, e.pool, `DROP TRIGGER `+scalar[string](t.Context(), t, e.pool, `SELECT tgname::text FROM pg_trigger WHERE tgrelid = 'catalog.property_object_cards'::regclass AND tgname LIKE '%update'`)+
		` ON catalog.property_object_cards`)
	catalog := held(t, e)
	_, err := catalog.Exec(t.Context(), rivalChange, objectID(1))
	require.NoError(t, err)
	start := time.Now()
	r := e.reconcile(t)
	require.Less(t, time.Since(start), 4*time.Second)
	require.Contains(t, r.Blind, "lock timeout")
	require.NoError(t, catalog.Commit(t.Context()))
	require.Empty(t, e.reconcile(t).Blind)
}
