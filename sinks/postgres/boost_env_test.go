package postgres

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

// letterBox keeps dead letters; fail, when set, is an outage of Kafka.
type letterBox struct {
	mu      sync.Mutex
	letters []deadletter.Letter
	fail    error
}

func (b *letterBox) Write(_ context.Context, letters ...deadletter.Letter) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return b.fail
	}
	b.letters = append(b.letters, letters...)
	return nil
}

func (b *letterBox) take() []deadletter.Letter {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.letters
	b.letters = nil
	return taken
}

// eventBook keeps the log lines.
type eventBook struct {
	mu    sync.Mutex
	lines []eventLine
}

type eventLine struct {
	name  string
	attrs map[string]any
}

func (b *eventBook) Log(_ context.Context, _ slog.Level, name, _ string, attrs ...slog.Attr) {
	line := eventLine{name: name, attrs: map[string]any{}}
	for _, a := range attrs {
		line.attrs[a.Key] = a.Value.Any()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line)
}

func (b *eventBook) take(name string) []eventLine {
	b.mu.Lock()
	defer b.mu.Unlock()
	var taken []eventLine
	b.lines = slices.DeleteFunc(b.lines, func(l eventLine) bool {
		if l.name == name {
			taken = append(taken, l)
		}
		return l.name == name
	})
	return taken
}

// tally counts what the metric hooks were told.
type tally struct {
	mu                                      sync.Mutex
	cards, stale, retries, conflicts, dirty int
}

func (c *tally) hooks() BoostMetrics {
	add := func(field *int) func(int) {
		return func(n int) {
			c.mu.Lock()
			defer c.mu.Unlock()
			*field += n
		}
	}
	return BoostMetrics{
		CardsRecomputed: add(&c.cards), CardConflicts: add(&c.conflicts),
		Stale: func() { add(&c.stale)(1) }, Retry: func() { add(&c.retries)(1) },
		DirtyCards: func(n int) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.dirty = n
		},
	}
}

// boostEnv is a migrated database with one sink.
type boostEnv struct {
	pool    *pgxpool.Pool
	sink    *BoostSink
	letters *letterBox
	events  *eventBook
	counts  *tally
	offset  int64
}

func newBoostEnv(t testing.TB) *boostEnv { return boostEnvOn(t, migrated(t), BoostConfig{}) }

func boostEnvOn(t testing.TB, pool *pgxpool.Pool, cfg BoostConfig) *boostEnv {
	t.Helper()
	e := &boostEnv{pool: pool, letters: &letterBox{}, events: &eventBook{}, counts: &tally{}}
	p, err := ReadProjection(t.Context(), pool, PromotionBoost)
	require.NoError(t, err)
	cfg.Epoch = p.Epoch
	e.sink, err = NewBoostSink(pool, cfg, e.letters, e.events, e.counts.hooks())
	require.NoError(t, err)
	exec(t, pool, `UPDATE vitrina.card_sweep SET done = due`) // a fresh schema owes a sweep
	return e
}

// id makes readable ids: kind is a letter, n a number.
func id(kind byte, n int) uuid.UUID {
	var u uuid.UUID
	u[0] = kind
	binary.BigEndian.PutUint64(u[8:], uint64(n))
	return u
}

func projectID(n int) uuid.UUID  { return id(0x10, n) }
func objectID(n int) uuid.UUID   { return id(0x20, n) }
func purchaseID(n int) uuid.UUID { return id(0x30, n) }

func project(n int) codecs.Target {
	return codecs.Target{Kind: codecs.KindProject, ID: projectID(n)}
}

func object(n int) codecs.Target {
	return codecs.Target{Kind: codecs.KindPropertyObject, ID: objectID(n)}
}

// snapshot makes a purchase's state as the processor would hand it over.
func (e *boostEnv) snapshot(purchase int, version int64, status codecs.Status, weight int32, targets ...codecs.Target) Snapshot {
	e.offset++
	targets = slices.Clone(targets)
	slices.SortFunc(targets, func(a, b codecs.Target) int {
		return cmp.Or(cmp.Compare(kindOf(a.Kind), kindOf(b.Kind)), compareUUID(a.ID, b.ID))
	})
	source := record.ID{Topic: "pin.promotion.purchase-changed.v1", Partition: 3, Offset: e.offset}
	return Snapshot{
		PurchaseID: purchaseID(purchase),
		State: &codecs.PurchaseState{
			Version: version, Status: status, BoostWeight: weight, EndsAt: time.Date(2026, 12, 31, 20, 59, 59, 0, time.UTC),
			Targets: targets, EverTargets: targets, EverKnown: len(targets) > 0,
			Topic: source.Topic, SourcePartition: source.Partition, SourceOffset: source.Offset,
		},
		Record: &record.Record{ID: source, Key: []byte(purchaseID(purchase).String()), Value: fmt.Appendf(nil, "purchase %d version %d", purchase, version)},
	}
}

