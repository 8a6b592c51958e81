package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
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
it is missing. The catalog's card tables are created only where nothing has their name (development, tests).

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
	steps, err := migrateUp(a.ctx, cfg, c.Only)
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
	if only != "postgres" {
		applied, err := clickhouse.Migrate(ctx, vitrina.ClickHouseConfig(cfg))
		steps = append(steps, clickhouseSteps(applied)...)
		if err != nil {
			return steps, fmt.Errorf("migrating ClickHouse: %w", err)
		}
	}
	return steps, nil
}

// Run shows what both databases have.
func (c migrateStatusCmd) Run(a *app) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	var steps []step
	if c.Only != "clickhouse" {
		list, err := withMigrator(cfg, func(db *sql.DB) ([]postgres.Migration, error) { return postgres.MigrationStatus(a.ctx, db) })
		if err != nil {
			return fmt.Errorf("asking PostgreSQL: %w", err)
		}
		steps = append(steps, postgresSteps(list)...)
	}
	if c.Only != "postgres" {
		list, err := clickhouse.MigrationStatus(a.ctx, vitrina.ClickHouseConfig(cfg))
		if err != nil {
			return fmt.Errorf("asking ClickHouse: %w", err)
		}
		steps = append(steps, clickhouseSteps(list)...)
	}
	if err := a.printSteps(steps, "no migrations"); err != nil {
		return err
	}
	for _, s := range steps {
		if !s.Applied || s.Problem != "" {
			return errFound
		}
	}
	return nil
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
