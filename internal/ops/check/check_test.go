package check_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // sql.Open("pgx", …)
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"

	vitrina "github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/ops/check"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

type env struct {
	t     *testing.T
	cfg   *config.Config
	db    *sql.DB
	admin *stream.Admin
}

// newEnv is a system that is set up as it should be, but for the single broker.
func newEnv(t *testing.T) *env {
	t.Helper()
	cfg := config.Default()
	cfg.Kafka.Brokers, cfg.Postgres.DSN, cfg.ClickHouse.DSN = devtest.Embedded(t), config.Secret(devtest.Postgres(t)), config.Secret(devtest.ClickHouse(t))
	cfg.HTTP.AdminToken, cfg.Instance.ID = "0123456789abcdef0123456789abcdef", "i"
	home, err := os.MkdirTemp(".", ".check-state-") //nolint:usetesting // not below /tmp, which check warns about
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(home)) })
	cfg.State.Dir = filepath.Join(home, "made", "later")
	e := &env{t: t, cfg: cfg}
	e.db, err = sql.Open("pgx", cfg.Postgres.DSN.Reveal())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.db.Close()) })
	_, err = postgres.Migrate(t.Context(), e.db)
	require.NoError(t, err)
	_, err = clickhouse.Migrate(t.Context(), vitrina.ClickHouseConfig(cfg))
	require.NoError(t, err)
	k, err := vitrina.KafkaConfig(cfg, time.Now)
	require.NoError(t, err)
	e.admin, err = stream.NewAdmin(k)
	require.NoError(t, err)
	t.Cleanup(e.admin.Close)
	for _, c := range config.Consumers() {
		_, err := e.admin.Kadm().CreateTopic(t.Context(), 2, 1, map[string]*string{"retention.ms": kadm.StringPtr("604800000")}, c.Topic)
		require.NoError(t, err)
	}
	plan, err := e.admin.Plan(t.Context(), vitrina.TopicOptions(cfg), vitrina.GroupTopics(config.Roles()...)...)
	require.NoError(t, err)
	_, err = e.admin.Apply(t.Context(), plan)
	require.NoError(t, err)
	return e
}

func (e *env) exec(statement string) {
	e.t.Helper()
	_, err := e.db.ExecContext(e.t.Context(), statement)
	require.NoError(e.t, err)
}

// run returns the findings that are not ok.
func (e *env) run() []check.Finding {
	e.t.Helper()
	k, err := vitrina.KafkaConfig(e.cfg, time.Now)
	require.NoError(e.t, err)
	all := check.Run(e.t.Context(), check.Options{
		Config: e.cfg, Kafka: k, Topics: vitrina.TopicOptions(e.cfg), Groups: vitrina.GroupTopics(e.cfg.Roles...),
		ClickHouse: vitrina.ClickHouseConfig(e.cfg), Clock: time.Now,
	})
	for _, f := range all {
		require.NotEmpty(e.t, f.Problem)
		require.True(e.t, f.Severity == check.OK || f.Fix != "", "every finding says how to mend it: %v", f)
	}
	return slices.DeleteFunc(all, func(f check.Finding) bool {
		return f.Severity == check.OK || f.Area == "kafka" && (f.Subject == "brokers" || strings.Contains(f.Problem, "replicas"))
	})
}

// faults are the findings less where the clone itself lies: below /tmp or on tmpfs check rightly warns of a state directory in it.
func (e *env) faults() []check.Finding {
	e.t.Helper()
	return slices.DeleteFunc(e.run(), func(f check.Finding) bool {
		return f.Area == "state" && f.Severity == check.Warning && (strings.Contains(f.Problem, "lies below") || strings.Contains(f.Problem, "tmpfs"))
	})
}

