package rebuild_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/devstack"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/internal/httpserver"
	"github.com/pin-marketplace/vitrina/internal/ops/rebuild"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
	"github.com/pin-marketplace/vitrina/test/model"
	"github.com/pin-marketplace/vitrina/test/observe"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

// The names of the contracts, written out.
const (
	purchases      = "pin.promotion.purchase-changed.v1"
	viewEnded      = "pin.user-activity.property-object-view-ended.v1"
	prices         = "pin.chessboard.property-object-price-changed.v1"
	boostGroup     = "pin-catalog-promotion-boost"
	viewGroup      = "pin-catalog-popularity"
	priceGroup     = "invest-analytics-price-history"
	promotionBoost = "promotion-boost"
	popularity     = "popularity"
)

// env is an embedded broker and a PostgreSQL database, schema and source topics made.
type env struct {
	t       *testing.T
	broker  *devstack.Embedded
	brokers []string
	dsn     string
	facts   string // ClickHouse; empty where a test needs none
	pool    *pgxpool.Pool
	admin   *stream.Admin
	kafka   stream.KafkaConfig
	model   *model.Model
	cards   map[model.Ref]model.Card
	rebuilt map[model.Ref]model.Card // the cards that the rebuild found; nil: all
}

func newEnv(t *testing.T) *env {
	t.Helper()
	broker := devtest.EmbeddedServer(t, devstack.Options{})
	e := &env{t: t, broker: broker, brokers: broker.Brokers(), dsn: devtest.Postgres(t), model: model.New(time.Now()), cards: map[model.Ref]model.Card{}}
	db, err := postgres.OpenMigrator(e.dsn, postgres.PoolOptions{})
	require.NoError(t, err)
	_, err = postgres.Migrate(t.Context(), db)
	require.NoError(t, errors.Join(err, db.Close()))
	e.pool, err = postgres.NewPool(t.Context(), e.dsn, postgres.PoolOptions{MaxConns: 8})
	require.NoError(t, err)
	t.Cleanup(e.pool.Close)
	e.kafka, err = app.KafkaConfig(e.config("test"), time.Now)
	require.NoError(t, err)
	e.admin, err = stream.NewAdmin(e.kafka)
	require.NoError(t, err)
	t.Cleanup(e.admin.Close)
	for topic, partitions := range map[string]int32{purchases: 2, viewEnded: 3, prices: 2} {
		e.createTopic(topic, partitions)
	}
	return e
}

func (e *env) createTopic(topic string, partitions int32) {
	e.t.Helper()
	_, err := e.admin.Kadm().CreateTopic(e.t.Context(), partitions, 1, nil, topic)
	require.NoError(e.t, err)
}

func (e *env) config(instance string, roles ...string) *config.Config {
	cfg := config.Default()
	cfg.Roles, cfg.Instance.ID = roles, instance
	cfg.Kafka.Brokers, cfg.Postgres.DSN, cfg.ClickHouse.DSN = e.brokers, config.Secret(e.dsn), config.Secret(e.facts)
	cfg.State.Dir = e.t.TempDir()
	cfg.Kafka.SessionTimeout = 10 * time.Second
	cfg.Backoff.Min, cfg.Backoff.Max = 50*time.Millisecond, 500*time.Millisecond
	cfg.Runtime.LagInterval, cfg.Promotion.ReconcileInterval, cfg.Price.BatchInterval = time.Second, 300*time.Millisecond, 50*time.Millisecond
	// Long enough for late cards, which come while a rebuild holds the worker too.
	cfg.Popularity.RetryDelays, cfg.Popularity.RetryInterval = slices.Repeat([]time.Duration{time.Second}, 100), 50*time.Millisecond
	cfg.HTTP.RequestTimeout, cfg.HTTP.AdminToken = 10*time.Second, "t0ken"
	return cfg
}

// instance is a running program.
type instance struct {
	program *app.App
	handler http.Handler
	stop    func()
}

