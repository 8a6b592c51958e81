package verify_test

import (
	"context"
	"database/sql"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // sql.Open("pgx", …)
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	vitrina "github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/ops/verify"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

type env struct {
	t        *testing.T
	cfg      *config.Config
	pool     *pgxpool.Pool
	facts    *clickhouse.Conn
	producer *kgo.Client
	*verify.Verifier
}

func newEnv(t *testing.T) *env {
	t.Helper()
	cfg := config.Default()
	cfg.Kafka.Brokers, cfg.Postgres.DSN, cfg.ClickHouse.DSN = devtest.Embedded(t), config.Secret(devtest.Postgres(t)), config.Secret(devtest.ClickHouse(t))
	cfg.Instance.ID, cfg.State.Dir = "i", t.TempDir()
	cfg.Backoff.Min, cfg.Backoff.Max = 50*time.Millisecond, 500*time.Millisecond
	cfg.Promotion.ReconcileInterval, cfg.Promotion.SweepInterval, cfg.Price.BatchInterval = 200*time.Millisecond, time.Hour, 50*time.Millisecond
	cfg.Popularity.RetryDelays = []time.Duration{time.Hour}
	e := &env{t: t, cfg: cfg}
	db, err := sql.Open("pgx", cfg.Postgres.DSN.Reveal())
	require.NoError(t, err)
	_, err = postgres.Migrate(t.Context(), db)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	_, err = clickhouse.Migrate(t.Context(), vitrina.ClickHouseConfig(cfg))
	require.NoError(t, err)
	e.producer, err = kgo.NewClient(kgo.SeedBrokers(cfg.Kafka.Brokers...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(func(key []byte, n int) int { return int(crc32.ChecksumIEEE(key) % uint32(n)) })))
	require.NoError(t, err)
	t.Cleanup(e.producer.Close)
	for _, c := range config.Consumers() {
		_, err := kadm.NewClient(e.producer).CreateTopic(t.Context(), 2, 1, nil, c.Topic)
		require.NoError(t, err)
	}
	program, err := func() (*vitrina.App, error) {
		tracing, err := telemetry.NewTracing(t.Context(), "test", func(string) string { return "" }, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		return vitrina.New(t.Context(), cfg, vitrina.Deps{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Tracing: tracing, Clock: time.Now})
	}()
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- program.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, program.Close())
	})
	e.pool, e.facts = program.Pool(), program.Facts()
	e.Verifier = &verify.Verifier{
		Admin: program.Admin(), Pool: e.pool, Facts: e.facts, Logger: slog.New(slog.DiscardHandler), Clock: time.Now,
		PromotionsEnabled: true, Settle: 300 * time.Millisecond, Progress: func(string) {},
	}
	return e
}

func (e *env) send(topic, key, value string) {
	e.t.Helper()
	require.NoError(e.t, e.producer.ProduceSync(e.t.Context(), &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(value)}).FirstErr())
}

func (e *env) exec(statement string, args ...any) {
	e.t.Helper()
	_, err := e.pool.Exec(e.t.Context(), statement, args...)
	require.NoError(e.t, err)
}

func (e *env) verify(projection string, repair bool) *verify.Report {
	e.t.Helper()
	r, err := e.Run(e.t.Context(), projection, repair)
	require.NoError(e.t, err)
	return r
}

func id(n int) string { return fmt.Sprintf("0197c0de-0000-7000-8000-%012d", n) }