func (e *env) expect(area string, severity check.Severity, problem string) {
	e.t.Helper()
	findings := e.run()
	require.True(e.t, slices.ContainsFunc(findings, func(f check.Finding) bool {
		return f.Area == area && f.Severity == severity && strings.Contains(f.Subject+" "+f.Problem, problem)
	}), "%s %s %q in %v", area, severity, problem, findings)
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	e := newEnv(t)
	require.Empty(t, e.faults(), "a system as it should be")

	e.exec(`CREATE INDEX hot_killer ON catalog.property_object_cards (status, popularity_views)`)
	e.exec(`CREATE INDEX by_predicate ON catalog.project_cards (id) WHERE promotion_boost > 0`)
	e.expect("postgres", check.Warning, "index catalog.hot_killer covers popularity_views")
	e.expect("postgres", check.Warning, "index catalog.by_predicate covers promotion_boost")
	e.exec(`DROP INDEX catalog.hot_killer, catalog.by_predicate`)

	rows, err := e.db.QueryContext(t.Context(), `SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 'catalog.property_object_cards'::regclass AND NOT indisprimary`)
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	var names []string
	for rows.Next() {
		var name string
		require.NoError(t, rows.Scan(&name))
		names = append(names, name)
	}
	require.NoError(t, rows.Err())
	for _, name := range names {
		e.exec(`DROP INDEX ` + name)
	}
	e.expect("postgres", check.Warning, "no index begins with project_id")
	e.exec(`CREATE INDEX ON catalog.property_object_cards (project_id)`)

	e.exec(`DO $$ DECLARE t record; BEGIN FOR t IN SELECT tgname FROM pg_trigger WHERE tgrelid = 'catalog.project_cards'::regclass AND NOT tgisinternal
		LOOP EXECUTE format('DROP TRIGGER %I ON catalog.project_cards', t.tgname); END LOOP; END $$`)
	e.expect("postgres", check.Warning, "triggers that note changed cards are missing")
	e.expect("postgres", check.Warning, "triggers that note changed cards are missing") // looking has not mended it
	_, err = postgres.Migrate(t.Context(), e.db)
	require.NoError(t, err)
	e.exec(`UPDATE vitrina.projections SET state = 'closed' WHERE name = 'popularity'`)
	e.expect("postgres", check.Warning, "projection popularity it is closed")
	e.exec(`UPDATE vitrina.projections SET state = 'open'`)
	require.Empty(t, e.faults())

	source := config.Consumers()[1].Topic
	set := func(key, value string) {
		_, err := e.admin.Kadm().AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}, source)
		require.NoError(t, err)
	}
	set("retention.ms", "60000")
	e.expect("kafka", check.Error, "less than the retry schedule takes")
	set("retention.ms", "7200000")
	e.expect("kafka", check.Warning, "an outage of that length loses events")
	set("retention.ms", "604800000")
	set("cleanup.policy", "compact")
	e.expect("kafka", check.Error, "is compacted")
	set("cleanup.policy", "delete")
	require.Empty(t, e.faults())

	_, err = e.admin.Kadm().DeleteTopics(t.Context(), "pin-catalog-popularity-loop", config.Consumers()[2].Topic)
	require.NoError(t, err)
	e.expect("kafka", check.Error, "pin-catalog-popularity-loop does not exist")
	e.expect("kafka", check.Error, config.Consumers()[2].Topic+" does not exist")
	_, err = e.admin.Kadm().CreateTopic(t.Context(), 5, 1, nil, "pin-catalog-popularity-loop")
	require.NoError(t, err)
	e.expect("kafka", check.Error, "has 5 partitions and its source")

	e.exec(`ALTER TABLE catalog.property_object_cards ALTER popularity_views TYPE integer`)
	e.expect("postgres", check.Error, "column popularity_views is integer")
	e.exec(`ALTER TABLE catalog.property_object_cards DROP row_version`)
	e.expect("postgres", check.Error, "column row_version is missing")
	e.exec(`DROP SCHEMA vitrina CASCADE`)
	e.expect("postgres", check.Error, "migrations are missing")
	e.exec(`DROP SCHEMA catalog CASCADE`)
	e.expect("postgres", check.Error, "catalog.project_cards it does not exist")
}

