package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

// commands composes the program: a command is a field here and a file beside this one. Its struct holds its flags; its
// method Run(*app) error does the work; its method Help() string shows an example.
type commands struct {
	globals

	Run      runCmd      `cmd:"" help:"Run the consumers and the HTTP server until a signal."`
	Demo     demoCmd     `cmd:"" help:"Run the whole system on this machine with nothing set up."`
	Migrate  migrateCmd  `cmd:"" help:"Create or upgrade the schemas of both databases."`
	Topics   topicsCmd   `cmd:"" help:"Create and check the topics."`
	Rebuild  rebuildCmd  `cmd:"" help:"Rebuild a projection: boosts or view counters. Resumable."`
	Replay   replayCmd   `cmd:"" help:"Move the price history group back; duplicates collapse."`
	Get      getCmd      `cmd:"" help:"Ask a running instance about a purchase, a target, a card, a view or prices."`
	DLQ      dlqCmd      `cmd:"" name:"dlq" help:"List, show, put back and drop dead letters."`
	Explain  explainCmd  `cmd:"" name:"explain-event" help:"Say offline what an event would do and why; exit code 1 when it breaks its contract."`
	Check    checkCmd    `cmd:"" help:"Validate the configuration and reach every dependency; each finding says how to mend it."`
	Verify   verifyCmd   `cmd:"" help:"Recompute what the databases should hold, compare, and mend."`
	Backfill backfillCmd `cmd:"" help:"Load history from files."`
	Generate generateCmd `cmd:"" help:"Make realistic event streams, to Kafka or to a file."`
	Config   configCmd   `cmd:"" help:"Show the settings and explain them."`
	Version  versionCmd  `cmd:"" help:"Say which build this is."`
}

// globals are the flags of every command. Those with a setting tag are settings by another name.
type globals struct {
	ConfigFile string            `name:"config" env:"VITRINA_CONFIG" placeholder:"FILE" help:"YAML file with settings (docs/configuration.md)." group:"Settings of every command:"`
	Output     string            `short:"o" enum:"table,json" default:"table" help:"How results are printed: table or json." group:"Settings of every command:"`
	Set        map[string]string `placeholder:"KEY=VALUE" help:"Any setting, over file and environment; repeatable." mapsep:"none" group:"Settings of every command:"`

	Brokers    *string `name:"kafka-brokers" setting:"kafka.brokers" placeholder:"HOST:PORT,..." help:"Brokers to start from (kafka.brokers)." group:"Settings of every command:"`
	Postgres   *string `name:"postgres-dsn" setting:"postgres.dsn" placeholder:"DSN" help:"Catalog database (postgres.dsn); better from the environment, flags are seen by everybody on the machine." group:"Settings of every command:"`
	ClickHouse *string `name:"clickhouse-dsn" setting:"clickhouse.dsn" placeholder:"DSN" help:"Analytics database (clickhouse.dsn)." group:"Settings of every command:"`
	StateDir   *string `name:"state-dir" setting:"state.dir" placeholder:"DIR" help:"Local stores (state.dir)." group:"Settings of every command:"`
	HTTPAddr   *string `name:"http-addr" setting:"http.addr" placeholder:"HOST:PORT" help:"Address of the HTTP server (http.addr)." group:"Settings of every command:"`
	LogLevel   *string `name:"log-level" setting:"log.level" placeholder:"LEVEL" help:"debug, info, warn or error (log.level)." group:"Settings of every command:"`
}

const description = `Carries promotion, view and price events of the marketplace from Kafka to catalog cards (PostgreSQL) and price history (ClickHouse).

Settings come from a YAML file (--config), VITRINA_ environment variables and flags; "vitrina config reference" lists them.
Exit codes: 0 done; 1 it failed, or found something wrong; 2 wrong usage or configuration.`

const (
	exitFailed = 1
	exitUsage  = 2
)

// process is what the program is given by the operating system.
type process struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string
	exit           func(int)
}

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, args []string, p process) int {
	var cli commands
	a := &app{ctx: ctx, process: p, globals: &cli.globals}
	parser, err := kong.New(&cli, kong.Name("vitrina"), kong.Description(description), kong.Writers(p.stdout, p.stderr),
		kong.Exit(p.exit), kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}))
	if err != nil {
		return a.report(fmt.Errorf("set up the command line: %w", err))
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return a.report(usageError{err})
	}
	return a.report(parsed.Run(a))
}

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// configError is a configuration that cannot be read.
type configError struct{ error }

func (e configError) Unwrap() error { return e.error }

// errFound ends a command with code 1 although it did its work: what it printed says why.
var errFound = errors.New("found something wrong")

// app is what a command works with.
type app struct {
	process
	ctx     context.Context //nolint:containedctx // one value for one command line
	globals *globals
	redact  *telemetry.Redactor
}

// report prints an error as a person reads it, secrets hidden, and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return 0
	}
	if errors.Is(err, errFound) {
		return exitFailed
	}
	code, hint := exitFailed, ""
	var usage usageError
	var faults config.Faults
	var unreadable configError
	switch {
	case errors.As(err, &usage):
		code, hint = exitUsage, "\n(vitrina --help, or vitrina COMMAND --help, shows the usage)"
	case errors.As(err, &faults), errors.As(err, &unreadable):
		code = exitUsage
	}
	_, _ = fmt.Fprintln(a.stderr, "vitrina:", a.redact.Text(err.Error())+hint) // nowhere is left to report to
	return code
}

// source says where this command line's settings come from.
func (a *app) source() config.Source {
	src := config.Source{File: a.globals.ConfigFile, Environ: a.environ, Flags: map[string]string{}}
	v := reflect.ValueOf(a.globals).Elem()
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("setting")
		if text, ok := v.Field(i).Interface().(*string); ok && key != "" && text != nil {
			src.Flags[key] = *text
		}
	}
	for key, value := range a.globals.Set {
		src.Flags[strings.TrimSpace(key)] = value
	}
	return src
}

// load reads the settings; from then on their secrets are hidden in everything this command prints.
func (a *app) load() (*config.Config, error) { return a.loadFrom(a.source()) }

// loadFrom is load for a command that adds settings of its own.
func (a *app) loadFrom(src config.Source) (*config.Config, error) {
	cfg, err := config.Load(src)
	if err != nil {
		return nil, configError{err}
	}
	a.redact = telemetry.NewRedactor(cfg.Secrets()...)
	return cfg, nil
}

// logger writes JSON lines to standard error: standard output belongs to results.
func (a *app) logger(cfg *config.Config) (*slog.Logger, error) {
	level, err := cfg.Log.SlogLevel()
	if err != nil {
		return nil, fmt.Errorf("log.level: %w", err)
	}
	return telemetry.NewLogger(a.stderr, telemetry.LogOptions{Level: level, Redact: a.redact}), nil
}
