// Package config reads the program's settings: defaults, over them a YAML file, over it VITRINA_ environment variables,
// over them flags (contracts, section 5). An unknown key anywhere is an error, every fault is reported at once, and no
// fault, print or log line shows a secret.
package config

import (
	"fmt"
	"os"
	"time"
)

// Config is every setting. The tags are the one source of names, defaults and the reference in docs/configuration.md: key
// is the YAML name, env the variable where it is not derived from the key, default the default, desc the description.
type Config struct {
	Roles       []string    `key:"roles" default:"promotion,popularity,price,api" desc:"What this instance runs: any of promotion, popularity, price, api."`
	Instance    Instance    `key:"instance"`
	Kafka       Kafka       `key:"kafka"`
	Postgres    Postgres    `key:"postgres"`
	ClickHouse  ClickHouse  `key:"clickhouse"`
	State       State       `key:"state"`
	HTTP        HTTP        `key:"http"`
	Log         Log         `key:"log"`
	Backoff     Backoff     `key:"backoff"`
	Runtime     Runtime     `key:"runtime"`
	Catalog     Catalog     `key:"catalog"`
	Promotion   Promotion   `key:"promotion"`
	Popularity  Popularity  `key:"popularity"`
	Price       Price       `key:"price"`
	Views       Views       `key:"views"`
	DeadLetters DeadLetters `key:"dead_letters"`
}

// Instance names this process among its like.
type Instance struct {
	ID string `key:"id" desc:"Stable name of this instance, unique in the deployment; the host name when empty. Goka assigns partitions in the order of member ids, so a name that changes at every start moves partitions for nothing."`
}

// InstanceID is instance.id, or the host name.
func (c *Config) InstanceID() (string, error) {
	if c.Instance.ID != "" {
		return c.Instance.ID, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("the host has no name: set instance.id: %w", err)
	}
	return host, nil
}

// Kafka is how the brokers are reached. Topic and group names are fixed by the contracts.
type Kafka struct {
	Brokers           []string      `key:"brokers" default:"127.0.0.1:9092" desc:"Brokers to start from, host:port, comma-separated."`
	ClientID          string        `key:"client_id" default:"vitrina" desc:"Client id the brokers see in their logs and quotas."`
	Version           string        `key:"version" default:"2.8.0" desc:"Kafka protocol spoken by the consumers, 2.8.0 (the first with topic ids) or newer; not above the oldest broker's version, nor above the newest that the client library knows."`
	SessionTimeout    time.Duration `key:"session_timeout" default:"30s" desc:"After how long without a heartbeat an instance loses its partitions. At least 10s: ending a session takes Goka 5s, and anything shorter rebalances for ever."`
	RebalanceTimeout  time.Duration `key:"rebalance_timeout" default:"2m" desc:"How long a rebalance waits for instances that are busy. Not below session_timeout."`
	ReplicationFactor int           `key:"replication_factor" default:"0" desc:"Replicas of the topics that vitrina topics apply creates; 0: the brokers' default.replication.factor. vitrina check warns below 3."`
	MinInsyncReplicas int           `key:"min_insync_replicas" default:"0" desc:"min.insync.replicas of those topics; 0: the brokers' own. Not above replication_factor."`
	TLS               TLS           `key:"tls"`
	SASL              SASL          `key:"sasl"`
}

// TLS is the encryption towards the brokers.
type TLS struct {
	Enabled            bool   `key:"enabled" default:"false" desc:"Encrypt the connections to the brokers. Implied by ca_file and cert_file."`
	CAFile             string `key:"ca_file" desc:"PEM file of the authorities that sign the brokers' certificates; the system's when empty."`
	CertFile           string `key:"cert_file" desc:"PEM file of the client certificate."`
	KeyFile            string `key:"key_file" desc:"PEM file of the client certificate's key."`
	ServerName         string `key:"server_name" desc:"Name expected in the brokers' certificates when it is not their host name."`
	InsecureSkipVerify bool   `key:"insecure_skip_verify" default:"false" desc:"Accept any certificate. For tests only: it makes the encryption worthless against an active attacker."`
}