func TestVerifyFindsAndMends(t *testing.T) {
	e := newEnv(t)
	const n = 20
	e.exec(`INSERT INTO catalog.project_cards (id, status) VALUES ($1, 'Published')`, id(1))
	for i := range n {
		e.exec(`INSERT INTO catalog.property_object_cards (id, project_id, status) VALUES ($1, $2, 'Published')`, id(100+i), id(1))
		e.send(config.TopicPurchaseChanged, id(200+i), fmt.Sprintf(`{"EventId":%q,"ContractVersion":1,"Payload":{"PurchaseId":%q,"Targets":[{"TargetKind":"PropertyObject","TargetId":%q},{"TargetKind":"Project","TargetId":%q}],"BoostWeight":5,"Status":"Active","EndsAt":"2027-12-31T23:59:59Z","Version":3,"TenantId":%q}}`,
			uuid.New(), id(200+i), id(100+i), id(1), id(9)))
		for v := range 3 {
			e.send(config.TopicViewEnded, id(1000+10*i+v), fmt.Sprintf(`{"EventId":%q,"ContractVersion":1,"Payload":{"PropertyObjectViewId":%q,"PropertyObjectId":%q,"SessionId":%q,"AnonymousId":%q,"UserId":null,"ViewSource":"Catalog","ViewedAt":"2026-11-30T10:00:00Z","LastActivityAt":"2026-11-30T10:00:42Z","DurationSeconds":42,"FilterSnapshot":null}}`,
				uuid.New(), id(1000+10*i+v), id(100+i), id(7), id(8)))
		}
		e.send(config.TopicPriceChanged, id(100+i), fmt.Sprintf(`{"EventId":%q,"ContractVersion":1,"TenantId":%q,"Payload":{"PropertyObjectId":%q,"DeveloperId":%q,"ProjectId":%q,"BuildingId":1,"LayoutGroupId":1,"LayoutId":1,"AreaTotal":50,"OldPrice":null,"NewPrice":"100.00","CurrencyId":643,"CurrencySnapshot":{"CurrencyId":643,"IsoCode":"RUB","Name":"r","Sign":"r"},"ChangedAt":"2025-11-%02dT00:00:00Z","Source":"Talent","Version":1}}`,
			id(5000+i), id(9), id(100+i), id(9), id(1), i+1))
	}
	e.send(config.TopicViewEnded, id(1999), fmt.Sprintf(`{"EventId":%q,"ContractVersion":1,"Payload":{"PropertyObjectViewId":%q,"PropertyObjectId":%q,"SessionId":%q,"AnonymousId":%q,"UserId":null,"ViewSource":"Catalog","ViewedAt":"2026-11-30T10:00:00Z","LastActivityAt":"2026-11-30T10:00:42Z","DurationSeconds":42}}`,
		uuid.New(), id(1999), id(404), id(7), id(8))) // no card: pending
	require.Eventually(t, func() bool {
		for _, c := range config.Consumers() {
			positions, err := e.Admin.GroupPositions(t.Context(), c.Group, c.Topic)
			if err != nil {
				return false
			}
			for _, p := range positions[c.Topic] {
				if p.Lag() > 0 {
					return false
				}
			}
		}
		return true
	}, time.Minute, 100*time.Millisecond)

	for _, projection := range []string{verify.PromotionBoost, verify.Popularity, verify.PriceHistory} {
		r := e.verify(projection, false)
		require.Zero(t, r.Total, "%s: %v", projection, r.Differences)
		require.Empty(t, r.Differences, projection)
	}
	require.EqualValues(t, n, e.verify(verify.PromotionBoost, false).Checked["purchases"])
	require.EqualValues(t, 3*n+1, e.verify(verify.Popularity, false).Checked["marks"])
	require.EqualValues(t, n, e.verify(verify.PriceHistory, false).Checked["facts"])

	// A dead view that came again for another object counts there, although its mark names the first one.
	e.exec(`INSERT INTO vitrina.moved_views (view_id, object_id) VALUES ($1, $2)`, id(1000), id(101))
	require.Equal(t, 2, e.verify(verify.Popularity, false).Total)
	e.exec(`UPDATE catalog.property_object_cards SET popularity_views = CASE id WHEN $1 THEN 2 ELSE 4 END WHERE id IN ($1, $2)`, id(100), id(101))
	require.Zero(t, e.verify(verify.Popularity, false).Total)

	e.exec(`UPDATE catalog.property_object_cards SET promotion_boost = 1 WHERE id = $1`, id(100))
	e.exec(`DELETE FROM vitrina.contributions WHERE purchase_id = $1 AND kind = 2`, id(201))
	e.exec(`DELETE FROM vitrina.contributions WHERE purchase_id = $1`, id(202))
	e.exec(`DELETE FROM vitrina.purchases WHERE purchase_id = $1`, id(202))
	e.exec(`UPDATE vitrina.purchases SET version = 1 WHERE purchase_id = $1`, id(203))
	e.exec(`UPDATE vitrina.promotion_targets SET boost = 7 WHERE kind = 2 AND id = $1`, id(104))
	r := e.verify(verify.PromotionBoost, false)
	kinds := map[string]int{}
	for _, d := range r.Differences {
		kinds[d.What]++
		require.NotEmpty(t, d.Cause)
	}
	require.Equal(t, 2, kinds["purchase"], r.Differences)
	require.Equal(t, 1, kinds["contribution"], r.Differences)
	require.GreaterOrEqual(t, kinds["target"], 3, r.Differences)
	require.GreaterOrEqual(t, kinds["card"], 1, r.Differences)
	r = e.verify(verify.PromotionBoost, true)
	require.Zero(t, r.Total, r.Differences)
	require.Positive(t, r.Repaired)
	var boost int
	require.NoError(t, e.pool.QueryRow(t.Context(), `SELECT promotion_boost FROM catalog.property_object_cards WHERE id = $1`, id(100)).Scan(&boost))
	require.Equal(t, 5+5*n, boost)

	e.exec(`UPDATE catalog.property_object_cards SET popularity_views = popularity_views + 1 WHERE id = $1`, id(103))
	e.exec(`UPDATE catalog.property_object_cards SET popularity_views = popularity_views - 1 WHERE id = $1`, id(104))
	e.exec(`UPDATE catalog.project_cards SET popularity_views = 1`)
	r = e.verify(verify.Popularity, true)
	require.Equal(t, 2, r.Total, r.Differences)
	require.Len(t, r.Differences, 3, "the project is a note")
	require.Contains(t, r.Notes[0], "vitrina rebuild popularity")

	require.NoError(t, e.facts.Exec(t.Context(), "ALTER TABLE "+e.facts.Table()+" DELETE WHERE FactId IN ('"+id(5003)+"', '"+id(5004)+"') SETTINGS mutations_sync = 2"))
	r = e.verify(verify.PriceHistory, false)
	require.Equal(t, 2, r.Total, r.Differences)
	r = e.verify(verify.PriceHistory, true)
	require.Zero(t, r.Total, r.Differences)
	require.Equal(t, 2, r.Repaired)

	_, err := e.Run(t.Context(), "cards", false)
	var refused *verify.RefusedError
	require.ErrorAs(t, err, &refused)
	e.exec(`UPDATE vitrina.projections SET state = 'closed' WHERE name = 'popularity'`)
	_, err = e.Run(t.Context(), verify.Popularity, false)
	require.ErrorAs(t, err, &refused)
}
