package config

import (
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pin-marketplace/vitrina/internal/backoff"
)

// Hashers are the partitioners the consumers can compute.
func Hashers() []string { return []string{"crc32", "murmur2", "fnv1a"} }

// Mechanisms are the SASL mechanisms.
func Mechanisms() []string {
	return []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"}
}

// Validate checks a configuration that was made or changed in code. The error is of type Faults.
func (c *Config) Validate() error {
	f := &faults{}
	c.validate(f)
	return f.err()
}

// Require checks that what the given roles need is set. The error is of type Faults.
func (c *Config) Require(roles ...string) error {
	f := &faults{}
	if c.ClickHouse.DSN == "" && (slices.Contains(roles, RolePrice)) {
		f.add("clickhouse.dsn", "is needed by role %s: set VITRINA_CLICKHOUSE_DSN or VITRINA_CLICKHOUSE_DSN_FILE, or leave %s out of roles", RolePrice, RolePrice)
	}
	return f.err()
}

func (c *Config) validate(f *faults) {
	c.validateRoles(f)
	c.validateKafka(f)
	c.validateDatabases(f)
	c.validateHTTPAndLog(f)
	c.validateRuntime(f)
	c.validateConsumers(f)
}

func (c *Config) validateRoles(f *faults) {
	if len(c.Roles) == 0 {
		f.add("roles", "must name at least one of %s", strings.Join(Roles(), ", "))
	}
	for i, role := range c.Roles {
		if !slices.Contains(Roles(), role) {
			f.add("roles", "%q is not a role; there are %s", role, strings.Join(Roles(), ", "))
		}
		if slices.Contains(c.Roles[:i], role) {
			f.add("roles", "%q is there twice", role)
		}
	}
}

func (c *Config) validateKafka(f *faults) {
	k := &c.Kafka
	if len(k.Brokers) == 0 {
		f.add("kafka.brokers", "must name at least one broker as host:port")
	}
	for _, broker := range k.Brokers {
		if problem := hostPort(broker, false); problem != "" {
			f.add("kafka.brokers", "%q: %s", broker, problem)
		}
	}
	if v, err := sarama.ParseKafkaVersion(k.Version); err != nil || !v.IsAtLeast(sarama.V2_8_0_0) {
		f.add("kafka.version", "must be a Kafka version such as 2.8.0, which is the oldest with topic ids")
	} else if !sarama.MaxVersion.IsAtLeast(v) {
		f.add("kafka.version", "is %s; the newest that this program speaks is %s, and a newer broker speaks that too", v, sarama.MaxVersion)
	}
	if k.SessionTimeout < 10*time.Second {
		f.add("kafka.session_timeout", "is %s; below 10s every rebalance ends in the next one", shortDuration(k.SessionTimeout))
	}
	if k.RebalanceTimeout < k.SessionTimeout {
		f.add("kafka.rebalance_timeout", "is %s; it must not lie below kafka.session_timeout (%s)", shortDuration(k.RebalanceTimeout), shortDuration(k.SessionTimeout))
	}
	between(f, "kafka.replication_factor", k.ReplicationFactor, 0, 32767)
	between(f, "kafka.min_insync_replicas", k.MinInsyncReplicas, 0, 32767)
	if k.ReplicationFactor > 0 && k.MinInsyncReplicas > k.ReplicationFactor {
		f.add("kafka.min_insync_replicas", "%d is above kafka.replication_factor (%d): nothing could be written", k.MinInsyncReplicas, k.ReplicationFactor)
	}
	if k.TLS.CertFile == "" != (k.TLS.KeyFile == "") {
		f.add("kafka.tls.cert_file", "a client certificate needs both cert_file and key_file")
	} else if _, err := k.TLS.Build(); err != nil {
		f.add("kafka.tls", "%s", err)
	}
	c.validateSASL(f)
}

