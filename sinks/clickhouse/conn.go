// Package clickhouse writes price facts to ClickHouse and owns their table (contracts, section 4): connections with failover,
// schema, the batch insert, and what each failure means in words. Readers' queries are in views/pricehistory.
package clickhouse

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// Names of the contracts.
const (
	DefaultDatabase = "pin_analytics"
	FactsTable      = "property_object_price_history_facts"
)

// Config says where ClickHouse is and how its table is laid out.
type Config struct {
	// DSN is clickhouse://user:password@host:9000,host2:9000/pin_analytics?secure=true. Beside the driver's parameters it takes
	// tls_ca_file, tls_cert_file and tls_key_file (PEM). Every address is tried, the one that worked last first.
	DSN           string
	Cluster       string        // ON CLUSTER, with a Distributed table over a local one; empty: the server of the DSN
	Replicated    bool          // ReplicatedReplacingMergeTree in place of ReplacingMergeTree
	DialTimeout   time.Duration // for one address; default 3 s
	InsertTimeout time.Duration // for one insert; default 30 s; must lie below the consumer group's rebalance timeout
	QueryTimeout  time.Duration // for one reading query; default 10 s
}

const (
	defaultDialTimeout   = 3 * time.Second
	defaultInsertTimeout = 30 * time.Second
	defaultQueryTimeout  = 10 * time.Second
)

func (c Config) withDefaults() Config {
	if c.DialTimeout <= 0 {
		c.DialTimeout = defaultDialTimeout
	}
	if c.InsertTimeout <= 0 {
		c.InsertTimeout = defaultInsertTimeout
	}
	if c.QueryTimeout <= 0 {
		c.QueryTimeout = defaultQueryTimeout
	}
	return c
}

// Conn is a pool of native connections. It connects when it is first used, so opening it needs no server. Safe for
// concurrent use.
type Conn struct {
	driver.Conn
	cfg      Config
	database string
	addrs    []string
	first    atomic.Int32 // index of the address tried first
}

// Open reads the DSN. It fails only on a DSN or a certificate that cannot be read, never with a secret in the error.
func Open(cfg Config) (*Conn, error) { return open(cfg, true) }

// open connects to the DSN's database, or, for migrations, to the user's default one: a login to a database that does not
// exist fails.
func open(cfg Config, useDatabase bool) (*Conn, error) {
	cfg = cfg.withDefaults()
	opts, err := parseDSN(cfg.DSN)
	if err != nil {
		return nil, err
	}
	// However many addresses hang, the last one must get its turn within one statement's time.
	cfg.DialTimeout = min(cfg.DialTimeout, min(cfg.InsertTimeout, cfg.QueryTimeout)/time.Duration(len(opts.Addr)+1))
	c := &Conn{cfg: cfg, database: opts.Auth.Database, addrs: opts.Addr}
	if !useDatabase {
		opts.Auth.Database = ""
	}
	// The pool's bound covers all addresses; each address has its own, or a dead first one would use up the time of all.
	opts.DialTimeout = time.Duration(2*len(opts.Addr)+1) * cfg.DialTimeout
	opts.DialStrategy = c.dial
	opts.DialContext = dialer(cfg.DialTimeout, opts.TLS)
	if c.Conn, err = ch.Open(opts); err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	return c, nil
}

// parseDSN is the driver's parser with the project's defaults and the files of a private CA.
func parseDSN(dsn string) (*ch.Options, error) {
	unreadable := errors.New("clickhouse.dsn cannot be read: write clickhouse://user:password@host:9000/pin_analytics?secure=true, " +
		"special characters in the password percent-encoded")
	dsn, files, err := tlsFiles(dsn)
	if err != nil {
		return nil, unreadable
	}
	opts, err := ch.ParseDSN(dsn)
	if err != nil {
		return nil, unreadable // the driver's error may quote the password
	}
	if opts.Protocol != ch.Native {
		return nil, errors.New("clickhouse.dsn must use the native protocol (clickhouse://host:9000, with TLS usually port 9440), not HTTP")
	}
	if opts.Auth.Database == "" {
		opts.Auth.Database = DefaultDatabase
	}
	if opts.Compression == nil {
		opts.Compression = &ch.Compression{Method: ch.CompressionLZ4}
	}
	if err := files.apply(opts); err != nil {
		return nil, err
	}
	return opts, nil
}

