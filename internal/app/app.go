package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
	"github.com/pin-marketplace/vitrina/views"
)

// Deps are what the program is given from outside. All fields are required.
type Deps struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Tracing    *telemetry.Tracing
	Clock      func() time.Time
}

// App is the running program: the consumers of the configured roles. Close it after Run.
type App struct {
	cfg       *config.Config
	deps      Deps
	instance  string
	kafka     stream.KafkaConfig
	admin     *stream.Admin
	client    *kgo.Client
	pool      *pgxpool.Pool
	facts     *clickhouse.Conn // the sink's own: slow questions of the API must not keep it waiting for a connection
	reads     *clickhouse.Conn // the API's
	events    *telemetry.EventLog
	promotion *telemetry.Promotion
	views     *telemetry.Popularity
	price     *telemetry.Price
	lag       *telemetry.GroupLag
	ready     *telemetry.Roles
	flag      atomic.Bool // catalog.promotions.enabled
	lags      lagBoard
	roles     []*role
	queries   *views.Service // nil without the role api
}

// New connects to nothing yet: a dependency that is away is an outage, not an error of construction. ctx bounds background
// work of the clients only.
func New(ctx context.Context, cfg *config.Config, deps Deps) (*App, error) {
	instance, err := cfg.InstanceID()
	if err != nil {
		return nil, err
	}
	a := &App{cfg: cfg, deps: deps, instance: instance}
	a.flag.Store(cfg.Catalog.Promotions.Enabled)
	a.events = telemetry.NewEventLog(deps.Logger, cfg.Log.EventsPerSecond, deps.Clock)
	a.measure()
	if err := a.connect(ctx); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	for _, name := range cfg.Roles {
		var r *role
		switch name {
		case config.RolePromotion:
			r = newRole(name, a.promotionGate, cfg.Backoff.Config(), deps.Logger, a.buildPromotion)
		case config.RolePopularity:
			r = newRole(name, a.popularityGate, cfg.Backoff.Config(), deps.Logger, a.buildPopularity)
		case config.RolePrice:
			r = newRole(name, a.priceGate, cfg.Backoff.Config(), deps.Logger, a.buildPrice)
		default:
			continue
		}
		r.stopTimeout = a.cfg.Runtime.PipelineTimeout()
		r.failed = func() { a.ready.Restarted(name) }
		a.roles = append(a.roles, r)
	}
	if a.needs(config.RoleAPI) {
		if a.queries, err = a.newQueries(); err != nil {
			return nil, errors.Join(err, a.Close())
		}
	}
	return a, nil
}

// measure registers every metric of the contracts, whatever the roles: a dashboard must not lack a name.
func (a *App) measure() {
	reg := a.deps.Registerer
	a.promotion = telemetry.NewPromotion(reg)
	a.views = telemetry.NewPopularity(reg, a.cfg.Popularity.ViewSources)
	a.price = telemetry.NewPrice(reg)
	var inputs []telemetry.GroupTopic
	var consumers, topics []string
	for _, c := range config.Consumers() {
		consumers, topics = append(consumers, c.Role), append(topics, c.Topic)
		inputs = append(inputs, telemetry.GroupTopic{Group: c.Group, Topic: c.Topic})
		if c.Role != config.RolePrice {
			inputs = append(inputs, telemetry.GroupTopic{Group: c.Group, Topic: c.LoopTopic()})
		}
	}
	a.lag = telemetry.NewGroupLag(reg, inputs...)
	a.ready = telemetry.NewRoles(reg, config.Roles(), consumers, []string{
		string(codecs.CodeUndecodable), string(codecs.CodeInvalidField), string(codecs.CodeValueOutOfRange),
		string(codecs.CodeOptimisticLockConflict), string(codecs.CodePropertyObjectNotFound), string(codecs.CodeDatabaseRejected),
		string(codecs.CodeRecordTooLarge),
	}, topics)
}

func (a *App) connect(ctx context.Context) error {
	var err error
	if a.kafka, err = KafkaConfig(a.cfg, a.deps.Clock); err != nil {
		return err
	}
	if a.admin, err = stream.NewAdmin(a.kafka); err != nil {
		return err
	}
	if a.client, err = kgo.NewClient(append(a.kafka.KgoOpts(), deadletter.ClientOptions()...)...); err != nil {
		return fmt.Errorf("making the producer of dead letters: %w", err)
	}
	if a.pool, err = postgres.NewPool(ctx, a.cfg.Postgres.DSN.Reveal(), a.poolOptions()); err != nil {
		return err
	}
	for role, conn := range map[string]**clickhouse.Conn{config.RolePrice: &a.facts, config.RoleAPI: &a.reads} {
		if !a.needs(role) || a.cfg.ClickHouse.DSN == "" {
			continue
		}
		if *conn, err = clickhouse.Open(a.clickhouseConfig()); err != nil {
			return err
		}
	}
	return nil
}

