package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	vitrina "github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" help:"Create or upgrade the schemas in both databases; safe to repeat."`
	Status migrateStatusCmd `cmd:"" help:"Say what is applied and what is missing; changes nothing. Exit code 1 when something is missing."`
}

// Help is part of kong's interface.
func (migrateCmd) Help() string { return "Example:\n  vitrina migrate up" }

type migrateUpCmd struct {
	Only string `enum:"both,postgres,clickhouse" default:"both" help:"Which database: ${enum}."`
}

// Help is part of kong's interface.
func (migrateUpCmd) Help() string {
	return `Everything of this project lives in schema vitrina of PostgreSQL and in the database of the ClickHouse DSN, which is created when
it is missing. The catalog's card tables are created only where nothing has their name (development, tests). Without clickhouse.dsn
ClickHouse is left out where roles does not name price, which needs it; with price that is an error, unless --only postgres is given.

Example:
  VITRINA_POSTGRES_DSN=postgres://… VITRINA_CLICKHOUSE_DSN=clickhouse://… vitrina migrate up`
}

type migrateStatusCmd struct {
	Only string `enum:"both,postgres,clickhouse" default:"both" help:"Which database: ${enum}."`
}

// Help is part of kong's interface.
func (migrateStatusCmd) Help() string { return "Example:\n  vitrina migrate status --output json" }

// step is one migration of either database.
type step struct {
	Database  string    `json:"database"`
	Name      string    `json:"name"`
	Applied   bool      `json:"applied"`
	AppliedAt time.Time `json:"appliedAt,omitzero"`
	Problem   string    `json:"problem,omitempty"`
}

// Run migrates both databases.
func (c migrateUpCmd) Run(a *app) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	if err := a.sayLeftOut(cfg, c.Only); err != nil {
		return err
	}
	steps, err := migrateUp(a.ctx, cfg, c.Only)
	if err != nil && len(steps) == 0 {
		return err // "nothing to do" would be a lie
	}
	if printErr := a.printSteps(steps, "nothing to do: the schemas are up to date"); printErr != nil {
		return errors.Join(err, printErr)
	}
	return err
}

// migrateUp brings both databases to the newest schema and returns the steps it applied.
func migrateUp(ctx context.Context, cfg *config.Config, only string) ([]step, error) {
	var steps []step
	if only != "clickhouse" {
		applied, err := withMigrator(cfg, func(db *sql.DB) ([]postgres.Migration, error) { return postgres.Migrate(ctx, db) })
		steps = append(steps, postgresSteps(applied)...)
		if err != nil {
			return steps, fmt.Errorf("migrating PostgreSQL: %w", err)
		}
	}
	if only != "postgres" && !leftOut(cfg, only) {
		if err := hasClickHouse(cfg, only); err != nil {
			return steps, err
		}
		applied, err := clickhouse.Migrate(ctx, vitrina.ClickHouseConfig(cfg))
		steps = append(steps, clickhouseSteps(applied)...)
		if err != nil {
			return steps, fmt.Errorf("migrating ClickHouse: %w", err)
		}
	}
	return steps, nil
}

// leftOut tells whether ClickHouse is nobody's concern: nobody named it, and no role has use for its table. Role api runs without it; its
// price history then answers 503.
func leftOut(cfg *config.Config, only string) bool {
	return only == "both" && cfg.ClickHouse.DSN == "" && !slices.Contains(cfg.Roles, config.RolePrice)
}

func (a *app) sayLeftOut(cfg *config.Config, only string) error {
	if !leftOut(cfg, only) {
		return nil
	}
	if _, err := fmt.Fprintf(a.stderr, "ClickHouse is left out: clickhouse.dsn is not set, and none of the roles %s needs it\n", strings.Join(cfg.Roles, ", ")); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

// hasClickHouse says what to do where ClickHouse is wanted and nothing says where it is.
func hasClickHouse(cfg *config.Config, only string) error {
	const set = "set VITRINA_CLICKHOUSE_DSN or VITRINA_CLICKHOUSE_DSN_FILE"
	switch {
	case cfg.ClickHouse.DSN != "":
		return nil
	case only == "clickhouse":
		return errors.New("ClickHouse: clickhouse.dsn is not set: " + set)
	}
	return errors.New("ClickHouse: clickhouse.dsn is not set, and role price needs it: " + set + ", leave price out of roles, or choose PostgreSQL alone with --only postgres")
}

// Run shows what both databases have.
func (c migrateStatusCmd) Run(a *app) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	if err := a.sayLeftOut(cfg, c.Only); err != nil {
		return err
	}
	steps, err := migrationStatus(a.ctx, cfg, c.Only)
	if err != nil && len(steps) == 0 {
		return err // "no migrations" would be a lie
	}
	if err := errors.Join(err, a.printSteps(steps, "no migrations")); err != nil {
		return err
	}
	for _, s := range steps {
		if !s.Applied || s.Problem != "" {
			return errFound
		}
	}
	return nil
}

// migrationStatus is what both databases have, up to the first that does not say.
func migrationStatus(ctx context.Context, cfg *config.Config, only string) ([]step, error) {
	var steps []step
	if only != "clickhouse" {
		list, err := withMigrator(cfg, func(db *sql.DB) ([]postgres.Migration, error) { return postgres.MigrationStatus(ctx, db) })
		if err != nil {
			return nil, fmt.Errorf("asking PostgreSQL: %w", err)
		}
		steps = append(steps, postgresSteps(list)...)
	}
	if only != "postgres" && !leftOut(cfg, only) {
		if err := hasClickHouse(cfg, only); err != nil {
			return steps, err
		}
		list, err := clickhouse.MigrationStatus(ctx, vitrina.ClickHouseConfig(cfg))
		if err != nil {
			return steps, fmt.Errorf("asking ClickHouse: %w", err)
		}
		steps = append(steps, clickhouseSteps(list)...)
	}
	return steps, nil
}

func withMigrator(cfg *config.Config, do func(*sql.DB) ([]postgres.Migration, error)) (list []postgres.Migration, err error) {
	db, err := postgres.OpenMigrator(cfg.Postgres.DSN.Reveal(), postgres.PoolOptions{ApplicationName: "vitrina migrate"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return do(db)
}

func postgresSteps(list []postgres.Migration) []step {
	out := make([]step, 0, len(list))
	for _, m := range list {
		out = append(out, step{Database: "postgres", Name: m.Name, Applied: m.Applied, AppliedAt: m.AppliedAt})
	}
	return out
}

func clickhouseSteps(list []clickhouse.Migration) []step {
	out := make([]step, 0, len(list))
	for _, m := range list {
		out = append(out, step{Database: "clickhouse", Name: m.Name, Applied: m.Applied, Problem: m.Problem})
	}
	return out
}

func (a *app) printSteps(steps []step, none string) error {
	if len(steps) == 0 && a.globals.Output != "json" {
		_, err := fmt.Fprintln(a.stdout, none)
		return err
	}
	rows := make([][]string, 0, len(steps))
	for _, s := range steps {
		rows = append(rows, []string{s.Database, s.Name, strconv.FormatBool(s.Applied), s.Problem})
	}
	if steps == nil {
		steps = []step{}
	}
	return a.print(steps, []string{"DATABASE", "STEP", "APPLIED", "PROBLEM"}, rows)
}
