package config

import (
	"os"
	"slices"
	"strings"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/jackc/pgx/v5/pgconn"
)

// Secrets lists every text that must never be printed: the secret settings and the passwords inside connection strings
// and PG* variables. Libraries quote connection strings in their errors, so the log and the command line search for them.
func (c *Config) Secrets() []string {
	var out []string
	add := func(s string) {
		if s != "" && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	for _, k := range Keys() {
		// A connection string is hidden by its password: the rest (host, database) helps in an error.
		if k.Secret && !strings.HasSuffix(k.Path, ".dsn") {
			add(k.value(c))
		}
	}
	if pg, err := pgconn.ParseConfig(c.Postgres.DSN.Reveal()); err == nil {
		add(pg.Password)
	} else {
		add(c.Postgres.DSN.Reveal())
	}
	add(os.Getenv("PGPASSWORD"))
	if dsn := c.ClickHouse.DSN.Reveal(); dsn != "" {
		if ch, err := clickhouse.ParseDSN(dsn); err == nil {
			add(ch.Auth.Password)
		} else {
			add(dsn)
		}
	}
	return out
}