func (a *App) poolOptions() postgres.PoolOptions {
	o := postgres.PoolOptions{
		ApplicationName: "vitrina " + a.instance, MaxConns: int32(a.cfg.Postgres.MaxConns), //nolint:gosec // validated: 1 to 1000
		StatementTimeout: a.cfg.Postgres.StatementTimeout,
	}
	if a.deps.Tracing.Enabled() {
		o.Tracer = a.deps.Tracing.Provider()
	}
	return o
}

// needs tells whether any of the roles runs here.
func (a *App) needs(roles ...string) bool {
	return slices.ContainsFunc(roles, func(r string) bool { return slices.Contains(a.cfg.Roles, r) })
}

// Run runs every role until ctx ends or one of them cannot go on in this process.
func (a *App) Run(ctx context.Context) error {
	eventsCtx, stopEvents := context.WithCancel(context.WithoutCancel(ctx))
	var events errgroup.Group
	events.Go(func() error { return a.events.Run(eventsCtx) })

	g, ctx := errgroup.WithContext(ctx)
	for _, r := range a.roles {
		g.Go(func() error {
			if err := r.Run(ctx); err != nil {
				return fmt.Errorf("role %s: %w", r.name, err)
			}
			return nil
		})
	}
	g.Go(func() error { return a.runQueries(ctx) })
	g.Go(func() error { return a.runOperations(ctx) })
	g.Go(func() error { return a.watchReadiness(ctx) })
	g.Go(func() error { return a.followLag(ctx) })
	err := g.Wait()
	stopEvents()
	return errors.Join(err, events.Wait())
}

// watchReadiness keeps vitrina_role_ready, vitrina_consumer_group_held and the processors' part of vitrina_role_restarts_total true.
func (a *App) watchReadiness(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	seen := make(map[string]int)
	for {
		for _, s := range a.Status() {
			a.ready.SetReady(s.Role, s.Ready)
			if c, ok := config.ConsumerOf(s.Role); ok {
				a.lag.SetHeld(c.Group, s.State == stateHeld)
			}
			if s.Stream == nil {
				seen[s.Role] = 0
				continue
			}
			if s.Stream.Restarts < seen[s.Role] {
				seen[s.Role] = 0 // another processor
			}
			for ; seen[s.Role] < s.Stream.Restarts; seen[s.Role]++ {
				a.ready.Restarted(s.Role)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Close closes the clients. Call it after Run.
func (a *App) Close() error {
	if a.client != nil {
		a.client.Close()
	}
	if a.admin != nil {
		a.admin.Close()
	}
	if a.pool != nil {
		a.pool.Close()
	}
	var errs []error
	for _, conn := range []*clickhouse.Conn{a.facts, a.reads} {
		if conn != nil {
			errs = append(errs, conn.Close())
		}
	}
	return errors.Join(errs...)
}

// Status is what each role of this instance is doing.
func (a *App) Status() []RoleStatus {
	out := make([]RoleStatus, 0, len(a.roles)+1)
	for _, r := range a.roles {
		out = append(out, r.Status())
	}
	if a.queries != nil {
		s := a.queries.State()
		out = append(out, RoleStatus{Role: config.RoleAPI, Ready: s.Ready, State: s.State, Reason: s.Reason})
	}
	return out
}

// Runtime is the present processor of a role, nil while it does not run.
func (a *App) Runtime(role string) *stream.Runtime {
	for _, r := range a.roles {
		if r.name == role {
			return r.current.Load()
		}
	}
	return nil
}

// Apply takes over the settings that may change while the program runs.
func (a *App) Apply(_ context.Context, next *config.Config) {
	a.flag.Store(next.Catalog.Promotions.Enabled)
	for _, r := range a.roles {
		r.ask()
	}
}

// PromotionsEnabled is the feature flag catalog.promotions.enabled.
func (a *App) PromotionsEnabled() bool { return a.flag.Load() }

// Pool is the connection pool to the catalog's database, shared by sinks and queries.
func (a *App) Pool() *pgxpool.Pool { return a.pool }

// Admin is the shared administration client.
func (a *App) Admin() *stream.Admin { return a.admin }

// Facts is the connection for questions to ClickHouse; nil where none is configured.
func (a *App) Facts() *clickhouse.Conn { return cmp.Or(a.reads, a.facts) }

// Kafka is how the brokers are reached.
func (a *App) Kafka() stream.KafkaConfig { return a.kafka }

// Instance is this process's name.
func (a *App) Instance() string { return a.instance }