func logger() *slog.Logger {
	if os.Getenv("VITRINA_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

func (e *env) start(name string, roles ...string) *instance {
	e.t.Helper()
	return e.startWith(e.config(name, roles...))
}

func (e *env) startWith(cfg *config.Config) *instance {
	e.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	tracing, err := telemetry.NewTracing(ctx, "test", func(string) string { return "" }, logger())
	require.NoError(e.t, err)
	registry := prometheus.NewRegistry()
	i := &instance{}
	i.program, err = app.New(ctx, cfg, app.Deps{Logger: logger(), Registerer: registry, Tracing: tracing, Clock: time.Now})
	require.NoError(e.t, err)
	options, err := i.program.HTTP()
	require.NoError(e.t, err)
	options.Metrics = registry
	i.handler = httpserver.New(options).Handler()
	done := make(chan error, 1)
	go func() { done <- i.program.Run(ctx) }()
	i.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, i.program.Close()); err != nil {
			e.t.Error(err)
		}
	})
	e.t.Cleanup(i.stop)
	return i
}

// runner makes a worker of another process.
func (e *env) runner(name string) *rebuild.Runner {
	e.t.Helper()
	return e.runnerWith(name, func() bool { return true })
}

func (e *env) runnerWith(name string, enabled func() bool) *rebuild.Runner {
	e.t.Helper()
	c := app.OperationsConfig(e.config(name), e.pool, e.admin, e.kafka, name, enabled, logger())
	c.Pause = 100 * time.Millisecond
	r, err := rebuild.New(c)
	require.NoError(e.t, err)
	return r
}

func (e *env) submit(kind, projection, source string, params rebuild.Params) postgres.Operation {
	e.t.Helper()
	op, made, err := rebuild.Submit(e.t.Context(), e.pool, rebuild.Request{Kind: kind, Projection: projection, Source: source, Params: params, By: "test"}, true)
	require.NoError(e.t, err)
	require.True(e.t, made, "the operation is new")
	return op
}

// wait returns the operation once it has ended.
func (e *env) wait(id uuid.UUID) postgres.Operation {
	e.t.Helper()
	var op postgres.Operation
	e.eventually(2*time.Minute, func() (bool, string) {
		var err error
		op, err = postgres.ReadOperation(e.t.Context(), e.pool, id)
		require.NoError(e.t, err)
		return !op.Active(), fmt.Sprintf("operation is %s at %s: %s %s", op.State, op.Step, op.Message, op.Error)
	})
	return op
}

func (e *env) succeeds(id uuid.UUID) {
	e.t.Helper()
	op := e.wait(id)
	require.Equal(e.t, postgres.OperationSucceeded, op.State, op.Error)
}

func (e *env) eventually(limit time.Duration, condition func() (bool, string)) {
	e.t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, state := condition()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			e.t.Fatalf("not within %s: %s", limit, state)
		}
		<-tick.C
	}
}

func options(seed uint64) generate.Options {
	o := generate.Defaults()
	o.Seed, o.Start, o.Span = seed, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Projects, o.Objects, o.Views, o.Purchases, o.Prices = 15, 200, 4000, 800, 0
	o.WrongKeys, o.LateCards, o.Duplicates, o.Homeless = 0.02, 0.05, 0.1, 0.01
	return o
}

// send sends a stream and gives it to the model; rate 0 is as fast as it goes.
func (e *env) send(o generate.Options, rate float64) error {
	writer, err := generate.NewKafkaWriter([]kgo.Opt{kgo.SeedBrokers(e.brokers...)}, "crc32", o.Seed)
	if err != nil {
		return err
	}
	defer writer.Close()
	_, err = generate.Send(e.t.Context(), generate.WithoutErrors(generate.Items(o)), generate.Destination{
		Records: writer, Cards: generate.PostgresCards{DB: e.pool}, Rate: rate,
		Observe: func(item generate.Item) {
			item.Give(e.model)
			if item.Card != nil {
				e.cards[item.Card.Ref()] = item.Card.Card
			}
		},
	})
	return err
}