func (c *Config) validateSASL(f *faults) {
	s := &c.Kafka.SASL
	missing := func(key string, set bool) {
		if !set {
			f.add(key, "is needed by kafka.sasl.mechanism %s", s.Mechanism)
		}
	}
	switch s.Mechanism {
	case "":
		if s.Username != "" || s.Password != "" || s.Token != "" || s.TokenFile != "" || s.TokenURL != "" {
			f.add("kafka.sasl.mechanism", "is empty although credentials are set: choose one of %s", strings.Join(Mechanisms(), ", "))
		}
	case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
		missing("kafka.sasl.username", s.Username != "")
		missing("kafka.sasl.password", s.Password != "")
	case "OAUTHBEARER":
		ways := 0
		for _, set := range []bool{s.Token != "", s.TokenFile != "", s.TokenURL != ""} {
			if set {
				ways++
			}
		}
		if ways != 1 {
			f.add("kafka.sasl.mechanism", "OAUTHBEARER needs exactly one of kafka.sasl.token_file, kafka.sasl.token_url and kafka.sasl.token")
		}
		if s.TokenURL != "" {
			if u, err := url.Parse(s.TokenURL); err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" {
				f.add("kafka.sasl.token_url", "must be an http or https URL")
			}
			missing("kafka.sasl.client_id", s.ClientID != "")
			missing("kafka.sasl.client_secret", s.ClientSecret != "")
		}
	default:
		f.add("kafka.sasl.mechanism", "%q is not one of %s", s.Mechanism, strings.Join(Mechanisms(), ", "))
	}
}

// The drivers' own errors quote the connection string, and not always without its password.
func (c *Config) validateDatabases(f *faults) {
	if dsn := c.Postgres.DSN.Reveal(); dsn != "" {
		if _, err := pgconn.ParseConfig(dsn); err != nil {
			f.add("postgres.dsn", "cannot be read: write postgres://user:password@host:5432/database?sslmode=verify-full, special characters in the password percent-encoded, or libpq keywords (host=... user=... dbname=...)")
		}
	}
	between(f, "postgres.max_conns", c.Postgres.MaxConns, 2, 1000)
	if c.Postgres.StatementTimeout < time.Second {
		f.add("postgres.statement_timeout", "is %s; it must be 1s at least, or statements that are only slow are cancelled for ever", shortDuration(c.Postgres.StatementTimeout))
	}
	if dsn := c.ClickHouse.DSN.Reveal(); dsn != "" {
		if _, err := clickhouse.ParseDSN(dsn); err != nil || !strings.Contains(dsn, "://") {
			f.add("clickhouse.dsn", "cannot be read: write clickhouse://user:password@host:9000/pin_analytics?secure=true, special characters in the password percent-encoded")
		}
	}
	positive(f, "clickhouse.query_timeout", c.ClickHouse.QueryTimeout)
	positive(f, "clickhouse.insert_timeout", c.ClickHouse.InsertTimeout)
	if c.ClickHouse.InsertTimeout >= c.Kafka.RebalanceTimeout {
		f.add("clickhouse.insert_timeout", "is %s; it must lie below kafka.rebalance_timeout (%s), or an insert can outlive its partition", shortDuration(c.ClickHouse.InsertTimeout), shortDuration(c.Kafka.RebalanceTimeout))
	}
}

func (c *Config) validateHTTPAndLog(f *faults) {
	if problem := hostPort(c.HTTP.Addr, true); problem != "" {
		f.add("http.addr", "%q: %s", c.HTTP.Addr, problem)
	}
	if token := c.HTTP.AdminToken.Reveal(); strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		f.add("http.admin_token", "may hold visible ASCII characters only, no spaces: it is sent in a header")
	}
	between(f, "http.max_body_bytes", c.HTTP.MaxBodyBytes, 1024, 64<<20)
	positive(f, "http.request_timeout", c.HTTP.RequestTimeout)
	if _, err := c.Log.SlogLevel(); err != nil {
		f.add("log.level", "%q is not one of debug, info, warn, error", c.Log.Level)
	}
	between(f, "log.events_per_second", c.Log.EventsPerSecond, 0, 1_000_000)
}

func (c *Config) validateRuntime(f *faults) {
	if c.State.Dir == "" {
		f.add("state.dir", "must name a directory")
	}
	if err := c.Backoff.Config().Validate(); err != nil {
		f.add("backoff.min", "%s", err)
	}
	positive(f, "runtime.stall_timeout", c.Runtime.StallTimeout)
	positive(f, "runtime.lag_interval", c.Runtime.LagInterval)
	positive(f, "runtime.shutdown_timeout", c.Runtime.ShutdownTimeout)
	positive(f, "runtime.drain_timeout", c.Runtime.DrainTimeout)
	if longest := c.Runtime.ProcessorTimeout() - unwind; c.Runtime.DrainTimeout > longest {
		f.add("runtime.drain_timeout", "is %s; it must be %s at most, %s below runtime.shutdown_timeout (%s): while a database hangs nothing ends before it is over, and processors, dead letters and traces need the rest",
			shortDuration(c.Runtime.DrainTimeout), shortDuration(max(0, longest)), shortDuration(c.Runtime.ShutdownTimeout-longest), shortDuration(c.Runtime.ShutdownTimeout))
	}
	between(f, "dead_letters.max_returns", c.DeadLetters.MaxReturns, 1, 1000)
	between(f, "dead_letters.replay_rate", c.DeadLetters.ReplayRate, 1, 1_000_000)
}

