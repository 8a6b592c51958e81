package rebuild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// Config is what a Runner works with. Pool, Admin, Kafka, Instance, PromotionsEnabled, Backoff and Logger are required.
type Config struct {
	Pool     *pgxpool.Pool
	Admin    *stream.Admin
	Kafka    stream.KafkaConfig
	Topics   stream.TopicOptions
	Instance string // shown as the lease's holder

	PromotionsEnabled func() bool
	Backoff           backoff.Config
	Logger            *slog.Logger

	Lease  time.Duration // how long a dead holder keeps others waiting; default 15 s
	Poll   time.Duration // how often a waiting runner looks for work; default 3 s
	Pause  time.Duration // between two looks at the group; default 500 ms
	Settle time.Duration // how long the group must stay empty; default 2 s, above the poll of the roles' gates
}

// Runner does the steps of operations. Any number of runners, in any processes, may share a database. All methods are safe for
// concurrent use.
type Runner struct {
	cfg    Config
	holder string
	// crash, in tests, ends the work as the death of the process would: nothing is recorded or released any more.
	crash func(point string) error
}

// New checks the configuration. It connects to nothing.
func New(cfg Config) (*Runner, error) {
	if cfg.Pool == nil || cfg.Admin == nil || cfg.PromotionsEnabled == nil || cfg.Logger == nil {
		return nil, errors.New("a runner of operations needs a pool, an admin client, the feature flag and a logger")
	}
	if err := errors.Join(cfg.Backoff.Validate(), cfg.Kafka.Validate()); err != nil {
		return nil, err
	}
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{{&cfg.Lease, 15 * time.Second}, {&cfg.Poll, 3 * time.Second}, {&cfg.Pause, 500 * time.Millisecond}, {&cfg.Settle, 2 * time.Second}} {
		if *d.value <= 0 {
			*d.value = d.def
		}
	}
	// A process that starts again under the same name is another holder: what its predecessor had under way is unknown to it.
	return &Runner{cfg: cfg, holder: cfg.Instance + " " + uuid.NewString()[:8]}, nil
}

// atOnce is how many operations a runner works on at the same time: one for each projection, because one that waits for an
// instance, or for the flag, must not hold up the others.
const atOnce = 3

// Run works on operations that nobody works on, until ctx ends, and then returns nil. A database that is away is waited for.
func (r *Runner) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for n := range atOnce {
		workers.Go(func() { r.serve(ctx, n == 0) })
	}
	workers.Wait()
	return nil
}

// serve works on one operation after the other.
func (r *Runner) serve(ctx context.Context, speaks bool) {
	wait := backoff.New(r.cfg.Backoff)
	for ctx.Err() == nil {
		pause := r.cfg.Poll
		ran, err := r.RunOne(ctx, uuid.Nil)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if speaks && wait.Tries() == 0 { // said once: an instance may have no database and need none
				r.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "operations are not looked for", slog.String("event", "operations-wait"), slog.Any("error", err))
			}
			pause = max(pause, wait.Next())
		default:
			wait.Reset()
			if ran {
				pause = 0
			}
		}
		backoff.Sleep(ctx, pause)
	}
}

// RunOne takes an operation whose lease is free (id, or any for uuid.Nil) and works on it until it ends, ctx ends or the lease is
// lost. ran is false when there was none to take. How the operation ended is in its row.
func (r *Runner) RunOne(ctx context.Context, id uuid.UUID) (ran bool, err error) {
	op, ok, err := postgres.TakeOperation(ctx, r.cfg.Pool, r.holder, r.cfg.Lease, id)
	if err != nil || !ok {
		return false, err
	}
	return r.workOn(ctx, op)
}

