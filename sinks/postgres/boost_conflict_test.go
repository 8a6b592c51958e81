package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/sinks/batch"
)

// gate makes every UPDATE statement on object cards stop after it has taken its snapshot, until the test lets it through:
// what a rival commits meanwhile, the statement meets in the row version.
type gate struct {
	t  testing.TB
	e  *boostEnv
	tx pgx.Tx
}

const gateLock = 4711

func newGate(t testing.TB, e *boostEnv, table string) *gate {
	t.Helper()
	exec(t, e.pool, fmt.Sprintf(`CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF current_setting('application_name') = 'vitrina' THEN
				PERFORM pg_advisory_lock(%[1]d);
				PERFORM pg_advisory_unlock(%[1]d);
			END IF;
			RETURN NULL;
		END $$`, gateLock))
	exec(t, e.pool, `CREATE TRIGGER gate BEFORE UPDATE ON `+table+` FOR EACH STATEMENT EXECUTE FUNCTION gate()`)
	g := &gate{t: t, e: e, tx: held(t, e)}
	require.NoError(t, g.lock(g.tx))
	return g
}

func (g *gate) lock(tx pgx.Tx) error {
	_, err := tx.Exec(g.t.Context(), fmt.Sprintf(`SELECT set_config('application_name', 'rival', true), pg_advisory_xact_lock(%d)`, gateLock))
	return err
}

// open waits for a statement at the gate and lets it through after do, which is committed before.
func (g *gate) open(do string, args ...any) {
	g.t.Helper()
	waitBlocked(g.t, g.e.pool, 1)
	_, err := g.tx.Exec(g.t.Context(), do, args...)
	require.NoError(g.t, err)
	require.NoError(g.t, g.tx.Commit(g.t.Context()))
}

const rivalChange = `UPDATE catalog.property_object_cards SET price = price + 1, row_version = row_version + 1 WHERE id = $1`

// A rival commits between the sink's read and its write. The sink's write does not match any more; the card alone is read again
// and written over the rival's version. PostgreSQL keeps the lock on a row whose newer version it had to look at, so that the
// second try cannot meet another one.
func TestOptimisticLockConflictIsRetried(t *testing.T) {
	e := newBoostEnv(t)
	e.addObject(t, 1, 1, "Published")
	e.addObject(t, 2, 1, "Published")
	g := newGate(t, e, "catalog.property_object_cards")
	flush := background(func() error {
		return e.sink.Flush(t.Context(), []Snapshot{e.snapshot(1, 1, codecs.StatusActive, 50, object(1), object(2))})
	})
	g.open(rivalChange, objectID(1))
	require.NoError(t, flush())
	require.Empty(t, e.letters.take())
	require.Equal(t, 50, e.objectBoost(t, 1))
	require.Equal(t, 50, e.objectBoost(t, 2))
	require.Equal(t, 1, e.counts.conflicts)
	require.Equal(t, "1500001.15", scalar[string](t.Context(), t, e.pool, `SELECT price::text FROM catalog.property_object_cards WHERE id = $1`, objectID(1)), "the rival's change is there")
	versions := scalar[[]int64](t.Context(), t, e.pool, `SELECT array_agg(row_version ORDER BY id) FROM catalog.property_object_cards`)
	require.Equal(t, []int64{3, 2}, versions, "only the conflicting card is written again")
}