// SASL is the authentication towards the brokers.
type SASL struct {
	Mechanism    string   `key:"mechanism" desc:"PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; empty: no authentication."`
	Username     string   `key:"username" desc:"User of PLAIN and SCRAM."`
	Password     Secret   `key:"password" desc:"Password of PLAIN and SCRAM."`
	Token        Secret   `key:"token" nofile:"true" desc:"Bearer token of OAUTHBEARER, for tests: it is not renewed."`
	TokenFile    string   `key:"token_file" desc:"File with the bearer token of OAUTHBEARER, read again at every connection, as Kubernetes renews it."`
	TokenURL     string   `key:"token_url" desc:"OAuth 2.0 token endpoint of OAUTHBEARER (client credentials)."`
	ClientID     string   `key:"client_id" desc:"Client of token_url."`
	ClientSecret Secret   `key:"client_secret" desc:"Secret of that client."`
	Scopes       []string `key:"scopes" desc:"Scopes asked of token_url, comma-separated."`
}

// Postgres is the catalog's database.
type Postgres struct {
	DSN              Secret        `key:"dsn" desc:"URL (postgres://user:password@host:5432/db?sslmode=verify-full) or libpq keywords. When empty, the PG* variables count (PGHOST, PGUSER, PGPASSWORD, PGSERVICE, ...)."`
	MaxConns         int           `key:"max_conns" default:"10" desc:"Connections of one instance at most."`
	StatementTimeout time.Duration `key:"statement_timeout" default:"30s" desc:"After how long a statement of the sinks is given up and tried again, 1s at least."`
}

// ClickHouse is the analytics database.
type ClickHouse struct {
	DSN           Secret        `key:"dsn" desc:"clickhouse://user:password@host:9000/pin_analytics?secure=true. Needed by role price. Role api runs without it: its price history then answers 503. Without it and role price, vitrina migrate leaves ClickHouse out."`
	InsertTimeout time.Duration `key:"insert_timeout" default:"30s" desc:"After how long an insert is given up and tried again; must lie below kafka.rebalance_timeout."`
	QueryTimeout  time.Duration `key:"query_timeout" default:"10s" desc:"After how long a query of the API is given up."`
}

// State is what an instance keeps on its own disk.
type State struct {
	Dir        string `key:"dir" default:".state" desc:"Directory of the local stores. Losing it costs a recovery from Kafka; beside them vitrina backfill keeps its checkpoints and reports of rejected rows here (without them a repeated run loads everything again, which collapses). It must not be shared between instances."`
	HotStandby bool   `key:"hot_standby" default:"false" desc:"Keep a second copy of the tables of partitions that other instances own: a failover then need not recover them first, at the price of disk and traffic."`
}

// HTTP is the server of health, metrics, API, console and administration.
type HTTP struct {
	Addr           string        `key:"addr" default:"127.0.0.1:8080" desc:"host:port to listen on; :8080 for every interface, port 0 for a free one."`
	AdminToken     Secret        `key:"admin_token" env:"VITRINA_ADMIN_TOKEN" desc:"Bearer token of /admin; without one /admin is refused."`
	MaxBodyBytes   int           `key:"max_body_bytes" default:"1048576" desc:"Largest request body, bytes."`
	RequestTimeout time.Duration `key:"request_timeout" default:"30s" desc:"After how long a request is given up."`
}

// Log is the program's log on standard error: JSON, one line an event.
type Log struct {
	Level           string `key:"level" default:"info" desc:"debug, info, warn or error."`
	EventsPerSecond int    `key:"events_per_second" default:"200" desc:"Lines a second of each event name; what is left out is summed in one line. 0 writes all of them."`
}

// Backoff bounds the wait between two tries of anything that failed.
type Backoff struct {
	Min time.Duration `key:"min" default:"1s" desc:"First wait after a failure; each further one doubles."`
	Max time.Duration `key:"max" default:"60s" desc:"Longest wait."`
}

// Runtime is how an instance watches and stops itself.
type Runtime struct {
	StallTimeout    time.Duration `key:"stall_timeout" default:"5m" desc:"Without progress for so long a partition makes its role, and so the instance, unready: its oldest record waits unfinished, or nothing is delivered although the broker has records; the latter also builds a new processor."`
	ShutdownTimeout time.Duration `key:"shutdown_timeout" default:"15s" desc:"Within this time after SIGTERM the program has ended."`
	DrainTimeout    time.Duration `key:"drain_timeout" default:"5s" desc:"The part of it in which sinks may still finish what they hold; at least 5s shorter."`
	LagInterval     time.Duration `key:"lag_interval" default:"5s" desc:"How often the groups' lag is asked of the broker."`
}

// ProcessorTimeout is how long after a stop the processors may take to end. They cannot before DrainTimeout while a database hangs.
func (r Runtime) ProcessorTimeout() time.Duration { return r.ShutdownTimeout - 3*time.Second }

