package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	vitrina "github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/demo"
	"github.com/pin-marketplace/vitrina/internal/devstack"
	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/test/model"
)

type demoCmd struct {
	Duration time.Duration `placeholder:"30s" help:"End by itself after this time, with a summary that compares the databases with what was generated; exit code 1 on any difference. Without: until Ctrl-C."`
	Rate     float64       `default:"500" help:"Events a second."`
	Seed     uint64        `default:"1" help:"Another seed, another city."`
	Dir      string        `placeholder:"DIR" help:"Where the demo keeps its data; emptied at each start. Default: .state/demo."`
}

// Help is part of kong's interface.
func (demoCmd) Help() string {
	return `Starts an embedded Kafka broker, a local PostgreSQL and a local ClickHouse, creates schemas and topics, and plays the events of a city:
people who look at flats, campaigns that promote them, prices that move, with duplicates, disorder, late cards and malformed records.

Examples:
  vitrina demo
  vitrina demo --duration 30s --rate 2000`
}

// Run runs the demo.
func (c demoCmd) Run(a *app) (err error) {
	if err := devstack.ClickHouseAvailable(); err != nil {
		return fmt.Errorf("the demo cannot run: %w", err)
	}
	dir := c.Dir
	if dir == "" {
		dir = filepath.Join(".state", "demo")
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("the demo's directory: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("empty the demo's directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL runs as another user below it
		return fmt.Errorf("create the demo's directory: %w", err)
	}
	logFile, err := os.Create(filepath.Join(dir, "vitrina.log")) //nolint:gosec // the operator names the directory
	if err != nil {
		return fmt.Errorf("create the demo's log: %w", err)
	}
	defer func() { err = errors.Join(err, logFile.Close()) }()
	logger := telemetry.NewLogger(logFile, telemetry.LogOptions{Level: slog.LevelInfo})
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.stdout, format+"\n", args...) } // a closed terminal ends with the signal

	say("starting an embedded Kafka broker, PostgreSQL and ClickHouse (the first start downloads what is missing) …")
	stack, err := demo.StartStack(a.ctx, dir, slog.New(progress{w: a.stdout}))
	if err != nil {
		return fmt.Errorf("start the demo's servers: %w", err)
	}
	defer func() { err = errors.Join(err, stack.Stop(context.WithoutCancel(a.ctx))) }()
	cfg, err := c.configure(a, stack, dir)
	if err != nil {
		return err
	}
	if _, err := migrateUp(a.ctx, cfg, "both"); err != nil {
		return err
	}
	if _, err := applyTopics(a.ctx, cfg); err != nil {
		return err
	}
	return c.play(a, cfg, logger, say, dir)
}

// configure is the program's configuration in the demo: quick looks for late cards, everything else as by default.
func (c demoCmd) configure(a *app, stack *demo.Stack, dir string) (*config.Config, error) {
	src := a.source()
	for key, value := range map[string]string{
		"state.dir": filepath.Join(dir, "state"), "popularity.retry_delays": "1s,2s,4s,8s,16s,32s", "promotion.reconcile_interval": "2s",
		"price.batch_interval": "1s", "instance.id": "demo", "http.admin_token": "demo",
	} {
		if _, given := src.Flags[key]; !given {
			src.Flags[key] = value
		}
	}
	cfg, err := a.loadFrom(src)
	if err != nil {
		return nil, err
	}
	dsn, err := stack.ClickHouse.CreateDatabase(a.ctx, "pin_analytics")
	if err != nil {
		return nil, err
	}
	stack.Configure(cfg, dsn)
	return cfg, nil
}