// A rival that makes a card Delisted or moves it between read and write is respected, even one that does not raise the row version.
func TestConflictIsJudgedByStatusAndProjectToo(t *testing.T) {
	for name, change := range map[string]string{
		"delisted": `UPDATE catalog.property_object_cards SET status = 'Delisted' WHERE id = $1`,
		"moved":    `UPDATE catalog.property_object_cards SET project_id = '10000000-0000-0000-0000-000000000002' WHERE id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			e := newBoostEnv(t)
			e.addObject(t, 1, 1, "Published")
			e.flush(t, e.snapshot(2, 1, codecs.StatusActive, 7, project(2)))
			g := newGate(t, e, "catalog.property_object_cards")
			flush := background(func() error {
				return e.sink.Flush(t.Context(), []Snapshot{e.snapshot(1, 1, codecs.StatusActive, 50, object(1))})
			})
			g.open(change, objectID(1))
			require.NoError(t, flush())
			require.Equal(t, 0, e.objectBoost(t, 1))
			e.reconcile(t)
			want := map[string]int{"delisted": 0, "moved": 57}[name]
			require.Equal(t, want, e.objectBoost(t, 1))
		})
	}
}

// stubborn makes a card refuse the first writes of the boost, as a rival would that wins each time: a rule or trigger of the
// catalog can do that (a plain rival cannot, see above).
func stubborn(t testing.TB, e *boostEnv, table string, card uuid.UUID, refusals int) {
	t.Helper()
	exec(t, e.pool, `CREATE SEQUENCE IF NOT EXISTS refusals`)
	exec(t, e.pool, fmt.Sprintf(`CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.id = '%s' AND nextval('refusals') <= %d THEN
				RETURN NULL;
			END IF;
			RETURN NEW;
		END $$`, card, refusals))
	exec(t, e.pool, `CREATE TRIGGER refuse BEFORE UPDATE ON `+table+` FOR EACH ROW EXECUTE FUNCTION refuse()`)
}

func TestOptimisticLockIsRetriedThreeTimes(t *testing.T) {
	e := newBoostEnv(t)
	e.addObject(t, 1, 1, "Published")
	e.addProject(t, 1, "Published")
	stubborn(t, e, "catalog.property_object_cards", objectID(1), 3)
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 50, object(1)))
	require.Empty(t, e.letters.take())
	require.Equal(t, 50, e.objectBoost(t, 1))
	require.Equal(t, 3, e.counts.conflicts)
}

// A card cannot be written by any of the four tries: its contributions stay, it is queued, the newest event of each purchase that
// reaches it is dead-lettered, the rest of the batch is applied; the recompute writes it (rule 7).
func TestOptimisticLockConflictIsDeadLettered(t *testing.T) {
	for _, kind := range []codecs.TargetKind{codecs.KindPropertyObject, codecs.KindProject} {
		t.Run(string(kind), func(t *testing.T) {
			e := newBoostEnv(t)
			for n := range 4 {
				e.addObject(t, n, n, "Published")
				e.addProject(t, n, "Published")
			}
			values := []Snapshot{
				e.snapshot(1, 1, codecs.StatusActive, 10, object(1), project(1)),
				e.snapshot(1, 2, codecs.StatusActive, 50, object(1), object(2), project(1)), // reaches the card itself
				e.snapshot(2, 1, codecs.StatusActive, 7, project(1)),                        // reaches it through its project
				e.snapshot(3, 1, codecs.StatusActive, 3, object(2), object(3)),              // does not reach it
				e.snapshot(4, 1, codecs.StatusActive, 1, project(3)),
			}
			table, card := "catalog.property_object_cards", object(1)
			if kind == codecs.KindProject {
				table, card = "catalog.project_cards", project(1)
			}
			stubborn(t, e, table, card.ID, 4)
			e.flush(t, values...)

			letters := e.letters.take()
			require.Len(t, letters, 2)
			require.Same(t, values[1].Record, letters[0].Record, "the newest event of purchase 1")
			require.Same(t, values[2].Record, letters[1].Record)
			for _, l := range letters {
				require.Equal(t, codecs.CodeOptimisticLockConflict, l.Code)
				require.Equal(t, 4, l.Attempts)
				require.Contains(t, l.Reason, card.ID.String())
				require.Equal(t, "cards_affected", l.Attrs[2].Key)
			}
			require.Equal(t, []slog.Attr{slog.String("purchase_id", values[1].PurchaseID.String()), slog.Int64("version", 2)}, letters[0].Attrs[:2])
			require.Equal(t, 4, e.counts.conflicts)
			require.Equal(t, []int{53, 4, 1}, []int{e.objectBoost(t, 2), e.objectBoost(t, 3), e.projectBoost(t, 3)})
			info, err := Card(t.Context(), e.pool, card)
			require.NoError(t, err)
			require.Equal(t, 0, info.PromotionBoost)
			require.True(t, info.Explanation.Queued)
			target, err := Target(t.Context(), e.pool, card)
			require.NoError(t, err)
			require.NotZero(t, target.Boost, "the contributions stay")

			r := e.reconcile(t)
			require.Equal(t, 1, r.Written)
			require.Equal(t, 0, r.Dirty)
			require.Equal(t, []int{107, 57}, []int{e.objectBoost(t, 1), e.projectBoost(t, 1)})
		})
	}
}

// A put-back after OPTIMISTIC_LOCK_CONFLICT (D34) is the same snapshot again: it touches every target the purchase ever had.
func TestRule7_PutBackTouchesEveryTargetEverNamed(t *testing.T) {
	e := newBoostEnv(t)
	e.addObject(t, 1, 1, "Published")
	e.addObject(t, 2, 1, "Published")
	v1 := e.snapshot(1, 1, codecs.StatusActive, 50, object(1))
	e.flush(t, v1)
	v2 := e.snapshot(1, 2, codecs.StatusActive, 50, object(2))
	e.flush(t, v2)
	exec(t, e.pool, `UPDATE catalog.property_object_cards SET promotion_boost = 50`) // as if object 1 had not been written
	e.flush(t, v2)
	require.Equal(t, 0, e.objectBoost(t, 1), "not named any more, but once")
	require.Equal(t, 50, e.objectBoost(t, 2))
}

// When Kafka does not take the letter, the batch comes again; by then the card may be writable.
func TestLetterThatCannotBeWrittenIsAnOutage(t *testing.T) {
	e := newBoostEnv(t)
	exec(t, e.pool, `ALTER TABLE catalog.property_object_cards ADD CHECK (promotion_boost < 90)`)
	e.addObject(t, 1, 1, "Published")
	e.letters.fail = context.DeadlineExceeded
	s := e.snapshot(1, 1, codecs.StatusActive, 95, object(1))
	require.ErrorIs(t, e.sink.Flush(t.Context(), []Snapshot{s}), context.DeadlineExceeded)
	e.letters.fail = nil
	e.flush(t, s)
	require.Len(t, e.letters.take(), 1)
}

// A card that a rival keeps locked beyond the lock timeout does not stop the other purchases; it is written once it is free.
func TestLockedCardDoesNotStopTheOthers(t *testing.T) {
	pool := migrated(t)
	e := boostEnvOn(t, newPool(t, pool.Config().ConnString(), PoolOptions{LockTimeout: 100 * time.Millisecond}), BoostConfig{})
	e.addObject(t, 1, 1, "Published")
	e.addObject(t, 2, 1, "Published")
	e.addProject(t, 1, "Published")
	rival := held(t, e)
	_, err := rival.Exec(t.Context(), rivalChange, objectID(1))
	require.NoError(t, err)
	_, err = rival.Exec(t.Context(), `UPDATE catalog.project_cards SET status = 'Hidden', row_version = row_version + 1`)
	require.NoError(t, err)
	e.flush(t, e.snapshot(1, 1, codecs.StatusActive, 50, object(1)), e.snapshot(2, 1, codecs.StatusActive, 5, project(1)))
	require.Empty(t, e.letters.take())
	require.Len(t, e.events.take("cards-locked"), 1)
	require.Equal(t, []int{0, 5, 0}, []int{e.objectBoost(t, 1), e.objectBoost(t, 2), e.projectBoost(t, 1)})
	r := e.reconcile(t)
	require.Equal(t, 2, r.Remaining, "still locked, and not waited for")
	require.NoError(t, rival.Commit(t.Context()))
	require.Equal(t, 2, e.reconcile(t).Written)
	require.Equal(t, []int{55, 5, 5}, []int{e.objectBoost(t, 1), e.objectBoost(t, 2), e.projectBoost(t, 1)})
}

// Rule 12 (of section 12): the database refuses one record for good; that one alone is dead-lettered.
func TestRule12_RejectedRecordIsDeadLetteredAlone(t *testing.T) {
	e := newBoostEnv(t)
	exec(t, e.pool, `ALTER TABLE catalog.property_object_cards ADD CONSTRAINT boost_limit CHECK (promotion_boost < 90)`)
	for n := range 8 {
		e.addObject(t, n, n, "Published")
	}
	var snapshots []Snapshot
	for n := range 8 {
		snapshots = append(snapshots, e.snapshot(n, 1, codecs.StatusActive, 10, object(n)))
	}
	guilty := e.snapshot(3, 2, codecs.StatusActive, 95, object(3))
	snapshots = append(snapshots[:6], append([]Snapshot{guilty}, snapshots[6:]...)...)
	e.flush(t, snapshots...)
	letters := e.letters.take()
	require.Len(t, letters, 1)
	require.Same(t, guilty.Record, letters[0].Record)
	require.Equal(t, codecs.CodeDatabaseRejected, letters[0].Code)
	require.Contains(t, letters[0].Reason, "boost_limit")
	require.Contains(t, letters[0].Reason, "23514")
	require.Equal(t, []slog.Attr{slog.String("purchase_id", guilty.PurchaseID.String()), slog.Int64("version", 2), slog.Int("cards_affected", 0)}, letters[0].Attrs)
	for n := range 8 {
		require.Equal(t, 10, e.objectBoost(t, n), "object %d", n)
	}
	version := scalar[int64](t.Context(), t, e.pool, `SELECT version FROM vitrina.purchases WHERE purchase_id = $1`, purchaseID(3))
	require.Equal(t, int64(1), version, "nothing of the refused version is stored")
}

// A constraint that refuses everything is not the events' fault: nothing is dead-lettered until it is mended.
func TestDatabaseThatRefusesAllIsAnOutage(t *testing.T) {
	e := newBoostEnv(t)
	exec(t, e.pool, `ALTER TABLE catalog.property_object_cards ADD CONSTRAINT no_boosts CHECK (promotion_boost = 0)`)
	var snapshots []Snapshot
	for n := range 40 {
		e.addObject(t, n, n, "Published")
		snapshots = append(snapshots, e.snapshot(n, 1, codecs.StatusActive, 10, object(n)))
	}
	require.ErrorContains(t, e.sink.Flush(t.Context(), snapshots), "no_boosts")
	require.Empty(t, e.letters.take())
	exec(t, e.pool, `ALTER TABLE catalog.property_object_cards DROP CONSTRAINT no_boosts`)
	e.flush(t, snapshots...)
	require.Equal(t, 10, e.objectBoost(t, 39))
}

// A batch that is too much for the statement timeout is halved until it fits.
func TestSlowBatchIsSplit(t *testing.T) {
	pool := migrated(t)
	e := boostEnvOn(t, newPool(t, pool.Config().ConnString(), PoolOptions{StatementTimeout: 400 * time.Millisecond}), BoostConfig{})
	for n := range 8 {
		e.addObject(t, n, n, "Published")
	}
	exec(t, e.pool, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.09); RETURN NEW; END $$`)
	exec(t, e.pool, `CREATE TRIGGER slow BEFORE UPDATE ON catalog.property_object_cards FOR EACH ROW EXECUTE FUNCTION slow()`)
	var snapshots []Snapshot
	for n := range 8 {
		snapshots = append(snapshots, e.snapshot(n, 1, codecs.StatusActive, 10, object(n)))
	}
	e.flush(t, snapshots...)
	for n := range 8 {
		require.Equal(t, 10, e.objectBoost(t, n), "object %d", n)
	}
}

