package app

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/stream"
)

// gatePoll is how often a role asks whether it may still run.
const gatePoll = time.Second

// gate says under which epoch a role may run, or why it may not. An error means that nobody knows: a role that runs goes on,
// because its transactions ask themselves (design, E6), one that does not run waits.
type gate func(ctx context.Context) (epoch int64, hold string, err error)

// role runs one consumer: a pipeline for each epoch, as long as the gate is open.
type role struct {
	name        string
	gate        gate
	build       func(ctx context.Context, epoch int64, health *sinkHealth) (pipeline, *stream.Runtime, error)
	backoff     backoff.Config
	logger      *slog.Logger
	stopTimeout time.Duration // how long a pipeline may take to end
	failed      func()        // counts a failure that ended the pipeline or kept it from starting; nil: nobody counts

	changed chan struct{} // ask the gate now
	current atomic.Pointer[stream.Runtime]

	mu     sync.Mutex
	status RoleStatus
	health sinkHealth
}

// RoleStatus is what a role says about itself.
type RoleStatus struct {
	Role   string        `json:"role"`
	Ready  bool          `json:"ready"`
	State  string        `json:"state"`
	Reason string        `json:"reason,omitempty"`
	Stream *stream.State `json:"stream,omitempty"`
}

func newRole(name string, g gate, b backoff.Config, logger *slog.Logger,
	build func(ctx context.Context, epoch int64, health *sinkHealth) (pipeline, *stream.Runtime, error),
) *role {
	return &role{
		name: name, gate: g, build: build, backoff: b, logger: logger.With(slog.String("role", name)),
		changed: make(chan struct{}, 1), status: RoleStatus{Role: name, State: "starting"},
	}
}

// stateHeld is the state of a role whose gate is closed.
const stateHeld = "held"

// errGateClosed ends a pipeline whose gate has closed or whose epoch has passed.
var errGateClosed = errors.New("the role may not run any more under its epoch")

// Run runs the role until ctx ends, or until a processor could not be stopped, which only the end of the process mends.
func (r *role) Run(ctx context.Context) error {
	wait := backoff.New(r.backoff)
	for ctx.Err() == nil {
		epoch, hold, err := r.gate(ctx)
		switch {
		case err != nil:
			r.fail(ctx, wait, err)
			continue
		case hold != "":
			r.say(stateHeld, hold, hold == holdFlagOff)
			wait.Reset()
			r.pause(ctx)
			continue
		}
		p, runtime, err := r.build(ctx, epoch, &r.health)
		if err != nil {
			r.fail(ctx, wait, err)
			continue
		}
		started := time.Now()
		err = r.runOnce(ctx, p, runtime, epoch)
		if errors.Is(err, stream.ErrStopTimeout) {
			r.say("failed", err.Error(), false)
			return err
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		if time.Since(started) > time.Minute {
			wait.Reset()
		}
		r.fail(ctx, wait, err)
	}
	r.say("stopped", "", false)
	return nil
}

// runOnce runs one pipeline until it fails, ctx ends, or the gate closes, which is no failure.
func (r *role) runOnce(ctx context.Context, p pipeline, runtime *stream.Runtime, epoch int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.current.Store(runtime)
	defer r.current.Store(nil)
	r.say("running", "", true)
	p.workers = append(p.workers, runFunc(func(ctx context.Context) error { return r.watch(ctx, cancel, epoch) }))
	err := p.run(ctx, r.stopTimeout)
	if errors.Is(context.Cause(ctx), errGateClosed) && !errors.Is(err, stream.ErrStopTimeout) {
		return nil
	}
	return err
}

// watch ends the pipeline when the gate closes or the epoch changes.
func (r *role) watch(ctx context.Context, cancel context.CancelCauseFunc, epoch int64) error {
	for r.pause(ctx); ctx.Err() == nil; r.pause(ctx) {
		now, hold, err := r.gate(ctx)
		if err == nil && (hold != "" || now != epoch) {
			r.logger.LogAttrs(ctx, slog.LevelInfo, "the role leaves its group",
				slog.String("event", "role-held"), slog.String("reason", hold), slog.Int64("epoch", now))
			cancel(errGateClosed)
			break
		}
	}
	return nil
}

// pause waits until the gate is to be asked again.
func (r *role) pause(ctx context.Context) {
	timer := time.NewTimer(gatePoll)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-r.changed:
	case <-timer.C:
	}
}

// ask makes the role ask its gate now.
func (r *role) ask() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *role) fail(ctx context.Context, wait *backoff.Backoff, err error) {
	if ctx.Err() != nil {
		return
	}
	r.say("waiting", err.Error(), false)
	if r.failed != nil {
		r.failed()
	}
	r.logger.LogAttrs(ctx, slog.LevelError, "the role cannot run and tries again",
		slog.String("event", "role-failed"), slog.Any("error", err), slog.Int("tries", wait.Tries()+1))
	// The end of the context is seen by the caller.
	_ = wait.Wait(ctx)
}

func (r *role) say(state, reason string, ready bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.State, r.status.Reason, r.status.Ready = state, reason, ready
}

// Status is what the role is doing; a running one is as ready as its processor.
func (r *role) Status() RoleStatus {
	r.mu.Lock()
	s := r.status
	r.mu.Unlock()
	if runtime := r.current.Load(); runtime != nil {
		state := runtime.State()
		s.Stream, s.State, s.Reason, s.Ready = &state, string(state.Phase), state.Reason, state.Ready()
		if trouble := r.health.trouble(time.Now()); trouble != "" && s.Ready {
			s.State, s.Reason, s.Ready = "waiting", trouble, false
		}
	}
	return s
}

// unwellAfter is how long a sink's tries may fail before its role is not ready: a restart of a database is shorter.
const unwellAfter = 10 * time.Second

// sinkHealth says whether a role's sink and its dead letters get their work done: each of their writers, or it is not well. A writer without
// work is well.
type sinkHealth struct {
	mu      sync.Mutex
	failing map[int]failure // by writer
}

// lettersWriter is a writer of dead letters; those of the sink are numbered from 0.
func lettersWriter(oversized bool) int {
	if oversized {
		return -2
	}
	return -1
}

// failure is a writer's failures in a row.
type failure struct {
	since time.Time // of the first
	cause string    // of the last
}

func (h *sinkHealth) failed(writer int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, ok := h.failing[writer]
	if !ok {
		f.since = time.Now()
	}
	f.cause = err.Error()
	if h.failing == nil {
		h.failing = make(map[int]failure)
	}
	h.failing[writer] = f
}

func (h *sinkHealth) well(writer int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.failing, writer)
}

// trouble is why the sink is not well, or nothing: of the writer that has failed longest.
func (h *sinkHealth) trouble(now time.Time) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var worst failure
	var letters bool
	for writer, f := range h.failing {
		if worst.since.IsZero() || f.since.Before(worst.since) {
			worst, letters = f, writer < 0
		}
	}
	if worst.since.IsZero() || now.Sub(worst.since) < unwellAfter {
		return ""
	}
	if letters {
		return "its dead letters cannot be written since " + worst.since.UTC().Format(time.RFC3339) + " and are tried again: " + worst.cause
	}
	return "its sink has failed since " + worst.since.UTC().Format(time.RFC3339) + " and tries again: " + worst.cause
}