// expected is what the model says, brought to what a rebuild makes of the cards' values from before the first event: a
// Hidden card that no purchase ever named has 0, and from the marks a project's counter is the sum of its objects', frozen ones
// included.
func (e *env) expected(rebuilt, fromMarks bool) map[model.Ref]model.CardState {
	want := e.model.Expected()
	if rebuilt {
		for ref, card := range e.cards {
			s := want.Cards[ref]
			if _, named := want.Targets[ref]; card.Status == model.Hidden && !named {
				s.PromotionBoost = 0
			}
			want.Cards[ref] = s
		}
	}
	if fromMarks {
		found := e.rebuilt
		if found == nil {
			found = e.cards
		}
		for _, card := range found {
			project := model.Ref{Kind: model.Project, ID: card.ProjectID}
			if card.Kind == model.PropertyObject && card.Status == model.Delisted && e.cards[project].Status != model.Delisted {
				s := want.Cards[project]
				s.PopularityViews += card.PopularityViews
				want.Cards[project] = s
			}
		}
	}
	return want.Cards
}

// equal waits until one number of every card is the expected one.
func (e *env) equal(limit time.Duration, want map[model.Ref]model.CardState, number func(model.CardState) int64) {
	e.t.Helper()
	e.eventually(limit, func() (bool, string) {
		got, err := observe.Cards(e.t.Context(), e.pool)
		require.NoError(e.t, err)
		wrong, example := 0, ""
		for ref, w := range want {
			if number(got[ref]) != number(w) {
				wrong++
				example = fmt.Sprintf("%s %s (%s): want %d, got %d", ref.Kind, ref.ID, e.cards[ref].Status, number(w), number(got[ref]))
			}
		}
		return wrong == 0 && len(got) == len(want), fmt.Sprintf("%d cards differ of %d (%d), such as %s", wrong, len(want), len(got), example)
	})
}

func boosts(s model.CardState) int64 { return int64(s.PromotionBoost) }
func views(s model.CardState) int64  { return s.PopularityViews }

// spoil changes what a rebuild must set right.
func (e *env) spoil(sql ...string) {
	e.t.Helper()
	for _, s := range sql {
		_, err := e.pool.Exec(e.t.Context(), s)
		require.NoError(e.t, err)
	}
}

func (e *env) committed(group, topic string) int64 {
	e.t.Helper()
	positions, err := e.admin.GroupPositions(e.t.Context(), group, topic)
	require.NoError(e.t, err)
	var sum int64
	for _, at := range positions[topic] {
		sum += max(at.Committed, 0)
	}
	return sum
}

func (e *env) caughtUp(group, topic string) {
	e.t.Helper()
	e.eventually(time.Minute, func() (bool, string) {
		positions, err := e.admin.GroupPositions(e.t.Context(), group, topic)
		require.NoError(e.t, err)
		var lag int64
		for _, at := range positions[topic] {
			lag += at.Lag()
		}
		return lag == 0, fmt.Sprintf("group %s has a lag of %d", group, lag)
	})
}

func (e *env) topicID(name string) uuid.UUID {
	e.t.Helper()
	topics, err := e.admin.Topics(e.t.Context(), name)
	require.NoError(e.t, err)
	return topics[name].ID
}

// dropRecords deletes the first half of each partition, as retention does.
func (e *env) dropRecords(topic string) {
	e.t.Helper()
	positions, err := e.admin.GroupPositions(e.t.Context(), "nobody", topic)
	require.NoError(e.t, err)
	var os kadm.Offsets
	for p, at := range positions[topic] {
		os.Add(kadm.Offset{Topic: topic, Partition: int32(p), At: (at.Start + at.End) / 2, LeaderEpoch: -1}) //nolint:gosec // a partition number
	}
	res, err := e.admin.Kadm().DeleteRecords(e.t.Context(), os)
	require.NoError(e.t, errors.Join(err, res.Error()))
}

// clickhouse gives the environment an analytics database.
func (e *env) clickhouse() {
	e.t.Helper()
	e.facts = devtest.ClickHouse(e.t)
	_, err := clickhouse.Migrate(e.t.Context(), clickhouse.Config{DSN: e.facts})
	require.NoError(e.t, err)
}
