package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	vitrina "github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/httpserver"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

type runCmd struct {
	Roles []string `placeholder:"ROLE,..." help:"What this instance runs: any of promotion, popularity, price, api (roles). Default: all."`
}

// Help is part of kong's interface.
func (runCmd) Help() string {
	return `Runs processors, sinks and the HTTP server until SIGTERM or SIGINT, and then ends with exit code 0 within runtime.shutdown_timeout. A
dependency that is away is waited for: /readyz says which. SIGHUP, or a change of the file, reloads catalog.promotions.enabled.

Examples:
  vitrina run --config vitrina.yaml
  vitrina run --roles popularity,api --state-dir /var/lib/vitrina`
}

// Run runs the instance.
func (c runCmd) Run(a *app) error {
	src := a.source()
	if len(c.Roles) > 0 {
		src.Flags["roles"] = strings.Join(c.Roles, ",")
	}
	cfg, err := a.loadFrom(src)
	if err != nil {
		return err
	}
	if err := cfg.Require(cfg.Roles...); err != nil {
		return err
	}
	logger, err := a.logger(cfg)
	if err != nil {
		return err
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	return serve(a.ctx, cfg, logger, a.environ, config.Watcher{Source: src, Signals: hangups, Logger: logger}, nil)
}

const gcPercent = 300

// traceFlush is how long the last spans may take at the end. It lies within what config.Runtime.PipelineTimeout leaves.
const traceFlush = time.Second

// serve runs an instance until ctx ends. started, when not nil, is called with the address of the HTTP server once it listens.
func serve(ctx context.Context, cfg *config.Config, logger *slog.Logger, environ []string, watcher config.Watcher, started func(addr string, program *vitrina.App)) (err error) {
	if lookup(environ)("GOGC") == "" {
		// Measured: with the default of 100 the collector takes a tenth of the time. The price is memory while a backlog is worked off
		// (docs/state.md). GOGC and GOMEMLIMIT still decide where they are set.
		debug.SetGCPercent(gcPercent)
	}
	tracing, err := telemetry.NewTracing(ctx, version, lookup(environ), logger)
	if err != nil {
		return err
	}
	defer func() { // whatever comes: the exporter's goroutine and its last spans would be lost
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceFlush)
		defer cancel()
		err = errors.Join(err, tracing.Shutdown(flush))
	}()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	info := build()
	telemetry.RegisterBuildInfo(registry, info.Version, info.Revision)
	program, err := vitrina.New(ctx, cfg, vitrina.Deps{Logger: logger, Registerer: registry, Tracing: tracing, Clock: time.Now})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, program.Close()) }()
	options, err := program.HTTP()
	if err != nil {
		return err
	}
	options.Metrics = registry
	server := httpserver.New(options)
	if err := server.Listen(ctx); err != nil {
		return err
	}
	logger.LogAttrs(ctx, slog.LevelInfo, "vitrina runs", slog.String(telemetry.EventKey, "started"), slog.String("version", info.Version),
		slog.Any("roles", cfg.Roles), slog.String("instance", program.Instance()), slog.String("http", server.Addr()))
	if started != nil {
		started(server.Addr(), program)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return program.Run(ctx) })
	g.Go(func() error { return server.Run(ctx) })
	if watcher.Logger != nil {
		watcher.Apply = program.Apply
		g.Go(func() error { return watcher.Run(ctx, cfg) })
	}
	err = g.Wait()
	logger.LogAttrs(ctx, slog.LevelInfo, "vitrina has stopped", slog.String(telemetry.EventKey, "stopped"), slog.Bool("clean", err == nil))
	if err != nil {
		return fmt.Errorf("vitrina stopped: %w", err)
	}
	return nil
}

// lookup makes a getenv of an environment.
func lookup(environ []string) func(string) string {
	return func(name string) string {
		i := slices.IndexFunc(environ, func(e string) bool { return strings.HasPrefix(e, name+"=") })
		if i < 0 {
			return ""
		}
		return environ[i][len(name)+1:]
	}
}
