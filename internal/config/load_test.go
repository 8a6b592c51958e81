package config_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pin-marketplace/vitrina/internal/config"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vitrina.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestDefaultsAreTheContracts(t *testing.T) {
	c, err := config.Load(config.Source{})
	require.NoError(t, err)
	require.NoError(t, config.Default().Validate())
	require.Equal(t, config.Default(), c)
	require.Equal(t, config.Roles(), c.Roles)
	require.Equal(t, "127.0.0.1:8080", c.HTTP.Addr)
	require.True(t, c.Catalog.Promotions.Enabled)
	require.Equal(t, 1000, c.Price.BatchRows)
	require.Equal(t, 5*time.Second, c.Price.BatchInterval)
	require.Equal(t, 15*time.Second, c.Promotion.ReconcileInterval)
	require.Equal(t, []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute}, c.Popularity.RetryDelays)
	require.Equal(t, []string{"Catalog", "Search", "Selection"}, c.Popularity.ViewSources)
	require.Equal(t, 168*time.Hour, c.Popularity.LedgerWindow)
	require.Equal(t, time.Second, c.Backoff.Min)
	require.Equal(t, time.Minute, c.Backoff.Max)
	require.False(t, c.Views.Marks)
}

// The names of contracts section 5.
func TestContractVariables(t *testing.T) {
	want := map[string]string{
		"VITRINA_KAFKA_BROKERS": "kafka.brokers", "VITRINA_POSTGRES_DSN": "postgres.dsn",
		"VITRINA_CLICKHOUSE_DSN": "clickhouse.dsn", "VITRINA_STATE_DIR": "state.dir", "VITRINA_HTTP_ADDR": "http.addr",
		"VITRINA_ADMIN_TOKEN":                "http.admin_token",
		"VITRINA_CATALOG_PROMOTIONS_ENABLED": "catalog.promotions.enabled",
		"VITRINA_PRICE_BATCH_ROWS":           "price.batch_rows", "VITRINA_PRICE_BATCH_INTERVAL": "price.batch_interval",
		"VITRINA_POPULARITY_RETRY_DELAYS":      "popularity.retry_delays",
		"VITRINA_PROMOTION_RECONCILE_INTERVAL": "promotion.reconcile_interval",
		"VITRINA_BACKOFF_MIN":                  "backoff.min", "VITRINA_BACKOFF_MAX": "backoff.max",
	}
	got := map[string]string{}
	for _, k := range config.Keys() {
		require.NotContains(t, got, k.Env, "two settings read one variable")
		got[k.Env] = k.Path
		require.NotEmpty(t, k.Desc, k.Path)
	}
	for env, key := range want {
		require.Equal(t, key, got[env], env)
	}
}

func TestLayers(t *testing.T) {
	file := write(t, `
kafka:
  brokers: [a:1, b:2]
  tls:
popularity: {retry_delays: "1s,2s", view_sources: [Catalog, Карта]}
price: {batch_rows: 10, batch_interval: 1s}
catalog.promotions.enabled: false
`)
	c, err := config.Load(config.Source{
		File:    file,
		Environ: []string{"VITRINA_PRICE_BATCH_ROWS=20", "VITRINA_KAFKA_BROKERS= c:3 , d:4", "VITRINA_HTTP_ADDR=", "PATH=/bin"},
		Flags:   map[string]string{"price.batch_rows": "30"},
	})
	require.NoError(t, err)
	require.Equal(t, []string{"c:3", "d:4"}, c.Kafka.Brokers)
	require.Equal(t, 30, c.Price.BatchRows)
	require.Equal(t, time.Second, c.Price.BatchInterval)
	require.False(t, c.Catalog.Promotions.Enabled)
	require.Equal(t, []time.Duration{time.Second, 2 * time.Second}, c.Popularity.RetryDelays)
	require.Equal(t, []string{"Catalog", "Карта"}, c.Popularity.ViewSources)
	require.Equal(t, "127.0.0.1:8080", c.HTTP.Addr, "a variable set to nothing sets nothing")
}