// workOn works on an operation whose lease this runner has just taken.
func (r *Runner) workOn(ctx context.Context, op postgres.Operation) (ran bool, err error) {
	w := &work{Runner: r, op: op, log: r.cfg.Logger.With(slog.String("operation", op.ID.String()), slog.String("kind", op.Kind), slog.String("projection", op.Projection))}
	if err := json.Unmarshal(op.Data, &w.data); err != nil {
		return true, fmt.Errorf("reading what operation %s has noted: %w", op.ID, err)
	}
	if err := json.Unmarshal(op.Request, &w.params); err != nil {
		return true, fmt.Errorf("reading the request of operation %s: %w", op.ID, err)
	}
	w.log.LogAttrs(ctx, slog.LevelInfo, "works on an operation", slog.String("event", "operation-taken"), slog.String("step", op.Step), slog.String("source", op.Source))
	leased, lose := context.WithCancelCause(ctx)
	var keeper sync.WaitGroup
	keeper.Go(func() { w.keepLease(leased, lose) })
	err = w.run(leased)
	lose(nil)
	keeper.Wait()
	var crashed *crashError
	if errors.As(err, &crashed) {
		return true, err
	}
	if err != nil {
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		if e := postgres.ReleaseLease(release, r.cfg.Pool, &w.op, r.holder); e != nil {
			w.log.LogAttrs(release, slog.LevelWarn, "the operation's lease was not released and runs out by itself", slog.String("event", "lease-kept"), slog.Any("error", e))
		}
		if errors.Is(err, postgres.ErrLeaseLost) || ctx.Err() != nil {
			w.log.LogAttrs(release, slog.LevelInfo, "leaves an operation to others", slog.String("event", "operation-left"), slog.Any("reason", err))
			return true, nil
		}
	}
	return true, err
}

// crashError is the simulated death of the process.
type crashError struct{ error }

func (e *crashError) Unwrap() error { return e.error }

// work is one operation while its lease is held.
type work struct {
	*Runner
	log    *slog.Logger
	data   notes
	params Params

	mu sync.Mutex // guards what is shown of op; the rest of op belongs to run
	op postgres.Operation
}

// notes are what steps leave for those that follow.
type notes struct {
	Epoch    int64                  `json:"epoch,omitempty"`
	SourceID uuid.UUID              `json:"sourceId,omitzero"` // the source's incarnation at the check
	Ends     []int64                `json:"ends,omitempty"`    // of the source topic at the check
	LoopEnds []int64                `json:"loopEnds,omitempty"`
	Drop     map[string]uuid.UUID   `json:"drop,omitempty"`    // topics to delete, by name: their ids
	Offsets  []int64                `json:"offsets,omitempty"` // to set in the source topic; -1: as it is
	Beyond   []int64                `json:"beyond,omitempty"`  // committed offsets that lay above the source's end, else 0
	Forget   bool                   `json:"forget,omitempty"`  // the source is another incarnation: its old offsets mean nothing
	Result   map[string]json.Number `json:"result,omitempty"`  // what the reset did
}

// show sets what the row says next time the lease is renewed.
func (w *work) show(done, total int64, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.op.Done, w.op.Total, w.op.Error = done, total, ""
	if format != "" {
		w.op.Message = fmt.Sprintf(format, args...)
	}
}

// keepLease renews the lease until ctx ends, and ends ctx in time when it cannot: by the clock of this process, which goes on
// while the process is frozen, before anybody else can take the lease.
func (w *work) keepLease(ctx context.Context, lose context.CancelCauseFunc) {
	limit := w.cfg.Lease * 3 / 4
	deadline := time.AfterFunc(limit, func() {
		lose(fmt.Errorf("the database did not renew the lease in time: %w", postgres.ErrLeaseLost))
	})
	defer deadline.Stop()
	tick := time.NewTicker(min(w.cfg.Lease/5, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.mu.Lock()
		shown := postgres.Operation{ID: w.op.ID, Step: w.op.Step, Done: w.op.Done, Total: w.op.Total, Message: w.op.Message, Error: w.op.Error}
		w.mu.Unlock()
		begun := time.Now()
		bound, cancel := context.WithTimeout(ctx, limit/2)
		err := postgres.RenewLease(bound, w.cfg.Pool, &shown, w.holder, w.cfg.Lease)
		cancel()
		switch {
		case err == nil:
			deadline.Reset(limit - time.Since(begun))
		case errors.Is(err, postgres.ErrLeaseLost):
			lose(err)
			return
		}
	}
}
