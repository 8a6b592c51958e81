package clickhouse

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Column is one column of the facts table.
type Column struct {
	Name string
	Type string
}

// FactColumns are the columns of the facts table in the order of contracts section 4.
func FactColumns() []Column {
	return []Column{
		{"FactId", "String"},
		{"SourceEventId", "String"},
		{"PropertyObjectId", "UUID"},
		{"DeveloperId", "UUID"},
		{"TenantId", "String"},
		{"ProjectId", "UUID"},
		{"BuildingId", "Int64"},
		{"LayoutGroupId", "Int64"},
		{"LayoutId", "Int64"},
		{"AreaTotal", "Decimal(10, 2)"},
		{"OldPrice", "Nullable(Decimal(18, 2))"},
		{"NewPrice", "Decimal(18, 2)"},
		{"OldPricePerMeter", "Nullable(Decimal(18, 2))"},
		{"NewPricePerMeter", "Decimal(18, 2)"},
		{"CurrencyId", "Int16"},
		{"CurrencyIsoCode", "String"},
		{"EventTime", "DateTime('UTC')"},
		{"IngestionTime", "DateTime('UTC')"},
		{"BrandId", "Nullable(UUID)"},
		{"ChangeSource", "String"},
		{"TransformVersion", "Int32"},
	}
}

const (
	partitionKey = "toYYYYMM(EventTime)"
	sortingKey   = "PropertyObjectId, EventTime, FactId"
	localSuffix  = "_local"
)

// Step is one object that Migrate creates.
type Step struct {
	Name      string // "database pin_analytics", "table pin_analytics.property_object_price_history_facts"
	Statement string
	table     string // empty: the database
	engine    string // family that an existing table must have
}

// Steps are the statements of Migrate in their order. Without a cluster the facts table is the table itself. With one, every
// server has a local table, and the facts table is a Distributed table over them, sharded by object, so that all facts of an
// object, and with them all versions of a fact, share a server: only there can ReplacingMergeTree collapse them.
func Steps(cfg Config) ([]Step, error) {
	opts, err := parseDSN(cfg.DSN)
	if err != nil {
		return nil, err
	}
	database, on := opts.Auth.Database, ""
	if cfg.Cluster != "" {
		on = " ON CLUSTER " + quote(cfg.Cluster)
	}
	name := func(table string) string { return quote(database) + "." + quote(table) }
	engine, family := "ReplacingMergeTree(IngestionTime)", "ReplacingMergeTree"
	if cfg.Replicated {
		engine = "ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/{database}/{table}', '{replica}', IngestionTime)"
		family = "ReplicatedReplacingMergeTree"
	}
	main := FactsTable
	if cfg.Cluster != "" {
		main += localSuffix
	}
	steps := []Step{
		{Name: "database " + database, Statement: "CREATE DATABASE IF NOT EXISTS " + quote(database) + on},
		{
			Name: "table " + database + "." + main,
			Statement: "CREATE TABLE IF NOT EXISTS " + name(main) + on + "\n(\n" + columnList() + "\n)\nENGINE = " + engine +
				"\nPARTITION BY " + partitionKey + "\nORDER BY (" + sortingKey + ")",
			table: main, engine: family,
		},
	}
	if cfg.Cluster != "" {
		steps = append(steps, Step{
			Name: "table " + database + "." + FactsTable,
			Statement: "CREATE TABLE IF NOT EXISTS " + name(FactsTable) + on + "\n(\n" + columnList() + "\n)\nENGINE = Distributed(" +
				literal(cfg.Cluster) + ", " + literal(database) + ", " + literal(main) + ", sipHash64(PropertyObjectId))",
			table: FactsTable, engine: "Distributed",
		})
	}
	return steps, nil
}

func columnList() string {
	lines := make([]string, 0, len(FactColumns()))
	for _, c := range FactColumns() {
		lines = append(lines, "    "+quote(c.Name)+" "+c.Type)
	}
	return strings.Join(lines, ",\n")
}

// Migration is one step with what the server has of it.
type Migration struct {
	Name    string `json:"name"`
	Applied bool   `json:"applied"`
	Problem string `json:"problem,omitempty"` // how what is there differs from the contract
}

// Migrate creates the database of the DSN and the facts table where they are missing, and returns the steps applied now. What
// exists is compared with the contract and never altered: a difference is an error that names it. There is no table of
// versions: the server's own catalog says what is there, which stays true when somebody drops a table or restores a backup,
// and on a cluster. So it is safe to repeat and to run from several instances at once.
func Migrate(ctx context.Context, cfg Config) (applied []Migration, err error) {
	steps, conn, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	defer closeInto(conn, &err)
	for _, s := range steps {
		before, err := conn.examine(ctx, s)
		if err != nil {
			return applied, fmt.Errorf("look at the %s in ClickHouse: %w", s.Name, err)
		}
		if before.Problem != "" {
			return applied, fmt.Errorf("the %s in ClickHouse is not the contract's: %s; alter or rename it, then run `vitrina migrate up` again", s.Name, before.Problem)
		}
		// On a cluster the statement also reaches the servers that lack what this one has.
		if before.Applied && cfg.Cluster == "" {
			continue
		}
		if err := conn.Exec(ctx, s.Statement); err != nil {
			return applied, fmt.Errorf("create the %s in ClickHouse: %w", s.Name, Explain(err, "create the "+s.Name))
		}
		if !before.Applied {
			applied = append(applied, Migration{Name: s.Name, Applied: true})
		}
	}
	return applied, nil
}

