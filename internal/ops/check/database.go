package check

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

const areaPostgres = "postgres"

func database(ctx context.Context, o Options, r *report) {
	dsn := o.Config.Postgres.DSN.Reveal()
	opts := postgres.PoolOptions{ApplicationName: "vitrina check"}
	pool, err := postgres.NewPool(ctx, dsn, opts)
	if err != nil {
		r.add(areaPostgres, "postgres.dsn", Error, err.Error(), "write postgres://user:password@host:5432/db?sslmode=verify-full")
		return
	}
	defer pool.Close()
	if !answers(ctx, o, pool, r) {
		return
	}
	migrated := migrations(ctx, dsn, opts, r)
	cards(ctx, pool, r)
	if migrated {
		behindCards(ctx, pool, r)
		triggers(ctx, pool, r)
		projections(ctx, pool, r)
	}
}

func answers(ctx context.Context, o Options, pool *pgxpool.Pool, r *report) bool {
	var version string
	var recovering bool
	begin := o.Clock()
	var now = begin
	err := pool.QueryRow(ctx, `SELECT current_setting('server_version'), pg_is_in_recovery(), clock_timestamp()`).Scan(&version, &recovering, &now)
	if err != nil {
		fix := "start PostgreSQL, or correct postgres.dsn (VITRINA_POSTGRES_DSN)"
		var refused *pgconn.PgError
		if errors.As(err, &refused) {
			switch refused.Code {
			case "28P01", "28000":
				fix = "correct user and password of postgres.dsn, and the server's pg_hba.conf"
			case "3D000":
				fix = "create the database, or correct its name in postgres.dsn"
			case "53300":
				fix = "raise max_connections, or lower postgres.max_conns of the instances"
			}
		}
		r.add(areaPostgres, "connection", Error, err.Error(), fix)
		return false
	}
	r.add(areaPostgres, "connection", OK, "PostgreSQL "+version+" answers", "")
	skewed(r, areaPostgres, o.Clock(), now, o.Clock().Sub(begin))
	if recovering {
		r.add(areaPostgres, "connection", Error, "this server is a read-only replica", "name the primary in postgres.dsn (target_session_attrs=read-write with several hosts)")
	}
	return true
}

func migrations(ctx context.Context, dsn string, opts postgres.PoolOptions, r *report) bool {
	pending, err := pendingMigrations(ctx, dsn, opts)
	switch {
	case err != nil:
		r.add(areaPostgres, "schema vitrina", Error, err.Error(), "give the user access to schema vitrina, and run `vitrina migrate up`")
	case len(pending) > 0:
		r.add(areaPostgres, "schema vitrina", Error, fmt.Sprintf("%d migrations are missing: %s", len(pending), strings.Join(pending, ", ")), "run `vitrina migrate up`")
	default:
		r.add(areaPostgres, "schema vitrina", OK, "up to date", "")
		return true
	}
	return false
}

func pendingMigrations(ctx context.Context, dsn string, opts postgres.PoolOptions) (pending []string, err error) {
	var db *sql.DB
	if db, err = postgres.OpenMigrator(dsn, opts); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	list, err := postgres.MigrationStatus(ctx, db)
	for _, m := range list {
		if !m.Applied {
			pending = append(pending, m.Name)
		}
	}
	return pending, err
}

// cardColumns are what this program uses of the catalog's tables (contracts, section 3).
func cardColumns() map[string]map[string][]string {
	return map[string]map[string][]string{
		"project_cards": {
			"id": {"uuid"}, "status": {"text", "character varying", "USER-DEFINED"}, "promotion_boost": {"integer", "bigint"}, "popularity_views": {"bigint"},
			"row_version": {"bigint", "integer"}, "updated_at": {"timestamp with time zone"},
		},
		"property_object_cards": {
			"id": {"uuid"}, "project_id": {"uuid"}, "status": {"text", "character varying", "USER-DEFINED"}, "promotion_boost": {"integer", "bigint"},
			"popularity_views": {"bigint"}, "row_version": {"bigint", "integer"}, "updated_at": {"timestamp with time zone"},
		},
	}
}