func (e *boostEnv) flush(t testing.TB, snapshots ...Snapshot) {
	t.Helper()
	require.NoError(t, e.sink.Flush(t.Context(), snapshots))
}

func (e *boostEnv) addProject(t testing.TB, n int, status string) {
	t.Helper()
	exec(t, e.pool, `INSERT INTO catalog.project_cards (id, status, popularity_views, min_price, max_price, property_objects_available, payback)
		VALUES ($1, $2, 7, 1000000.10, 2000000.20, 3, 12.50)`, projectID(n), status)
}

func (e *boostEnv) addObject(t testing.TB, n, project int, status string) {
	t.Helper()
	exec(t, e.pool, `INSERT INTO catalog.property_object_cards (id, project_id, status, popularity_views, price) VALUES ($1, $2, $3, 9, 1500000.15)`,
		objectID(n), projectID(project), status)
}

// purchase is the stored snapshot: its status, and its targets of which all are active or none.
func (e *boostEnv) purchase(t testing.TB, n int) (status codecs.Status, active, inactive []uuid.UUID) {
	t.Helper()
	require.NoError(t, e.pool.QueryRow(t.Context(), `SELECT p.status, array_agg(c.target_id ORDER BY c.target_id) FILTER (WHERE c.active),
		array_agg(c.target_id ORDER BY c.target_id) FILTER (WHERE NOT c.active)
		FROM vitrina.purchases p LEFT JOIN vitrina.contributions c USING (purchase_id) WHERE p.purchase_id = $1 GROUP BY p.status`, purchaseID(n)).
		Scan(&status, &active, &inactive))
	return status, active, inactive
}

func (e *boostEnv) projectBoost(t testing.TB, n int) int {
	t.Helper()
	return scalar[int](t.Context(), t, e.pool, `SELECT promotion_boost FROM catalog.project_cards WHERE id = $1`, projectID(n))
}

func (e *boostEnv) objectBoost(t testing.TB, n int) int {
	t.Helper()
	return scalar[int](t.Context(), t, e.pool, `SELECT promotion_boost FROM catalog.property_object_cards WHERE id = $1`, objectID(n))
}

// cardRows is every card as text, the row's place and transaction included: equal texts mean that nothing touched it.
func (e *boostEnv) cardRows(t testing.TB) map[uuid.UUID]string {
	t.Helper()
	return e.rows(t, `SELECT id, concat_ws('|', ctid, xmin, c::text) FROM catalog.project_cards c
		UNION ALL SELECT id, concat_ws('|', ctid, xmin, c::text) FROM catalog.property_object_cards c`)
}

// otherColumns is every card without the columns that the boost sink may write.
func (e *boostEnv) otherColumns(t testing.TB) map[uuid.UUID]string {
	t.Helper()
	return e.rows(t, `SELECT id, (to_jsonb(c) - '{promotion_boost,row_version,updated_at}'::text[])::text FROM catalog.project_cards c
		UNION ALL SELECT id, (to_jsonb(c) - '{promotion_boost,row_version,updated_at}'::text[])::text FROM catalog.property_object_cards c`)
}

func (e *boostEnv) rows(t testing.TB, query string) map[uuid.UUID]string {
	t.Helper()
	rows, err := e.pool.Query(t.Context(), query)
	require.NoError(t, err)
	defer rows.Close()
	m := map[uuid.UUID]string{}
	for rows.Next() {
		var key uuid.UUID
		var text string
		require.NoError(t, rows.Scan(&key, &text))
		m[key] = text
	}
	require.NoError(t, rows.Err())
	return m
}

func (e *boostEnv) reconcile(t testing.TB) Report {
	t.Helper()
	r, err := e.sink.Reconcile(t.Context())
	require.NoError(t, err)
	return r
}

// ctxOf is the context of a rapid test: rapid has none that lasts for the whole check.
func ctxOf(t *rapid.T) context.Context { return t.Context() }

// clear empties the database for another history.
func (e *boostEnv) clear(t *rapid.T) {
	_, err := e.pool.Exec(ctxOf(t), `TRUNCATE catalog.project_cards, catalog.property_object_cards, vitrina.purchases, vitrina.contributions,
		vitrina.promotion_targets, vitrina.changed_cards, vitrina.dirty_cards`)
	require.NoError(t, err)
	e.letters.take()
	*e.counts = tally{}
	*e.events = eventBook{}
}