// MigrationStatus lists every step with what the server has of it. It changes nothing.
func MigrationStatus(ctx context.Context, cfg Config) (list []Migration, err error) {
	steps, conn, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	defer closeInto(conn, &err)
	for _, s := range steps {
		m, err := conn.examine(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("look at the %s in ClickHouse: %w", s.Name, err)
		}
		list = append(list, m)
	}
	return list, nil
}

// Check tells whether facts can be written and read: the server answers, database and table are there and as the contract
// says. The error is one sentence that says how to mend it.
func Check(ctx context.Context, cfg Config) error {
	list, err := MigrationStatus(ctx, cfg)
	if err != nil {
		return err
	}
	for _, m := range list {
		if !m.Applied {
			return fmt.Errorf("the %s does not exist in ClickHouse: run `vitrina migrate up`", m.Name)
		}
		if m.Problem != "" {
			return fmt.Errorf("the %s in ClickHouse is not the contract's: %s", m.Name, m.Problem)
		}
	}
	return nil
}

func prepare(cfg Config) ([]Step, *Conn, error) {
	steps, err := Steps(cfg)
	if err != nil {
		return nil, nil, err
	}
	conn, err := open(cfg, false)
	return steps, conn, err
}

func closeInto(conn *Conn, err *error) {
	if closing := conn.Close(); closing != nil && *err == nil {
		*err = fmt.Errorf("close ClickHouse: %w", closing)
	}
}

// examine finds out what the server has of a step.
func (c *Conn) examine(ctx context.Context, s Step) (Migration, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.InsertTimeout)
	defer cancel()
	m := Migration{Name: s.Name}
	var err error
	if s.table == "" {
		var n uint64
		err = c.QueryRow(ctx, "SELECT count() FROM system.databases WHERE name = "+literal(c.database)).Scan(&n)
		m.Applied = n > 0
	} else {
		m.Applied, m.Problem, err = c.examineTable(ctx, s)
	}
	return m, Explain(err, "answer within "+c.cfg.InsertTimeout.String())
}

func (c *Conn) examineTable(ctx context.Context, s Step) (exists bool, problem string, err error) {
	where := " WHERE database = " + literal(c.database) + " AND "
	tables, err := c.strings(ctx, "SELECT engine, engine_full, partition_key, sorting_key FROM system.tables"+where+"name = "+literal(s.table))
	if err != nil || len(tables) == 0 {
		return false, "", err
	}
	columns, err := c.strings(ctx, "SELECT name, type FROM system.columns"+where+"table = "+literal(s.table)+" ORDER BY position")
	if err != nil {
		return true, "", err
	}
	return true, strings.Join(append(engineProblems(s, tables[0]), columnProblems(columns)...), "; "), nil
}

// engineProblems compares engine, engine_full, partition_key, sorting_key. Engines of one kind pass for each other
// (Replicated…, Shared… in the cloud): the table may have been made by the operator.
func engineProblems(s Step, table []string) []string {
	engine, full, partition, sorting := table[0], table[1], table[2], table[3]
	if s.engine == "Distributed" {
		if engine != "Distributed" {
			return []string{"its engine is " + engine + ", not Distributed"}
		}
		return nil
	}
	if engine == "Distributed" {
		return nil // laid out by the operator over tables that this server may not even have
	}
	var problems []string
	if !strings.HasSuffix(engine, "ReplacingMergeTree") || !strings.Contains(full, "IngestionTime)") {
		problems = append(problems, "its engine is "+engine+", not "+s.engine+"(IngestionTime)")
	}
	if partition != partitionKey {
		problems = append(problems, "it is partitioned by "+orNothing(partition)+", not by "+partitionKey)
	}
	if sorting != sortingKey {
		problems = append(problems, "it is ordered by "+orNothing(sorting)+", not by "+sortingKey)
	}
	return problems
}

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}

// columnProblems finds what is missing or of another type. Further columns do no harm: inserts and queries name theirs.
func columnProblems(have [][]string) []string {
	var problems []string
	for _, want := range FactColumns() {
		i := slices.IndexFunc(have, func(c []string) bool { return c[0] == want.Name })
		if i < 0 {
			problems = append(problems, "column "+want.Name+" is missing")
		} else if have[i][1] != want.Type {
			problems = append(problems, "column "+want.Name+" is "+have[i][1]+", not "+want.Type)
		}
	}
	return problems
}

// strings returns the rows of a query whose columns are all strings.
func (c *Conn) strings(ctx context.Context, query string) (rows [][]string, err error) {
	result, err := c.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closing := result.Close(); err == nil {
			err = closing
		}
	}()
	for result.Next() {
		row := make([]string, len(result.Columns()))
		dest := make([]any, len(row))
		for i := range row {
			dest[i] = &row[i]
		}
		if err := result.Scan(dest...); err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, result.Err()
}
