package views

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/lovoo/goka/storage"
	"golang.org/x/sync/errgroup"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/internal/stream/tablestore"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
	"github.com/pin-marketplace/vitrina/views/pricehistory"
)

// RoleState is what a consumer role of this instance is doing.
type RoleState struct {
	Ready  bool
	State  string
	Reason string
	Stream *stream.State // nil while it has no processor
}

// Host is the instance that the API is part of.
type Host interface {
	// Role describes a consumer role; false when this instance does not run it.
	Role(name string) (RoleState, bool)
	// Lookup reads a key of a role's group table from the partitions that this instance owns. A *stream.NotHereError says that
	// it cannot, nil that there is no such key.
	Lookup(role, key string) ([]byte, error)
	// Retries is how often the role tried again since the instance started.
	Retries(role string) int64
	// PromotionsEnabled is the feature flag catalog.promotions.enabled.
	PromotionsEnabled() bool
}

// Options are what a Service works with. All fields but Facts are required.
type Options struct {
	Config   *config.Config
	Instance string
	Host     Host
	Pool     *pgxpool.Pool
	Admin    *stream.Admin
	Kafka    stream.KafkaConfig
	Facts    pricehistory.Source // nil without a ClickHouse
	Logger   *slog.Logger
	Events   *telemetry.EventLog
	Clock    func() time.Time
}

// Service answers questions. All methods are safe for concurrent use; Run may be called once.
type Service struct {
	cfg      *config.Config
	instance string
	host     Host
	pool     *pgxpool.Pool
	admin    *stream.Admin
	prices   *pricehistory.Reader
	logger   *slog.Logger
	events   *telemetry.EventLog
	clock    func() time.Time
	document []byte

	promotion, popularity config.Consumer
	purchases             *table
	marks                 *table // nil unless views.marks
	samplers              map[string]*sampler
	slots                 chan struct{} // questions to PostgreSQL under way: the sinks share its connections

	mu     sync.Mutex
	health health
}

// health is what the last look at the database said.
type health struct {
	known       bool
	database    error
	projections map[string]postgres.Projection
	topics      map[string]stream.Topic // that exist, of those that views and marks depend on
	broker      error
	stuck       map[*table]int64 // copies that do not follow their tables, with how far they are behind
}

// New makes a service that connects to nothing yet.
func New(o Options) (*Service, error) {
	if o.Config == nil || o.Host == nil || o.Pool == nil || o.Admin == nil || o.Logger == nil || o.Events == nil || o.Clock == nil {
		return nil, errors.New("the API needs a configuration, a host, a pool, an admin client, loggers and a clock")
	}
	s := &Service{
		cfg: o.Config, instance: o.Instance, host: o.Host, pool: o.Pool, admin: o.Admin, logger: o.Logger, events: o.Events, clock: o.Clock,
		samplers: make(map[string]*sampler), slots: make(chan struct{}, max(1, o.Config.Postgres.MaxConns/2)),
	}
	var err error
	if s.document, err = document(); err != nil {
		return nil, err
	}
	if o.Facts != nil {
		s.prices = pricehistory.New(o.Facts)
	}
	for _, c := range config.Consumers() {
		s.samplers[c.Role] = newSampler(c, o.Admin, o.Clock)
	}
	s.promotion, s.popularity = config.PromotionConsumer(), config.PopularityConsumer()
	s.purchases = s.newTable(s.promotion, o.Config.Promotion.Hasher, o)
	if o.Config.Views.Marks {
		s.marks = s.newTable(s.popularity, o.Config.Popularity.Hasher, o)
	}
	return s, nil
}

func (s *Service) newTable(c config.Consumer, hasher string, o Options) *table {
	return newTable(stream.ViewOptions{
		Kafka: o.Kafka, Admin: o.Admin, Group: c.Group, Codec: codecs.Bytes{}, Hasher: stream.Hasher(hasher), StateDir: o.Config.State.Dir,
		Backoff: o.Config.Backoff.Config(), Logger: o.Logger,
	}, func(dir string) storage.Builder {
		return tablestore.Builder(tablestore.Config{Dir: dir, Follow: true}, o.Logger, nil)
	}, o.Clock)
}

