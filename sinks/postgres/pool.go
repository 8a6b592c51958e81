// Package postgres holds the sinks that write the catalog's cards: promotion boosts (design E5) and view counters (E4),
// with their schema, and the queries that explain what they wrote. Everything this project owns lives in schema vitrina;
// the cards belong to the catalog service (contracts, section 3).
package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"go.opentelemetry.io/otel/trace"
)

// PoolOptions bound what one session may do to the database it shares with the catalog. Zero fields take the default
// named beside them.
type PoolOptions struct {
	ApplicationName string // shown in pg_stat_activity; "vitrina"
	MaxConns        int32  // 8
	// StatementTimeout ends a statement on the server, whatever became of this process: 30 s.
	StatementTimeout time.Duration
	// LockTimeout ends a wait for a rival's lock, so that a rival which hangs inside its transaction does not make the
	// sink sit on its own locks for the whole StatementTimeout: 5 s.
	LockTimeout time.Duration
	// IdleInTransactionTimeout frees the locks of an instance that froze between two messages of a transaction: 5 s.
	IdleInTransactionTimeout time.Duration
	// ConnectTimeout bounds one connection attempt: 10 s.
	ConnectTimeout time.Duration
	// Tracer makes a span of every statement; nil traces nothing.
	Tracer trace.TracerProvider
}

func (o PoolOptions) withDefaults() PoolOptions {
	o.ApplicationName = cmp.Or(o.ApplicationName, "vitrina")
	o.MaxConns = cmp.Or(o.MaxConns, 8)
	o.StatementTimeout = cmp.Or(o.StatementTimeout, 30*time.Second)
	o.LockTimeout = cmp.Or(o.LockTimeout, 5*time.Second)
	o.IdleInTransactionTimeout = cmp.Or(o.IdleInTransactionTimeout, 5*time.Second)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 10*time.Second)
	return o
}

// NewPool returns a pool for the sinks and queries. It does not connect yet: a database that is away is an outage that the
// callers retry, not an error of construction. An error means that the DSN (URL or libpq keywords; PG* variables fill
// what it leaves out) cannot be read; it never shows the password. Settings that the DSN names win over the options.
//
// The settings travel as startup parameters, so a pooler between must keep sessions (or ignore them: then they do not bind).
func NewPool(ctx context.Context, dsn string, opts PoolOptions) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("postgres.dsn cannot be read (URL postgres://user:pass@host:5432/db or libpq keywords): %w", err)
	}
	opts = opts.withDefaults()
	if !strings.Contains(dsn, "pool_max_conns") { // ParseConfig has taken it out of the parameters
		cfg.MaxConns = opts.MaxConns
	}
	configure(cfg.ConnConfig, opts)
	// One plan for all sizes of batch: a plan made for 20,000 ids hashes the cards, was three times slower, and takes row
	// locks in no order (design, section 4).
	setParam(cfg.ConnConfig, "plan_cache_mode", "force_generic_plan")
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		registerEncodedArrays(conn.TypeMap())
		return demandDurableCommits(ctx, conn)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("making the PostgreSQL pool: %w", err)
	}
	return pool, nil
}

// OpenMigrator returns a database/sql handle for Migrate: without a statement timeout, because an index or a sweep over a
// large table may take minutes, but with the lock timeout, because a waiting ALTER TABLE stops everybody behind it.
func OpenMigrator(dsn string, opts PoolOptions) (*sql.DB, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("postgres.dsn cannot be read (URL postgres://user:pass@host:5432/db or libpq keywords): %w", err)
	}
	opts = opts.withDefaults()
	opts.StatementTimeout = 0
	configure(cfg, opts)
	return stdlib.OpenDB(*cfg), nil
}

func configure(cfg *pgx.ConnConfig, opts PoolOptions) {
	setParam(cfg, "application_name", opts.ApplicationName)
	setParam(cfg, "statement_timeout", millis(opts.StatementTimeout))
	setParam(cfg, "lock_timeout", millis(opts.LockTimeout))
	setParam(cfg, "idle_in_transaction_session_timeout", millis(opts.IdleInTransactionTimeout))
	setParam(cfg, "default_transaction_isolation", "read committed")
	setParam(cfg, "TimeZone", "UTC")
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = opts.ConnectTimeout
	}
	// By default pgx drops the connection of a cancelled statement and leaves the server working on it, locks and all.
	cfg.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: time.Second}
	}
	if opts.Tracer != nil {
		cfg.Tracer = otelpgx.NewTracer(otelpgx.WithTracerProvider(opts.Tracer), otelpgx.WithDisableAcquireTracer())
	}
}

func setParam(cfg *pgx.ConnConfig, name, value string) {
	if _, given := cfg.RuntimeParams[name]; !given {
		cfg.RuntimeParams[name] = value
	}
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// demandDurableCommits undoes synchronous_commit = off of a role or server: an acknowledged batch releases Kafka offsets,
// so a batch that a crash of the server could forget would be lost. Stronger settings (remote_apply) are left alone.
func demandDurableCommits(ctx context.Context, conn *pgx.Conn) error {
	const statement = `SELECT pg_catalog.set_config('synchronous_commit', 'on', false)
		WHERE pg_catalog.current_setting('synchronous_commit') IN ('off', 'false', 'no', '0')`
	if _, err := conn.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("checking synchronous_commit: %w", err)
	}
	return nil
}