// PipelineTimeout is when sinks and dead letters have ended as well; the rest is for the last spans and for closing the clients.
func (r Runtime) PipelineTimeout() time.Duration { return r.ShutdownTimeout - 2*time.Second }

// unwind is what a processor needs to end once its records are given up.
const unwind = 2 * time.Second

// Catalog holds the feature flags shared with the catalog service.
type Catalog struct {
	Promotions Promotions `key:"promotions"`
}

// Promotions is the feature flag of the promotion consumer.
type Promotions struct {
	Enabled bool `key:"enabled" default:"true" reload:"true" desc:"The feature flag catalog.promotions.enabled: off, the consumer is not subscribed, nothing is recomputed and boosts stay as they are. Reloaded while the program runs (SIGHUP, or the file changes)."`
}

// Promotion is the promotion boost consumer.
type Promotion struct {
	Hasher            string        `key:"hasher" default:"crc32" desc:"Partitioner of the topic's producers: crc32 (librdkafka, .NET), murmur2 (Java) or fnv1a (Goka, sarama). A wrong one is slower, never wrong."`
	BatchRows         int           `key:"batch_rows" default:"5000" desc:"Purchases in one transaction at most."`
	BatchInterval     time.Duration `key:"batch_interval" default:"100ms" desc:"Longest wait of the first purchase in a transaction."`
	BufferBytes       int           `key:"buffer_bytes" default:"67108864" desc:"Raw records that wait for a transaction or are in one, bytes; a partition pauses beyond."`
	ReconcileInterval time.Duration `key:"reconcile_interval" default:"15s" desc:"How often the cursor recompute looks for cards that came, moved or were published."`
	SweepInterval     time.Duration `key:"sweep_interval" default:"10m" desc:"How often every card is compared with the sum of its contributions."`
}

// Popularity is the view popularity consumer.
type Popularity struct {
	Hasher        string          `key:"hasher" default:"crc32" desc:"Partitioner of the topic's producers, as promotion.hasher."`
	ViewSources   []string        `key:"view_sources" default:"Catalog,Search,Selection" desc:"Known values of ViewSource, comma-separated; any other counts as Unknown, with a warning."`
	RetryDelays   []time.Duration `key:"retry_delays" default:"30s,1m,2m,4m,8m,16m" desc:"Waits before each further look for the card of a viewed object; after the last one the view is dead-lettered."`
	RetryInterval time.Duration   `key:"retry_interval" default:"1s" desc:"How often waiting views are looked through for those that are due."`
	LedgerWindow  time.Duration   `key:"ledger_window" default:"168h" desc:"How long the database remembers each counted view; the group table remembers longer. An hour at least, and not below the sum of popularity.retry_delays."`
	PruneInterval time.Duration   `key:"prune_interval" default:"5m" desc:"How often older rows are deleted, at most popularity.ledger_window."`
	BatchRows     int             `key:"batch_rows" default:"20000" desc:"Views in one transaction at most."`
	BatchInterval time.Duration   `key:"batch_interval" default:"100ms" desc:"Longest wait of the first view in a transaction."`
	BufferBytes   int             `key:"buffer_bytes" default:"67108864" desc:"Raw records that wait for a transaction or are in one, bytes for each writer; its partitions pause beyond."`
	Writers       int             `key:"writers" default:"2" desc:"Transactions at the same time at most; each partition's views go through one of them."`
}

// Price is the price history consumer.
type Price struct {
	BatchRows     int           `key:"batch_rows" default:"1000" desc:"Facts in one insert at most."`
	BatchInterval time.Duration `key:"batch_interval" default:"5s" desc:"Longest wait of the first fact in a batch."`
	BufferBytes   int           `key:"buffer_bytes" default:"67108864" desc:"Raw records that wait for an insert or are in one, bytes; a partition pauses beyond."`
	Cluster       string        `key:"cluster" desc:"ClickHouse cluster on which vitrina migrate creates the table (ON CLUSTER); empty: on the server of the DSN."`
	Replicated    bool          `key:"replicated" default:"false" desc:"Create the table as ReplicatedReplacingMergeTree."`
}

// Views is what is served from Goka views besides what this instance owns.
type Views struct {
	Marks bool `key:"marks" default:"false" desc:"Keep a full local view of the marks of all property object views. It is large; without it the instance that owns a key's partition answers."`
}

// DeadLetters bounds what may be put back.
type DeadLetters struct {
	MaxReturns int `key:"max_returns" default:"5" desc:"How often one record may be put back on its topic before it is parked."`
	ReplayRate int `key:"replay_rate" default:"500" desc:"Records a second put back at most, where a replay names no rate of its own."`
}