// lookInterval is how often the database and the table topics are looked at for readiness.
const lookInterval = 2 * time.Second

// Run keeps the views and the readings that rates are made from until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.purchases.Run(ctx) })
	if s.marks != nil {
		g.Go(func() error { return s.marks.Run(ctx) })
	}
	for _, sampler := range s.samplers {
		g.Go(func() error {
			every(ctx, s.cfg.Runtime.LagInterval, func() {
				_, _ = sampler.now(ctx) // whoever asks next is told
			})
			return nil
		})
	}
	g.Go(func() error {
		every(ctx, lookInterval, func() { s.look(ctx) })
		return nil
	})
	return g.Wait() //nolint:wrapcheck // its parts' errors say what they did
}

// every does something now and at each interval until ctx ends.
func every(ctx context.Context, interval time.Duration, do func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		do()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// tables are the copies that this instance keeps, by role.
func (s *Service) tables() map[string]*table {
	tables := map[string]*table{config.RolePromotion: s.purchases}
	if s.marks != nil {
		tables[config.RolePopularity] = s.marks
	}
	return tables
}

// look asks the database for the projections and the broker for the topics.
func (s *Service) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, brokerTimeout)
	defer cancel()
	h := health{known: true, projections: make(map[string]postgres.Projection)}
	for _, name := range []string{postgres.PromotionBoost, postgres.Popularity} {
		p, err := postgres.ReadProjection(ctx, s.pool, name)
		if err != nil {
			h.database = err
			break
		}
		h.projections[name] = p
	}
	h.topics, h.broker = s.admin.Topics(ctx, s.promotion.TableTopic(), s.popularity.TableTopic(), s.popularity.Topic, s.popularity.LoopTopic())
	h.stuck = make(map[*table]int64)
	for role, t := range s.tables() {
		at, err := s.samplers[role].now(ctx)
		if err != nil {
			h.broker = errors.Join(h.broker, err)
			continue
		}
		if lag, _, stuck := t.behind(at.topics[stream.TableTopic(t.opts.Group)]); stuck {
			h.stuck[t] = lag
		}
	}
	s.mu.Lock()
	s.health = h
	s.mu.Unlock()
}

func (s *Service) seen() health {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.health
}

// rebuilding tells whether a projection was closed for a rebuild when it was last looked at.
func (s *Service) rebuilding(projection string) bool {
	p, ok := s.seen().projections[projection]
	return ok && !p.Open
}

// State is what the role api is doing: ready when the database answers and the views have been read to their ends. It answers at
// once.
func (s *Service) State() RoleState {
	h := s.seen()
	switch {
	case !h.known:
		return RoleState{State: "starting", Reason: "the database was not asked yet"}
	case h.database != nil:
		detail, _ := outage(h.database, brokerTimeout)
		return RoleState{State: "waiting", Reason: detail}
	}
	for _, t := range s.tables() {
		topic := stream.TableTopic(t.opts.Group)
		if lag, stuck := h.stuck[t]; stuck {
			return RoleState{State: "stalled", Reason: fmt.Sprintf("the copy of %s is %d records behind and has not moved for %s", topic, lag, patience)}
		}
		if t.ready() {
			continue
		}
		_, exists := h.topics[topic]
		failure := t.failure()
		switch {
		case failure != nil && (exists || h.broker != nil):
			return RoleState{State: "waiting", Reason: "the copy of " + topic + " cannot be kept and is tried again: " + strings.Join(strings.Fields(failure.Error()), " ")}
		case exists || h.broker != nil:
			return RoleState{State: "recovering", Reason: "reading " + topic + " for the first time"}
		case t == s.purchases && !s.host.PromotionsEnabled():
			// The consumer is off and never ran: there is nothing to wait for (D35).
		default:
			return RoleState{State: "waiting", Reason: "topic " + topic + " does not exist: its consumer creates it, or vitrina topics apply"}
		}
	}
	return RoleState{Ready: true, State: "running"}
}

// withDatabase does something with PostgreSQL, as one of a bounded number, so that questions never take the sinks' connections.
func (s *Service) withDatabase(ctx context.Context, do func() error) error {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
		return do()
	case <-ctx.Done():
		return fmt.Errorf("waiting for a turn at PostgreSQL: %w", ctx.Err())
	}
}