func TestTheStrongestLayerWins(t *testing.T) {
	numbers := []string{"price.batch_rows", "promotion.batch_rows", "dead_letters.replay_rate", "log.events_per_second"}
	envs := map[string]string{}
	for _, k := range config.Keys() {
		envs[k.Path] = k.Env
	}
	base := config.Default()
	get := func(c *config.Config, key string) string {
		for _, v := range c.Show() {
			if v.Key == key {
				return v.Value
			}
		}
		return "no such key " + key
	}
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		want := map[string]string{}
		var yaml strings.Builder
		src := config.Source{Flags: map[string]string{}, File: filepath.Join(dir, "c.yaml")}
		for _, key := range numbers {
			want[key] = get(base, key)
			if rapid.Bool().Draw(t, "file") {
				want[key] = strconv.Itoa(rapid.IntRange(1, 999).Draw(t, "n"))
				fmt.Fprintf(&yaml, "%s: %s\n", key, want[key])
			}
			if rapid.Bool().Draw(t, "env") {
				want[key] = strconv.Itoa(rapid.IntRange(1, 999).Draw(t, "n"))
				src.Environ = append(src.Environ, envs[key]+"="+want[key])
			}
			if rapid.Bool().Draw(t, "flag") {
				want[key] = strconv.Itoa(rapid.IntRange(1, 999).Draw(t, "n"))
				src.Flags[key] = want[key]
			}
		}
		require.NoError(t, os.WriteFile(src.File, []byte(yaml.String()), 0o600))
		c, err := config.Load(src)
		require.NoError(t, err)
		for key, value := range want {
			require.Equal(t, value, get(c, key), key)
		}
	})
}

func faultsOf(t *testing.T, err error) map[string]string {
	t.Helper()
	var faults config.Faults
	require.ErrorAs(t, err, &faults)
	out := map[string]string{}
	for _, f := range faults {
		out[f.Key] = f.Source + ": " + f.Problem
		require.Contains(t, err.Error(), f.Problem)
	}
	return out
}

func TestEveryFaultAtOnce(t *testing.T) {
	file := write(t, `
kafka: {broker: "x:1", session_timeout: 3s, version: "1.0"}
prise: {batch_rows: 5}
brokers: [y]
postgres: 5
http: {addr: nowhere, max_body_bytes: many}
price: {batch_interval: 30}
catalog: {promotions: {enabled: perhaps}}
state: {dir: 007}
`)
	_, err := config.Load(config.Source{
		File: file,
		Environ: []string{
			"VITRINA_KAFKA_BROKER=z:1", "VITRINA_PROMOTION_HASHER=md5", "VITRINA_POPULARITY_RETRY_DELAYS=30s,soon",
			"VITRINA_ROLES=price,kitchen,price", "VITRINA_SOMETHING_ELSE_ENTIRELY=1", "VITRINA_BACKOFF_MIN=2h",
			"VITRINA_POPULARITY_VIEW_SOURCES=Catalog,Catalog,Unknown", "VITRINA_KAFKA_SASL_MECHANISM=GSSAPI",
		},
		Flags: map[string]string{"log.level": "loud", "nonsense.key.of.some.length": "1"},
	})
	got := faultsOf(t, err)
	for key, parts := range map[string][]string{
		"kafka.broker": {file, "did you mean kafka.brokers?"}, "kafka.session_timeout": {file, "10s"},
		"kafka.version": {"2.8.0"}, "prise.batch_rows": {"did you mean price.batch_rows?"},
		"brokers": {"did you mean kafka.brokers?"}, "postgres": {"is a section"}, "http.addr": {"host:port"},
		"http.max_body_bytes": {"whole number"}, "price.batch_interval": {"unit"},
		"catalog.promotions.enabled": {"true or false"}, "state.dir": {"quotes"},
		"VITRINA_KAFKA_BROKER": {"environment", "did you mean VITRINA_KAFKA_BROKERS?"},
		"promotion.hasher":     {"VITRINA_PROMOTION_HASHER", "crc32, murmur2, fnv1a"}, "popularity.retry_delays": {"soon"},
		"roles": {"twice"}, "VITRINA_SOMETHING_ELSE_ENTIRELY": {"is not a setting"}, "backoff.min": {"backoff.max"},
		"popularity.view_sources": {"Unknown"}, "log.level": {"flag", "loud"}, "nonsense.key.of.some.length": {"is not a setting"},
		"kafka.sasl.mechanism": {"GSSAPI", "SCRAM-SHA-512"},
	} {
		for _, part := range parts {
			require.Contains(t, got[key], part, key)
		}
	}
}