func (c *Config) validateConsumers(f *faults) {
	oneOf(f, "promotion.hasher", c.Promotion.Hasher, Hashers())
	oneOf(f, "popularity.hasher", c.Popularity.Hasher, Hashers())
	between(f, "promotion.batch_rows", c.Promotion.BatchRows, 1, 50_000)
	between(f, "popularity.batch_rows", c.Popularity.BatchRows, 1, 50_000)
	between(f, "popularity.writers", c.Popularity.Writers, 1, 8)
	between(f, "price.batch_rows", c.Price.BatchRows, 1, 1_000_000)
	between(f, "promotion.buffer_bytes", c.Promotion.BufferBytes, 1<<20, 1<<30)
	between(f, "popularity.buffer_bytes", c.Popularity.BufferBytes, 1<<20, 1<<30)
	between(f, "price.buffer_bytes", c.Price.BufferBytes, 1<<20, 1<<30)
	positive(f, "promotion.batch_interval", c.Promotion.BatchInterval)
	positive(f, "popularity.batch_interval", c.Popularity.BatchInterval)
	positive(f, "price.batch_interval", c.Price.BatchInterval)
	positive(f, "promotion.reconcile_interval", c.Promotion.ReconcileInterval)
	positive(f, "promotion.sweep_interval", c.Promotion.SweepInterval)
	positive(f, "popularity.retry_interval", c.Popularity.RetryInterval)
	positive(f, "popularity.prune_interval", c.Popularity.PruneInterval)

	p := &c.Popularity
	if len(p.ViewSources) == 0 {
		f.add("popularity.view_sources", "must name at least one source")
	}
	for i, source := range p.ViewSources {
		switch {
		case source == "":
			f.add("popularity.view_sources", "holds an empty name")
		case source == "Unknown":
			f.add("popularity.view_sources", "Unknown is what every other source is called")
		case slices.Contains(p.ViewSources[:i], source):
			f.add("popularity.view_sources", "%q is there twice", source)
		}
	}
	if len(p.RetryDelays) == 0 {
		f.add("popularity.retry_delays", "must hold at least one wait")
	}
	var total time.Duration
	for _, d := range p.RetryDelays {
		if d <= 0 {
			f.add("popularity.retry_delays", "%s is not above 0", shortDuration(d))
		}
		total += d
	}
	if p.LedgerWindow < time.Hour || p.LedgerWindow < total {
		f.add("popularity.ledger_window", "is %s; it must be an hour at least and not below the sum of popularity.retry_delays (%s)", shortDuration(p.LedgerWindow), shortDuration(total))
	}
	if p.PruneInterval > p.LedgerWindow {
		f.add("popularity.prune_interval", "is %s; it must not lie above popularity.ledger_window (%s), or most of the ledger is older than that", shortDuration(p.PruneInterval), shortDuration(p.LedgerWindow))
	}
	if c.Price.Replicated && c.Price.Cluster == "" {
		f.add("price.cluster", "is needed when price.replicated is on")
	}
}

func between(f *faults, key string, value, low, high int) {
	if value < low || value > high {
		f.add(key, "is %d; it must lie between %d and %d", value, low, high)
	}
}

func positive(f *faults, key string, d time.Duration) {
	if d <= 0 {
		f.add(key, "is %s; it must be above 0", shortDuration(d))
	}
}

func oneOf(f *faults, key, value string, known []string) {
	if !slices.Contains(known, value) {
		f.add(key, "%q is not one of %s", value, strings.Join(known, ", "))
	}
}

// hostPort says what is wrong with an address, or nothing. A listening address may leave out the host.
func hostPort(addr string, listen bool) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "must be host:port"
	}
	if host == "" && !listen {
		return "must name a host before the port"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 || (n == 0 && !listen) {
		return "the port must be a number up to 65535"
	}
	return ""
}

// Config is the backoff in the form of the package that waits.
func (b Backoff) Config() backoff.Config { return backoff.Config{Min: b.Min, Max: b.Max} }

// SlogLevel is the log level in the form of log/slog.
func (l Log) SlogLevel() (slog.Level, error) {
	var level slog.Level
	err := level.UnmarshalText([]byte(l.Level))
	return level, err
}
