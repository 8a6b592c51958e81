package clickhouse

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
)

func TestTheStatementsAreThoseOfTheContracts(t *testing.T) {
	update := os.Getenv("UPDATE_GOLDEN") != ""
	for name, cfg := range map[string]Config{
		"single":             {DSN: "clickhouse://u:p@h:9000/pin_analytics"},
		"replicated":         {DSN: "clickhouse://u:p@h:9000/pin_analytics", Replicated: true},
		"cluster":            {DSN: "clickhouse://u:p@h:9000/pin_analytics", Cluster: "analytics"},
		"cluster_replicated": {DSN: "clickhouse://u:p@h:9000,h2:9000", Cluster: "analytics", Replicated: true},
	} {
		t.Run(name, func(t *testing.T) {
			steps, err := Steps(cfg)
			require.NoError(t, err)
			var b strings.Builder
			for _, s := range steps {
				b.WriteString("-- " + s.Name + "\n" + s.Statement + ";\n")
			}
			file := filepath.Join("testdata", "ddl_"+name+".sql")
			if update {
				require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), b.String())
		})
	}
}

func TestMigrateCreatesDatabaseAndTableAndIsSafeToRepeat(t *testing.T) {
	server := devtest.ClickHouseServer(t)
	cfg := Config{DSN: strings.Replace(server.DSN(), "/default", "/pin_analytics", 1)}
	status, err := MigrationStatus(t.Context(), cfg)
	require.NoError(t, err)
	require.Equal(t, []Migration{{Name: "database pin_analytics"}, {Name: "table pin_analytics.property_object_price_history_facts"}}, status)
	require.ErrorContains(t, Check(t.Context(), cfg), "vitrina migrate up")

	var instances errgroup.Group
	for range 4 {
		instances.Go(func() error { _, err := Migrate(t.Context(), cfg); return err })
	}
	require.NoError(t, instances.Wait())
	again, err := Migrate(t.Context(), cfg)
	require.NoError(t, err)
	require.Empty(t, again)
	status, err = MigrationStatus(t.Context(), cfg)
	require.NoError(t, err)
	require.Equal(t, []Migration{{Name: "database pin_analytics", Applied: true}, {Name: "table pin_analytics.property_object_price_history_facts", Applied: true}}, status)
	require.NoError(t, Check(t.Context(), cfg))

	conn := opened(t, cfg)
	tables, err := conn.strings(t.Context(), "SELECT engine_full FROM system.tables WHERE database = 'pin_analytics'")
	require.NoError(t, err)
	require.Equal(t, [][]string{{"ReplacingMergeTree(IngestionTime) PARTITION BY toYYYYMM(EventTime) ORDER BY (PropertyObjectId, EventTime, FactId) SETTINGS index_granularity = 8192"}}, tables)
	columns, err := conn.strings(t.Context(), "SELECT name, type FROM system.columns WHERE database = 'pin_analytics' ORDER BY position")
	require.NoError(t, err)
	require.Len(t, columns, 21)
	for i, c := range FactColumns() {
		require.Equal(t, []string{c.Name, c.Type}, columns[i])
	}
}

func TestATableThatIsNotTheContractsIsNamedAndLeftAlone(t *testing.T) {
	contract := func(change func(string) string) string {
		steps, err := Steps(Config{DSN: "clickhouse://h/db"})
		require.NoError(t, err)
		return change(strings.ReplaceAll(steps[1].Statement, "`db`.`property_object_price_history_facts`", "FACTS"))
	}
	replace := func(from, to string) func(string) string {
		return func(s string) string {
			require.Contains(t, s, from)
			return strings.Replace(s, from, to, 1)
		}
	}
	for want, statement := range map[string]string{
		"its engine is MergeTree": contract(replace("ReplacingMergeTree(IngestionTime)", "MergeTree")),
		"its engine is ReplacingMergeTree, not ReplacingMergeTree(IngestionTime)": contract(replace("ReplacingMergeTree(IngestionTime)", "ReplacingMergeTree")),
		"it is partitioned by nothing":                                            contract(replace("PARTITION BY toYYYYMM(EventTime)\n", "")),
		"it is ordered by PropertyObjectId, FactId":                               contract(replace("PropertyObjectId, EventTime, FactId)", "PropertyObjectId, FactId)")),
		"column OldPrice is Decimal(18, 2)":                                       contract(replace("Nullable(Decimal(18, 2))", "Decimal(18, 2)")),
		"column AreaTotal is Decimal(9, 2), not Decimal(10, 2)":                   contract(replace("Decimal(10, 2)", "Decimal(9, 2)")),
		"column TransformVersion is missing":                                      contract(replace(",\n    `TransformVersion` Int32", "")),
		"column EventTime is DateTime, not DateTime('UTC')":                       contract(replace("`EventTime` DateTime('UTC')", "`EventTime` DateTime")),
	} {
		t.Run(want, func(t *testing.T) {
			cfg := Config{DSN: devtest.ClickHouse(t)}
			conn := opened(t, cfg)
			exec(t, conn, statement)
			_, err := Migrate(t.Context(), cfg)
			require.ErrorContains(t, err, want)
			require.ErrorContains(t, Check(t.Context(), cfg), want)
			status, err := MigrationStatus(t.Context(), cfg)
			require.NoError(t, err)
			require.Contains(t, status[1].Problem, want)
		})
	}
	t.Run("further columns do no harm", func(t *testing.T) {
		cfg, conn := migrated(t, "")
		exec(t, conn, "ALTER TABLE FACTS ADD COLUMN Extra String DEFAULT 'x' FIRST")
		require.NoError(t, Check(t.Context(), cfg))
		require.NoError(t, sink(conn, nil, &logBuffer{}, Metrics{}).Flush(t.Context(), rows(0, 3)))
		require.Equal(t, 3, count(t, conn, ""))
	})
}
