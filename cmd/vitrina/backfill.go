package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	vitrina "github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/backfill"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
)

type backfillCmd struct {
	PriceHistory backfillPriceCmd `cmd:"" name:"price-history" help:"Load price history from CSV, JSON lines (both also .gz) or Parquet files into ClickHouse."`
}

type backfillPriceCmd struct {
	Files     []string `arg:"" name:"file" help:"Files: .csv, .jsonl, .ndjson, .json (a value a line), each also with .gz, and .parquet."`
	DryRun    bool     `help:"Judge every row and write nothing but the report of rejected rows."`
	Again     bool     `help:"Load everything again, also what a former run has loaded; harmless, rows collapse."`
	BatchRows int      `default:"50000" help:"Rows of one insert at most."`
}

// Help is part of kong's interface.
func (backfillPriceCmd) Help() string {
	return `Each row is a payload of the price event, its columns named as the payload's properties, and is judged by the rules of events. Rejected
rows are left out and listed, with their line and reason, in a report below state.dir. An interrupted run goes on where it was when it is
run again with the same files; a repeated one loads nothing twice. While ClickHouse is away it waits. Exit code 1 when rows were rejected.

Example:
  vitrina backfill price-history prices-2024.csv.gz prices-2025.parquet`
}

// Run loads the files.
func (c backfillPriceCmd) Run(a *app) (err error) {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	if cfg.ClickHouse.DSN == "" {
		return usageError{errors.New("clickhouse.dsn is not set (VITRINA_CLICKHOUSE_DSN)")}
	}
	logger, err := a.logger(cfg)
	if err != nil {
		return err
	}
	target := vitrina.ClickHouseConfig(cfg)
	if err := clickhouse.Check(a.ctx, target); err != nil {
		return err
	}
	conn, err := clickhouse.Open(target)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	address, err := ch.ParseDSN(target.DSN)
	if err != nil {
		return errors.New("clickhouse.dsn cannot be read") // the driver's error may quote the password
	}
	slices.Sort(address.Addr)
	reports, err := backfill.Run(a.ctx, backfill.Config{
		StateDir: cfg.State.Dir, Target: strings.Join(address.Addr, ",") + " " + conn.Table(), BatchRows: c.BatchRows, Backoff: cfg.Backoff.Config(),
		Clock: time.Now, DryRun: c.DryRun, Again: c.Again, Progress: a.showBackfill(),
	}, clickhouse.NewInserter(conn), logger, c.Files...)
	if printErr := a.printBackfill(reports); printErr != nil {
		return errors.Join(err, printErr)
	}
	if err == nil && slices.ContainsFunc(reports, func(r backfill.FileReport) bool { return r.Rejected > 0 }) {
		return errFound
	}
	return err
}

// showBackfill writes a line of progress a second, and each wait.
func (a *app) showBackfill() func(backfill.Progress) {
	shown := time.Now()
	return func(p backfill.Progress) {
		now := time.Now()
		if p.WaitingOn == "" && now.Sub(shown) < time.Second {
			return
		}
		shown = now
		line := fmt.Sprintf("%s: %d%%, %d rows, %d written, %d rejected", p.File, 100*p.Bytes/max(p.Size, 1), p.Rows, p.Written, p.Rejected)
		if p.WaitingOn != "" {
			line += ", waits: " + a.redact.Text(p.WaitingOn)
		}
		_, _ = fmt.Fprintln(a.stderr, line) // progress is worth no failure
	}
}

func (a *app) printBackfill(reports []backfill.FileReport) error {
	rows := make([][]string, 0, len(reports))
	for _, r := range reports {
		note := r.RejectedReport
		if r.AlreadyDone {
			note = strings.TrimSpace("loaded by a former run " + note)
		}
		if len(r.IgnoredColumns) > 0 {
			note = strings.TrimSpace(note + " ignored columns: " + strings.Join(r.IgnoredColumns, ", "))
		}
		rows = append(rows, []string{r.File, strconv.FormatInt(r.Rows, 10), strconv.FormatInt(r.Written, 10), strconv.FormatInt(r.Rejected, 10), r.Took.Round(time.Millisecond).String(), note})
	}
	if reports == nil {
		reports = []backfill.FileReport{}
	}
	return a.print(reports, []string{"FILE", "ROWS", "WRITTEN", "REJECTED", "TOOK", "REJECTED ROWS IN"}, rows)
}