func cards(ctx context.Context, pool *pgxpool.Pool, r *report) {
	for table, want := range cardColumns() {
		name := "catalog." + table
		rows, err := pool.Query(ctx, `SELECT column_name::text, data_type::text FROM information_schema.columns WHERE table_schema = 'catalog' AND table_name = $1`, table)
		if err != nil {
			r.add(areaPostgres, name, Error, err.Error(), "look at the server")
			continue
		}
		have := map[string]string{}
		var column, kind string
		if _, err = pgx.ForEachRow(rows, []any{&column, &kind}, func() error { have[column] = kind; return nil }); err != nil {
			r.add(areaPostgres, name, Error, err.Error(), "look at the server")
			continue
		}
		if len(have) == 0 {
			r.add(areaPostgres, name, Error, "it does not exist, or this user may not see it",
				"have the catalog service create it, or an updatable view of this name over its table; grant SELECT and UPDATE. For tests `vitrina migrate up` creates it")
			continue
		}
		for column, kinds := range want {
			switch got, ok := have[column]; {
			case !ok:
				r.add(areaPostgres, name, Error, "column "+column+" is missing", "have the catalog service add it ("+kinds[0]+"), or map it in the view of this name")
			case !slices.Contains(kinds, got):
				r.add(areaPostgres, name, Error, "column "+column+" is "+got+", not "+kinds[0], "have the catalog service change its type, or map it in the view of this name")
			}
		}
		var may bool
		err = pool.QueryRow(ctx, `SELECT has_table_privilege($1, 'SELECT') AND has_any_column_privilege($1, 'UPDATE')`, name).Scan(&may)
		if err == nil && !may {
			r.add(areaPostgres, name, Error, "this user may not read or update it", "GRANT SELECT, UPDATE (promotion_boost, popularity_views, row_version, updated_at) ON "+name+" TO the user of postgres.dsn")
		}
	}
}

// behindCards judges the indexes of the tables behind the catalog's names, by the names that the columns have there.
func behindCards(ctx context.Context, pool *pgxpool.Pool, r *report) {
	for table := range cardColumns() {
		name := "catalog." + table
		columns := []string{"promotion_boost", "popularity_views", "row_version", "updated_at"}
		if table == "property_object_cards" {
			columns = append(columns, "project_id")
		}
		var behind, reason *string
		var there []string
		err := pool.QueryRow(ctx, `SELECT t.relation::regclass::text, t.columns, t.reason FROM vitrina.card_table($1, $2) AS t`, name, columns).Scan(&behind, &there, &reason)
		if err != nil {
			r.add(areaPostgres, name, Warning, "its indexes cannot be judged: "+err.Error(), "look at the server")
			continue
		}
		if reason != nil || behind == nil {
			continue // the columns or the triggers have a finding of their own
		}
		indexes(ctx, pool, r, *behind, columns, there)
	}
}

func indexes(ctx context.Context, pool *pgxpool.Pool, r *report, table string, columns, there []string) {
	rows, err := pool.Query(ctx, `
		SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid),
			coalesce((SELECT array_agg(a.attname::text) FROM pg_attribute a WHERE a.attrelid = i.indrelid AND (a.attnum = ANY (i.indkey)
				OR pg_get_expr(coalesce(i.indpred, i.indexprs), i.indrelid) ~ ('\m' || a.attname || '\M')
				OR pg_get_expr(i.indexprs, i.indrelid) ~ ('\m' || a.attname || '\M'))), '{}'),
			coalesce((SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = i.indkey[0]), ''), i.indpred IS NULL AND i.indisvalid,
			(SELECT am.amname = 'brin' FROM pg_class c JOIN pg_am am ON am.oid = c.relam WHERE c.oid = i.indexrelid)
		FROM pg_index i WHERE i.indrelid = $1::text::regclass`, table)
	if err != nil {
		r.add(areaPostgres, table, Warning, "its indexes cannot be judged: "+err.Error(), "look at the server")
		return
	}
	var index, definition, first string
	var used []string
	var whole, brin bool
	byProject := false
	_, err = pgx.ForEachRow(rows, []any{&index, &definition, &used, &first, &whole, &brin}, func() error {
		for i, column := range there {
			switch {
			case columns[i] == "project_id":
				byProject = byProject || whole && first == column
			case slices.Contains(used, column) && !brin:
				r.add(areaPostgres, table, Warning, fmt.Sprintf("index %s covers %s: every boost or view writes all indexes of the card (no HOT updates)", index, column),
					"drop it, or leave the column out: "+definition)
			}
		}
		return nil
	})
	if err != nil {
		r.add(areaPostgres, table, Warning, "its indexes cannot be judged: "+err.Error(), "look at the server")
		return
	}
	if slices.Contains(columns, "project_id") && !byProject {
		r.add(areaPostgres, table, Warning, "no index begins with "+there[slices.Index(columns, "project_id")]+": each change of a project's boost reads the whole table",
			fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s)", table, there[slices.Index(columns, "project_id")]))
	}
}