func TestKubernetesServiceVariablesAreNoSettings(t *testing.T) {
	_, err := config.Load(config.Source{Environ: []string{
		"VITRINA_PORT=tcp://10.0.0.1:8080", "VITRINA_SERVICE_HOST=10.0.0.1", "VITRINA_SERVICE_PORT=8080",
		"VITRINA_SERVICE_PORT_HTTP=8080", "VITRINA_PORT_8080_TCP=tcp://10.0.0.1:8080", "VITRINA_PORT_8080_TCP_ADDR=10.0.0.1",
		"VITRINA_POSTGRES_SERVICE_HOST=10.0.0.2", "VITRINA_POSTGRES_PORT_5432_TCP_PROTO=tcp", "VITRINA_CACHE=/tmp/x", "VITRINA_CONFIG=y",
	}})
	require.NoError(t, err)
}

func TestSecretsFromFiles(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "dsn")
	require.NoError(t, os.WriteFile(secret, []byte("postgres://u:pass@h/db\n"), 0o600))
	c, err := config.Load(config.Source{Environ: []string{"VITRINA_POSTGRES_DSN_FILE=" + secret}})
	require.NoError(t, err)
	require.Equal(t, "postgres://u:pass@h/db", c.Postgres.DSN.Reveal())

	c, err = config.Load(config.Source{
		File:    write(t, "postgres: {dsn_file: '"+secret+"'}\nhttp: {admin_token_file: '"+secret+"'}"),
		Environ: []string{"VITRINA_POSTGRES_DSN=host=other user=u", "VITRINA_ADMIN_TOKEN=t0ken"},
	})
	require.NoError(t, err)
	require.Equal(t, "host=other user=u", c.Postgres.DSN.Reveal(), "a stronger layer wins over a file of a weaker one")
	require.Equal(t, "t0ken", c.HTTP.AdminToken.Reveal())

	_, err = config.Load(config.Source{Environ: []string{
		"VITRINA_POSTGRES_DSN_FILE=" + secret, "VITRINA_POSTGRES_DSN=postgres://u:pass@h/db",
		"VITRINA_CLICKHOUSE_DSN_FILE=/does/not/exist",
	}})
	got := faultsOf(t, err)
	require.Contains(t, got["postgres.dsn_file"], "keep one")
	require.Contains(t, got["clickhouse.dsn_file"], "/does/not/exist")
}

func TestFaultsShowNoSecret(t *testing.T) {
	secrets := map[string]string{
		"VITRINA_POSTGRES_DSN":             "postgres://user:hunt/er2%zz@host:port/db",
		"VITRINA_CLICKHOUSE_DSN":           "clickhouse://user:hunt/er2@host:9000/db",
		"VITRINA_ADMIN_TOKEN":              "hunter2 with spaces",
		"VITRINA_KAFKA_SASL_PASSWORD":      "hunter2",
		"VITRINA_KAFKA_SASL_TOKEN":         "hunter2",
		"VITRINA_KAFKA_SASL_CLIENT_SECRET": "hunter2",
	}
	var environ []string
	for name, value := range secrets {
		environ = append(environ, name+"="+value)
	}
	_, err := config.Load(config.Source{Environ: environ})
	got := faultsOf(t, err)
	require.Subset(t, slices.Collect(maps.Keys(got)), []string{"postgres.dsn", "clickhouse.dsn", "http.admin_token", "kafka.sasl.mechanism"})
	for _, part := range []string{"hunt", "er2"} {
		require.NotContains(t, err.Error(), part)
	}
	for _, yaml := range []string{"hunter2", "postgres: {dsn: [hunter2]}", "http:\n  admin_token: 271828182845\n"} {
		_, err = config.Load(config.Source{File: write(t, yaml)})
		require.Error(t, err, yaml)
		require.NotContains(t, err.Error(), "hunter2")
		require.NotContains(t, err.Error(), "271828182845")
	}
}

func TestRequireAndMissingFile(t *testing.T) {
	c := config.Default()
	require.NoError(t, c.Require(config.RolePromotion))
	require.ErrorContains(t, c.Require(config.RolePrice), "VITRINA_CLICKHOUSE_DSN")
	_, err := config.Load(config.Source{File: "/does/not/exist.yaml"})
	require.ErrorContains(t, err, "/does/not/exist.yaml")
	require.NotErrorAs(t, err, new(config.Faults))
	_, err = config.Load(config.Source{File: write(t, "a: 1\na: 2\n")})
	require.ErrorContains(t, err, "line 2", "a key written twice")
	require.ErrorContains(t, err, "twice")
}
