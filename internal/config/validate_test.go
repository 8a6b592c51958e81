package config_test

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/config"
)

func TestValidateRules(t *testing.T) {
	cases := map[string]struct {
		change func(*config.Config)
		key    string // empty: valid
	}{
		"no roles":                 {func(c *config.Config) { c.Roles = nil }, "roles"},
		"no brokers":               {func(c *config.Config) { c.Kafka.Brokers = nil }, "kafka.brokers"},
		"broker without host":      {func(c *config.Config) { c.Kafka.Brokers = []string{":9092"} }, "kafka.brokers"},
		"broker port":              {func(c *config.Config) { c.Kafka.Brokers = []string{"a:0"} }, "kafka.brokers"},
		"IPv6 broker":              {func(c *config.Config) { c.Kafka.Brokers = []string{"[::1]:9092"} }, ""},
		"rebalance below session":  {func(c *config.Config) { c.Kafka.SessionTimeout = 3 * time.Minute }, "kafka.rebalance_timeout"},
		"certificate without key":  {func(c *config.Config) { c.Kafka.TLS.CertFile = "x" }, "kafka.tls.cert_file"},
		"missing authority":        {func(c *config.Config) { c.Kafka.TLS.CAFile = "/nowhere" }, "kafka.tls"},
		"SCRAM without password":   {func(c *config.Config) { c.Kafka.SASL = config.SASL{Mechanism: "SCRAM-SHA-256", Username: "u"} }, "kafka.sasl.password"},
		"PLAIN":                    {func(c *config.Config) { c.Kafka.SASL = config.SASL{Mechanism: "PLAIN", Username: "u", Password: "p"} }, ""},
		"OAUTHBEARER from nothing": {func(c *config.Config) { c.Kafka.SASL.Mechanism = "OAUTHBEARER" }, "kafka.sasl.mechanism"},
		"OAUTHBEARER two ways": {func(c *config.Config) {
			c.Kafka.SASL = config.SASL{Mechanism: "OAUTHBEARER", Token: "t", TokenFile: "f"}
		}, "kafka.sasl.mechanism"},
		"OAUTHBEARER from a URL": {func(c *config.Config) {
			c.Kafka.SASL = config.SASL{Mechanism: "OAUTHBEARER", TokenURL: "https://id/token", ClientID: "c", ClientSecret: "s"}
		}, ""},
		"OAUTHBEARER from a bad URL": {func(c *config.Config) {
			c.Kafka.SASL = config.SASL{Mechanism: "OAUTHBEARER", TokenURL: "id/token", ClientID: "c", ClientSecret: "s"}
		}, "kafka.sasl.token_url"},
		"credentials without a mechanism": {func(c *config.Config) { c.Kafka.SASL.Username = "u" }, "kafka.sasl.mechanism"},
		"Kafka of the future":             {func(c *config.Config) { c.Kafka.Version = "99.0.0" }, "kafka.version"},
		"the newest Kafka":                {func(c *config.Config) { c.Kafka.Version = sarama.MaxVersion.String() }, ""},
		"no statement ends in time":       {func(c *config.Config) { c.Postgres.StatementTimeout = time.Millisecond }, "postgres.statement_timeout"},
		"the shortest statement":          {func(c *config.Config) { c.Postgres.StatementTimeout = time.Second }, ""},
		"rows that are never deleted":     {func(c *config.Config) { c.Popularity.PruneInterval = 9000 * time.Hour }, "popularity.prune_interval"},
		"deleted once in a window":        {func(c *config.Config) { c.Popularity.PruneInterval = c.Popularity.LedgerWindow }, ""},
		"libpq keywords":                  {func(c *config.Config) { c.Postgres.DSN = "host=h user=u password=p" }, ""},
		"ClickHouse without a scheme":     {func(c *config.Config) { c.ClickHouse.DSN = "localhost:9000" }, "clickhouse.dsn"},
		"insert outlives the partition":   {func(c *config.Config) { c.ClickHouse.InsertTimeout = 3 * time.Minute }, "clickhouse.insert_timeout"},
		"every interface":                 {func(c *config.Config) { c.HTTP.Addr = ":8080" }, ""},
		"no port":                         {func(c *config.Config) { c.HTTP.Addr = "localhost" }, "http.addr"},
		"drain that leaves no time":       {func(c *config.Config) { c.Runtime.DrainTimeout = 11 * time.Second }, "runtime.drain_timeout"},
		"shutdown below what is needed":   {func(c *config.Config) { c.Runtime.ShutdownTimeout = 9 * time.Second }, "runtime.drain_timeout"},
		"drain longer than shutdown":      {func(c *config.Config) { c.Runtime.DrainTimeout = time.Minute }, "runtime.drain_timeout"},
		"window below the retries":        {func(c *config.Config) { c.Popularity.RetryDelays = []time.Duration{200 * time.Hour} }, "popularity.ledger_window"},
		"no retries":                      {func(c *config.Config) { c.Popularity.RetryDelays = nil }, "popularity.retry_delays"},
		"batch of nothing":                {func(c *config.Config) { c.Price.BatchRows = 0 }, "price.batch_rows"},
		"replicas without a cluster":      {func(c *config.Config) { c.Price.Replicated = true }, "price.cluster"},
		"all log lines":                   {func(c *config.Config) { c.Log.EventsPerSecond = 0 }, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := config.Default()
			tc.change(c)
			err := c.Validate()
			if tc.key == "" {
				require.NoError(t, err)
				return
			}
			require.Len(t, faultsOf(t, err), 1)
			require.Contains(t, faultsOf(t, err), tc.key)
		})
	}
}