// triggers asks what installing them would do, and undoes it.
func triggers(ctx context.Context, pool *pgxpool.Pool, r *report) {
	undo := errors.New("undo")
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		states, err := postgres.InstallCardTriggers(ctx, tx)
		if err != nil {
			return err
		}
		for _, s := range states {
			switch s.State {
			case postgres.TriggersPresent:
			case postgres.TriggersInstalled:
				r.add(areaPostgres, s.Card, Warning, "the triggers that note changed cards are missing on "+s.Table, "run `vitrina migrate up`; a running instance installs them too")
			default:
				r.add(areaPostgres, s.Card, Warning, "changes of cards cannot be noted: "+s.Detail+". Only the sweep (promotion.sweep_interval) finds them",
					"make the name a table or a simple view of one, and give the user the TRIGGER privilege on the table")
			}
		}
		return undo
	})
	if !errors.Is(err, undo) {
		r.add(areaPostgres, "card triggers", Warning, "they cannot be looked at: "+fmt.Sprint(err), "run `vitrina migrate up`")
	}
}

func projections(ctx context.Context, pool *pgxpool.Pool, r *report) {
	for _, name := range []string{postgres.PromotionBoost, postgres.Popularity, postgres.PriceHistory} {
		p, err := postgres.ReadProjection(ctx, pool, name)
		switch {
		case err != nil:
			r.add(areaPostgres, "projection "+name, Error, err.Error(), "run `vitrina migrate up`")
		case !p.Open:
			r.add(areaPostgres, "projection "+name, Warning, "it is closed: a rebuild or a replay is under way, its consumer waits", "follow it with GET /admin/operations, or run the rebuild again if nobody works on it")
		}
	}
}

func facts(ctx context.Context, o Options, r *report) {
	const area = "clickhouse"
	cfg := o.ClickHouse
	if cfg.DSN == "" {
		return // the configuration has a finding
	}
	cfg.DialTimeout, cfg.InsertTimeout, cfg.QueryTimeout = min(3e9, max(cfg.DialTimeout, 1e9)), 8e9, 8e9
	if err := clickhouse.Check(ctx, cfg); err != nil {
		r.add(area, "facts table", Error, err.Error(), "start ClickHouse, correct clickhouse.dsn, or run `vitrina migrate up`, as the problem says")
		return
	}
	conn, err := clickhouse.Open(cfg)
	if err != nil {
		r.add(area, "clickhouse.dsn", Error, err.Error(), "correct clickhouse.dsn")
		return
	}
	begin := o.Clock()
	var now = begin
	var version string
	if err := conn.QueryRow(ctx, "SELECT version(), now64(3, 'UTC')").Scan(&version, &now); err != nil {
		r.add(area, "connection", Error, clickhouse.Explain(err, "answer").Error(), "look at the server")
	} else {
		r.add(area, "connection", OK, "ClickHouse "+version+" answers, the table is as the contract says", "")
		skewed(r, area, o.Clock(), now, o.Clock().Sub(begin))
	}
	var readonly uint8
	if err := conn.QueryRow(ctx, "SELECT toUInt8(getSetting('readonly'))").Scan(&readonly); err == nil && readonly == 1 {
		r.add(area, "user", Error, "the user may only read (readonly=1): facts cannot be written", "give the user of clickhouse.dsn a profile without readonly, and INSERT on the table")
	}
	if err := conn.Close(); err != nil {
		r.add(area, "connection", Warning, err.Error(), "look at the server")
	}
}