// E6: a sink of an older epoch, or while a rebuild has the projection closed, writes nothing and must be made again.
func TestEpochFencesTheSink(t *testing.T) {
	e := newBoostEnv(t)
	e.addObject(t, 1, 1, "Published")
	raised, err := RaiseEpoch(t.Context(), e.pool, PromotionBoost, "rebuild")
	require.NoError(t, err)
	s := e.snapshot(1, 1, codecs.StatusActive, 50, object(1))
	closed := boostEnvOn(t, e.pool, BoostConfig{})
	for name, sink := range map[string]*BoostSink{"zombie": e.sink, "started while closed": closed.sink} {
		require.ErrorIs(t, sink.Flush(t.Context(), []Snapshot{s}), batch.ErrFatal, name)
		_, err = sink.Reconcile(t.Context())
		require.ErrorIs(t, err, batch.ErrFatal, name)
	}
	require.NoError(t, Reopen(t.Context(), e.pool, PromotionBoost, raised.Epoch))
	require.ErrorIs(t, e.sink.Flush(t.Context(), []Snapshot{s}), batch.ErrFatal, "the zombie stays fenced")
	require.Zero(t, scalar[int](t.Context(), t, e.pool, `SELECT count(*) FROM vitrina.purchases`))
	closed.flush(t, s)
	require.Equal(t, 50, e.objectBoost(t, 1))
}
