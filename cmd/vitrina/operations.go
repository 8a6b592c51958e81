package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	vitrina "github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/ops/rebuild"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// operator runs operations from the command line: it takes part in the work like an instance.
type operator struct {
	cfg    *config.Config
	pool   *pgxpool.Pool
	admin  *stream.Admin
	runner *rebuild.Runner
	by     string
}

func newOperator(ctx context.Context, cfg *config.Config) (*operator, error) {
	kafka, err := vitrina.KafkaConfig(cfg, time.Now)
	if err != nil {
		return nil, err
	}
	instance, err := cfg.InstanceID()
	if err != nil {
		return nil, err
	}
	o := &operator{cfg: cfg, by: "command line on " + instance}
	if o.admin, err = stream.NewAdmin(kafka); err != nil {
		return nil, err
	}
	if o.pool, err = postgres.NewPool(ctx, cfg.Postgres.DSN.Reveal(), postgres.PoolOptions{ApplicationName: "vitrina " + o.by, MaxConns: 4}); err != nil {
		o.close()
		return nil, err
	}
	// What goes wrong is shown with the progress.
	o.runner, err = rebuild.New(vitrina.OperationsConfig(cfg, o.pool, o.admin, kafka, o.by, func() bool { return cfg.Catalog.Promotions.Enabled }, slog.New(slog.DiscardHandler)))
	if err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

func (o *operator) close() {
	o.admin.Close()
	if o.pool != nil {
		o.pool.Close()
	}
}

func (o *operator) submit(ctx context.Context, q rebuild.Request) (op postgres.Operation, made bool, err error) {
	q.By = o.by
	return rebuild.Submit(ctx, o.pool, q, o.cfg.Catalog.Promotions.Enabled)
}

// runOperation asks for an operation and, with wait, works on it and shows its progress until it ends.
func (a *app) runOperation(o *operator, q rebuild.Request, wait bool) error {
	op, made, err := o.submit(a.ctx, q)
	if err != nil {
		return err
	}
	if !wait {
		return a.printOperation(op)
	}
	if !made {
		_, _ = fmt.Fprintf(a.stderr, "joins the same %s, asked for by %s at %s (operation %s)\n", op.Kind, op.RequestedBy, op.RequestedAt.UTC().Format(time.RFC3339), op.ID)
	}
	if op, err = o.follow(a.ctx, op.ID, a.stderr); err != nil {
		return err
	}
	if err := a.printOperation(op); err != nil {
		return err
	}
	if op.State != postgres.OperationSucceeded {
		return fmt.Errorf("the %s of %s failed: %s", op.Kind, op.Projection, op.Error)
	}
	return nil
}

// follow works on the operation where nobody else does, and writes its progress to w until it ends. When ctx ends, it leaves the
// operation as it is.
func (o *operator) follow(ctx context.Context, id uuid.UUID, w io.Writer) (op postgres.Operation, err error) {
	working, stop := context.WithCancel(ctx)
	var g errgroup.Group
	g.Go(func() error {
		for working.Err() == nil {
			// An error is an outage, which the watching sees as well.
			if _, err := o.runner.RunOne(working, id); err != nil && working.Err() == nil {
				_, _ = fmt.Fprintf(w, "%s (tried again)\n", err)
			}
			backoff.Sleep(working, 2*time.Second)
		}
		return nil
	})
	op, err = o.watch(ctx, id, w)
	stop()
	// It releases the lease, so that others go on at once.
	return op, errors.Join(err, g.Wait())
}

func (o *operator) watch(ctx context.Context, id uuid.UUID, w io.Writer) (postgres.Operation, error) {
	last, failures := "", 0
	for {
		op, err := postgres.ReadOperation(ctx, o.pool, id)
		switch {
		case ctx.Err() != nil:
			return op, fmt.Errorf("left operation %s as it is: an instance goes on with it within 15 s, or the same command does; GET /admin/operations/%s shows it", id, id)
		case err != nil:
			if failures++; failures > 60 {
				return op, err
			}
			backoff.Sleep(ctx, time.Second)
			continue
		case !op.Active():
			return op, nil
		}
		failures = 0
		if line := progressLine(op); line != last {
			last = line
			_, _ = fmt.Fprintln(w, line) // progress that nobody reads is no failure
		}
		backoff.Sleep(ctx, time.Second)
	}
}

func progressLine(op postgres.Operation) string {
	line := fmt.Sprintf("%-8s %s", op.Step, op.Message)
	if op.Total > 0 {
		line += fmt.Sprintf(" (%d of %d)", op.Done, op.Total)
	}
	if op.Error != "" {
		line += "; tried again after: " + op.Error
	}
	return line
}

func (a *app) printOperation(op postgres.Operation) error {
	s := rebuild.StatusOf(op)
	result := s.Progress.Message
	if s.Error != nil {
		if result != "" {
			result += ". "
		}
		result += *s.Error
	}
	return a.print(s, []string{"OPERATION", "KIND", "PROJECTION", "FROM", "STATE", "STEP", "RESULT"},
		[][]string{{s.ID.String(), s.Kind, s.Projection, s.Source, s.State, s.Progress.Step, result}})
}
