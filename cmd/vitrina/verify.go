package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	vitrina "github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/ops/verify"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

type verifyCmd struct {
	Projection string        `arg:"" enum:"promotion-boost,popularity,price-history" help:"promotion-boost, popularity or price-history."`
	Repair     bool          `help:"Mend what needs no rebuild: boosts and missing facts."`
	Settle     time.Duration `default:"5s" help:"How long to wait before what differs is looked at again."`
}

// Help is part of kong's interface.
func (verifyCmd) Help() string {
	return `Recomputes what the databases should hold from Kafka and compares, while everything runs: boosts from the group table, views from the
marks, facts from the events that the topic still holds. What is not finished is left out, and what differs is looked at twice. Each
difference comes with its likely cause. Exit code 1 when differences are left.

Examples:
  vitrina verify promotion-boost
  vitrina verify price-history --repair --output json`
}

// Run verifies.
func (c verifyCmd) Run(a *app) (err error) {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	logger, err := a.logger(cfg)
	if err != nil {
		return err
	}
	k, err := vitrina.KafkaConfig(cfg, time.Now)
	if err != nil {
		return err
	}
	admin, err := stream.NewAdmin(k)
	if err != nil {
		return err
	}
	defer admin.Close()
	pool, err := postgres.NewPool(a.ctx, cfg.Postgres.DSN.Reveal(), postgres.PoolOptions{ApplicationName: "vitrina verify", StatementTimeout: cfg.Postgres.StatementTimeout})
	if err != nil {
		return err
	}
	defer pool.Close()
	v := &verify.Verifier{
		Admin: admin, Pool: pool, Logger: logger, Clock: time.Now, PromotionsEnabled: cfg.Catalog.Promotions.Enabled, Settle: c.Settle,
		Progress: func(phase string) { _, _ = fmt.Fprintln(a.stderr, phase) }, // progress is worth no failure
	}
	if c.Projection == verify.PriceHistory && cfg.ClickHouse.DSN != "" {
		if err := clickhouse.Check(a.ctx, vitrina.ClickHouseConfig(cfg)); err != nil {
			return err
		}
		if v.Facts, err = clickhouse.Open(vitrina.ClickHouseConfig(cfg)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, v.Facts.Close()) }()
	}
	report, err := v.Run(a.ctx, c.Projection, c.Repair)
	if err != nil {
		return err
	}
	if err := a.printVerified(report); err != nil {
		return err
	}
	if report.Total > 0 {
		return errFound
	}
	return nil
}

func (a *app) printVerified(r *verify.Report) error {
	if a.globals.Output == "json" {
		return a.printJSON(r)
	}
	if len(r.Differences) > 0 {
		rows := make([][]string, 0, len(r.Differences))
		for _, d := range r.Differences {
			kind := "differs"
			if d.Note {
				kind = "note"
			}
			rows = append(rows, []string{kind, d.What, d.ID, d.Expected, d.Actual, d.Cause})
		}
		if err := a.printTable([]string{"", "WHAT", "ID", "EXPECTED", "ACTUAL", "LIKELY CAUSE"}, rows); err != nil {
			return err
		}
	}
	var checked []string
	for _, name := range slices.Sorted(maps.Keys(r.Checked)) {
		checked = append(checked, fmt.Sprintf("%d %s", r.Checked[name], name))
	}
	lines := append([]string{fmt.Sprintf("%s: %d differences, %d repaired; looked at %s; %d records not finished were left out",
		r.Projection, r.Total, r.Repaired, strings.Join(checked, ", "), r.InFlight)}, r.Notes...)
	_, err := fmt.Fprintln(a.stdout, strings.Join(lines, "\n"))
	return err
}
