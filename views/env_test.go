package views_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // sql.Open("pgx", …)
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/devstack"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/httpserver"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

// The topics of the contracts, written out.
const (
	purchases = "pin.promotion.purchase-changed.v1"
	viewEnded = "pin.user-activity.property-object-view-ended.v1"
	prices    = "pin.chessboard.property-object-price-changed.v1"
)

// system is an embedded broker and two databases, schemas and source topics made.
type system struct {
	t          *testing.T
	broker     *devstack.Embedded
	postgres   string
	clickhouse string
	pool       *pgxpool.Pool
	producer   *kgo.Client
	router     routers.Router
}

func newSystem(t *testing.T) *system {
	t.Helper()
	s := &system{t: t, broker: devtest.EmbeddedServer(t, devstack.Options{}), postgres: devtest.Postgres(t), clickhouse: devtest.ClickHouse(t), router: router(t)}
	db, err := sql.Open("pgx", s.postgres)
	require.NoError(t, err)
	_, err = postgres.Migrate(t.Context(), db)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	_, err = clickhouse.Migrate(t.Context(), clickhouse.Config{DSN: s.clickhouse})
	require.NoError(t, err)
	s.pool, err = pgxpool.New(t.Context(), s.postgres)
	require.NoError(t, err)
	t.Cleanup(s.pool.Close)
	s.producer, err = kgo.NewClient(kgo.SeedBrokers(s.broker.Brokers()...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(crc)))
	require.NoError(t, err)
	t.Cleanup(s.producer.Close)
	for topic, partitions := range map[string]int32{purchases: 2, viewEnded: 3, prices: 2} {
		_, err := kadm.NewClient(s.producer).CreateTopic(t.Context(), partitions, 1, nil, topic)
		require.NoError(t, err)
	}
	return s
}

// router finds the operation of a request in the document.
func router(t *testing.T) routers.Router {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	require.NoError(t, err)
	require.NoError(t, doc.Validate(t.Context(), openapi3.IsOpenAPI31OrLater()))
	r, err := legacy.NewRouter(doc)
	require.NoError(t, err)
	return r
}

// instance is a running program.
type instance struct {
	*system
	handler http.Handler
	stop    func()
}

func (s *system) start(change func(*config.Config), roles ...string) *instance {
	s.t.Helper()
	cfg := config.Default()
	cfg.Roles, cfg.Instance.ID = roles, "i-"+strings.Join(roles, "-")
	cfg.Kafka.Brokers, cfg.Postgres.DSN, cfg.ClickHouse.DSN = s.broker.Brokers(), config.Secret(s.postgres), config.Secret(s.clickhouse)
	cfg.State.Dir = s.t.TempDir()
	cfg.Backoff.Min, cfg.Backoff.Max = 50*time.Millisecond, 500*time.Millisecond
	cfg.Runtime.LagInterval, cfg.Promotion.ReconcileInterval, cfg.Price.BatchInterval = time.Second, 200*time.Millisecond, 50*time.Millisecond
	cfg.Popularity.RetryDelays, cfg.Popularity.RetryInterval = []time.Duration{time.Hour}, 50*time.Millisecond
	cfg.HTTP.RequestTimeout, cfg.HTTP.AdminToken = 10*time.Second, "t0ken"
	if change != nil {
		change(cfg)
	}
	i := &instance{system: s}
	logger := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	tracing, err := telemetry.NewTracing(ctx, "test", func(string) string { return "" }, logger)
	require.NoError(s.t, err)
	registry := prometheus.NewRegistry()
	program, err := app.New(ctx, cfg, app.Deps{Logger: logger, Registerer: registry, Tracing: tracing, Clock: time.Now})
	require.NoError(s.t, err)
	options, err := program.HTTP()
	require.NoError(s.t, err)
	options.Metrics = registry
	i.handler = httpserver.New(options).Handler()
	done := make(chan error, 1)
	go func() { done <- program.Run(ctx) }()
	stopped := false
	i.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
		if err := program.Close(); err != nil {
			s.t.Error(err)
		}
	}
	s.t.Cleanup(i.stop)
	return i
}

// ready is the status of /readyz.
func (i *instance) ready() int {
	w := httptest.NewRecorder()
	i.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	return w.Code
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) problem(t require.TestingT) httpserver.Problem {
	var p httpserver.Problem
	require.Equal(t, "application/problem+json", a.header.Get("Content-Type"))
	require.NoError(t, json.Unmarshal(a.body, &p))
	require.Equal(t, a.status, p.Status)
	return p
}

// get asks, and holds the answer to the document. Each request whose answer is 200 must be one that the document allows.
func (i *instance) get(path string) answer { return i.call(http.MethodGet, path, "") }

func (i *instance) call(method, path, body string) answer {
	i.t.Helper()
	request := func() *http.Request {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer t0ken")
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		return r
	}
	w := httptest.NewRecorder()
	i.handler.ServeHTTP(w, request())
	a := answer{status: w.Code, header: w.Result().Header, body: w.Body.Bytes()}
	require.NoError(i.t, i.document(request(), a), "%s %s answered %d %s", method, path, a.status, a.body)
	return a
}

func (i *instance) document(r *http.Request, a answer) error {
	route, params, err := i.router.FindRoute(r)
	if err != nil {
		return fmt.Errorf("the document does not know it: %w", err)
	}
	options := &openapi3filter.Options{IncludeResponseStatus: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}
	in := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route, Options: options}
	if a.status < 300 {
		if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil {
			return err
		}
	}
	return openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: a.status, Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body)), Options: options,
	})
}

// value reads an answer of 200.
func value[T any](t require.TestingT, a answer) T {
	var v T
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	require.NoError(t, json.Unmarshal(a.body, &v))
	return v
}

// eventually waits for a condition that holds when the check complains of nothing.
func eventually(t *testing.T, check func(t require.TestingT)) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) { check(c) }, 60*time.Second, 50*time.Millisecond)
}

func (s *system) exec(query string, args ...any) {
	s.t.Helper()
	_, err := s.pool.Exec(s.t.Context(), query, args...)
	require.NoError(s.t, err)
}

// send produces an event in the envelope.
func (s *system) send(topic, key string, payload map[string]any) (partition int32, offset int64) {
	s.t.Helper()
	value, err := json.Marshal(map[string]any{
		"EventId": uuid.NewString(), "AggregateId": key, "AggregateType": "x", "TenantId": tenant,
		"CreatedAt": time.Now().UTC().Format(time.RFC3339Nano), "ContractVersion": 1, "Payload": payload,
	})
	require.NoError(s.t, err)
	r, err := s.producer.ProduceSync(s.t.Context(), &kgo.Record{Topic: topic, Key: []byte(key), Value: value}).First()
	require.NoError(s.t, err)
	return r.Partition, r.Offset
}

// crc is librdkafka's partitioner for records with a key.
func crc(key []byte, n int) int { return int(crc32.ChecksumIEEE(key) % uint32(n)) }