// play generates and consumes until the time is over, and compares.
func (c demoCmd) play(a *app, cfg *config.Config, logger *slog.Logger, say func(string, ...any), dir string) error {
	runCtx, stop := context.WithCancel(context.WithoutCancel(a.ctx))
	defer stop()
	var program *vitrina.App
	started := make(chan string, 1)
	finished := make(chan error, 1)
	go func() {
		finished <- serve(runCtx, cfg, logger, a.environ, config.Watcher{}, func(addr string, p *vitrina.App) {
			program = p
			started <- addr
		})
	}()
	var addr string
	select {
	case err := <-finished:
		return err
	case addr = <-started:
	}
	say("")
	say("  console, API, metrics   http://%s/  (/api/v1/pipelines, /metrics, /readyz; admin token: demo)", addr)
	say("  Kafka                   %s", cfg.Kafka.Brokers[0])
	say("  PostgreSQL              %s", cfg.Postgres.DSN.Reveal())
	say("  ClickHouse              %s", cfg.ClickHouse.DSN.Reveal())
	say("  log                     %s", filepath.Join(dir, "vitrina.log"))
	say("")

	expected := model.New(time.Now())
	var mu sync.Mutex // expected, between the generator and the summary
	sent, sendErr := c.generate(a, cfg, &mu, expected, program, say)
	if a.ctx.Err() != nil && c.Duration == 0 {
		say("stopping …")
		stop()
		return errors.Join(sendErr, <-finished)
	}
	if sendErr != nil {
		stop()
		return errors.Join(sendErr, <-finished)
	}
	say("%d events were sent; comparing the databases with them …", sent.Records)
	differences, err := c.compare(a, program, expected)
	stop()
	if err := errors.Join(err, <-finished); err != nil {
		return err
	}
	for i, d := range differences {
		if i == 20 {
			say("  … and %d more", len(differences)-i)
			break
		}
		say("  %s", d)
	}
	want := expected.Expected()
	say("%d cards, %d facts, %d dead letters compared: %d differences", len(want.Cards), len(want.Facts), len(want.DeadLetters), len(differences))
	if len(differences) > 0 {
		return errFound
	}
	return nil
}

// generate sends events until the time is over, showing each second what happens.
func (c demoCmd) generate(a *app, cfg *config.Config, mu *sync.Mutex, expected *model.Model, program *vitrina.App, say func(string, ...any)) (generate.Summary, error) {
	conn, err := pgx.Connect(a.ctx, cfg.Postgres.DSN.Reveal())
	if err != nil {
		return generate.Summary{}, fmt.Errorf("connect to PostgreSQL for the cards: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(a.ctx)) }() // nothing is buffered in it
	writer, err := generate.NewKafkaWriter(program.Kafka().KgoOpts(), "crc32", c.Seed)
	if err != nil {
		return generate.Summary{}, err
	}
	defer writer.Close()

	span := c.Duration
	if span == 0 {
		span = 24 * time.Hour
	}
	events := int(c.Rate * span.Seconds())
	o := generate.Defaults()
	o.Seed, o.Start, o.Span = c.Seed, time.Now().UTC().Truncate(time.Second), span
	o.Views, o.Purchases, o.Prices = events*8/10, max(1, events/20), max(1, events/8)
	o.Malformed = 1

	ticking, stopTicking := context.WithCancel(context.WithoutCancel(a.ctx))
	var line sync.WaitGroup
	line.Go(func() { program.Watch(ticking, time.Second, func(s vitrina.Snapshot) { say("%s", s) }) })
	sum, err := generate.Send(a.ctx, generate.WithoutErrors(generate.Items(o)), generate.Destination{
		Records: writer, Cards: generate.PostgresCards{DB: conn}, Rate: c.Rate,
		Observe: func(item generate.Item) {
			mu.Lock()
			defer mu.Unlock()
			item.Give(expected)
		},
	})
	stopTicking()
	line.Wait()
	if a.ctx.Err() != nil { // Ctrl-C: what was sent until then counts
		err = errors.Join(writer.Flush(context.WithoutCancel(a.ctx)))
	}
	return sum, err
}

// patience is how long the comparison waits without progress: the longest retry of a late card lies within.
const patience = 40 * time.Second

func (c demoCmd) compare(a *app, program *vitrina.App, expected *model.Model) ([]model.Difference, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), 3*time.Minute)
	defer cancel()
	sources := demo.Sources{Postgres: program.Pool(), ClickHouse: program.Facts(), Kafka: program.Kafka().KgoOpts()}
	return sources.Settle(ctx, expected.Expected(), patience)
}

// progress shows what devstack does as plain lines.
type progress struct{ w io.Writer }

func (progress) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (p progress) Handle(_ context.Context, r slog.Record) error {
	_, err := fmt.Fprintln(p.w, "  "+r.Message)
	return err
}
func (p progress) WithAttrs([]slog.Attr) slog.Handler { return p }
func (p progress) WithGroup(string) slog.Handler      { return p }