func TestCheckOfSettingsAndState(t *testing.T) {
	e := newEnv(t)
	good := *e.cfg
	for name, tc := range map[string]struct {
		change   func(*config.Config)
		area     string
		severity check.Severity
		problem  string
	}{
		"no admin token":  {func(c *config.Config) { c.HTTP.AdminToken = "" }, "configuration", check.Warning, "every call of /admin is refused"},
		"short token":     {func(c *config.Config) { c.HTTP.AdminToken = "abc" }, "configuration", check.Warning, "guessed"},
		"no ClickHouse":   {func(c *config.Config) { c.ClickHouse.DSN = "" }, "configuration", check.Error, "clickhouse.dsn"},
		"below /tmp":      {func(c *config.Config) { c.State.Dir = "/tmp/vitrina" }, "state", check.Warning, "below /tmp"},
		"a file":          {func(c *config.Config) { c.State.Dir = "check.go/x" }, "state", check.Error, "check.go"},
		"in memory":       {func(c *config.Config) { c.State.Dir = "/dev/shm/vitrina" }, "state", check.Warning, "/dev/shm"},
		"wrong password":  {func(c *config.Config) { c.Postgres.DSN = config.Secret(wrongUser(c.Postgres.DSN.Reveal())) }, "postgres", check.Error, "connection"},
		"PostgreSQL away": {func(c *config.Config) { c.Postgres.DSN = "postgres://a:b@127.0.0.1:1/x" }, "postgres", check.Error, "connection"},
		"ClickHouse away": {func(c *config.Config) { c.ClickHouse.DSN = "clickhouse://a:b@127.0.0.1:1/x" }, "clickhouse", check.Error, "facts table"},
		"no database":     {func(c *config.Config) { c.ClickHouse.DSN += "_missing" }, "clickhouse", check.Error, "vitrina migrate up"},
		"brokers away":    {func(c *config.Config) { c.Kafka.Brokers = []string{"127.0.0.1:1"} }, "kafka", check.Error, "no broker can be reached"},
		"a broker away":   {func(c *config.Config) { c.Kafka.Brokers = append([]string{"127.0.0.1:1"}, c.Kafka.Brokers...) }, "kafka", check.Warning, "127.0.0.1:1"},
		"SASL not wanted": {func(c *config.Config) {
			c.Kafka.SASL.Mechanism, c.Kafka.SASL.Username, c.Kafka.SASL.Password = "PLAIN", "u", "p"
		}, "kafka", check.Error, "SASL"},
		"flag off": {func(c *config.Config) { c.Catalog.Promotions.Enabled = false }, "configuration", check.Warning, "boosts stay"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			tc.change(&cfg)
			(&env{t: t, cfg: &cfg}).expect(tc.area, tc.severity, tc.problem)
		})
	}
}

func wrongUser(dsn string) string {
	scheme, rest, _ := strings.Cut(dsn, "://")
	_, host, found := strings.Cut(rest, "@")
	if !found {
		host = rest
	}
	return scheme + "://nobody:wrong@" + host
}

func TestCheckFindsWrongSASL(t *testing.T) {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "u", "right"))
	require.NoError(t, err)
	t.Cleanup(broker.Close)
	e := newEnv(t)
	e.cfg.Kafka.Brokers = broker.ListenAddrs()
	e.expect("kafka", check.Error, "connection")
	e.cfg.Kafka.SASL = config.SASL{Mechanism: "SCRAM-SHA-256", Username: "u", Password: "wrong"}
	e.expect("kafka", check.Error, "SASL:") // this broker closes the connection instead of answering
	e.cfg.Kafka.SASL.Password = "right"
	require.False(t, slices.ContainsFunc(e.run(), func(f check.Finding) bool { return f.Subject == "connection" }))
}