// pemFiles are certificates of a private CA.
type pemFiles struct{ ca, cert, key string }

// tlsFiles takes the parameters out of the DSN that the driver would send to the server as settings.
func tlsFiles(dsn string) (string, pemFiles, error) {
	before, query, found := strings.Cut(dsn, "?")
	if !found {
		return dsn, pemFiles{}, nil
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", pemFiles{}, err
	}
	files := pemFiles{ca: values.Get("tls_ca_file"), cert: values.Get("tls_cert_file"), key: values.Get("tls_key_file")}
	for _, name := range []string{"tls_ca_file", "tls_cert_file", "tls_key_file"} {
		values.Del(name)
	}
	return before + "?" + values.Encode(), files, nil
}

func (f pemFiles) apply(opts *ch.Options) error {
	if f == (pemFiles{}) {
		return nil
	}
	if opts.TLS == nil {
		return errors.New("clickhouse.dsn has tls_…_file but not secure=true")
	}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return fmt.Errorf("clickhouse.dsn, tls_ca_file: %w", err)
		}
		opts.TLS.RootCAs = x509.NewCertPool()
		if !opts.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("clickhouse.dsn, tls_ca_file: %s holds no PEM certificate", f.ca)
		}
	}
	if (f.cert == "") != (f.key == "") {
		return errors.New("clickhouse.dsn: tls_cert_file and tls_key_file are needed together")
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return fmt.Errorf("clickhouse.dsn, tls_cert_file: %w", err)
		}
		opts.TLS.Certificates = []tls.Certificate{pair}
	}
	return nil
}

// dialer honours the context, which the driver's own does not.
func dialer(timeout time.Duration, config *tls.Config) func(context.Context, string) (net.Conn, error) {
	plain := &net.Dialer{Timeout: timeout}
	if config == nil {
		return func(ctx context.Context, addr string) (net.Conn, error) { return plain.DialContext(ctx, "tcp", addr) }
	}
	secure := &tls.Dialer{NetDialer: plain, Config: config}
	return func(ctx context.Context, addr string) (net.Conn, error) { return secure.DialContext(ctx, "tcp", addr) }
}

// dial tries every address once, from the preferred one on, and prefers from then on the one that answered.
func (c *Conn) dial(ctx context.Context, _ int, opts *ch.Options, dial ch.Dial) (ch.DialResult, error) {
	one := *opts
	one.DialTimeout = c.cfg.DialTimeout // also bounds the handshake
	start := int(c.first.Load())
	var failures []error
	for i := range opts.Addr {
		n := (start + i) % len(opts.Addr)
		var raw net.Conn
		one.DialContext = func(ctx context.Context, addr string) (_ net.Conn, err error) {
			raw, err = opts.DialContext(ctx, addr)
			return raw, err
		}
		result, err := dial(ctx, opts.Addr[n], &one)
		if err == nil {
			c.first.Store(int32(n))
			return result, nil
		}
		// The driver leaves the connection of a refused login open: in a long outage the process would run out of files.
		if raw != nil {
			err = errors.Join(err, raw.Close())
		}
		failures = append(failures, fmt.Errorf("%s: %w", opts.Addr[n], err))
		if ctx.Err() != nil {
			break
		}
	}
	return ch.DialResult{}, &dialError{failures: failures}
}

// avoidAfter makes the next try begin with the next address: the present one answered but could not do its work, or took all
// the time there was. A failed statement's connection is closed, so the next one is dialled anew.
func (c *Conn) avoidAfter(err error) {
	var o *Outage
	if len(c.addrs) > 1 && errors.As(err, &o) {
		c.first.Store((c.first.Load() + 1) % int32(len(c.addrs)))
	}
}

// dialError is why no address could be connected to.
type dialError struct{ failures []error }

func (e *dialError) Error() string   { return errors.Join(e.failures...).Error() }
func (e *dialError) Unwrap() []error { return e.failures }

// Table is the quoted full name of the table that is written and read.
func (c *Conn) Table() string { return quote(c.database) + "." + quote(FactsTable) }

// QueryTimeout is the bound of one reading query.
func (c *Conn) QueryTimeout() time.Duration { return c.cfg.QueryTimeout }

// quote makes an identifier.
func quote(name string) string {
	return "`" + strings.NewReplacer(`\`, `\\`, "`", "\\`").Replace(name) + "`"
}

// literal makes a string literal.
func literal(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}
