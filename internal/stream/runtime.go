package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lovoo/goka/storage"

	"github.com/pin-marketplace/vitrina/internal/backoff"
)

// Options are what a runtime needs besides the description of its consumer.
type Options struct {
	Kafka KafkaConfig
	Admin *Admin // shared; not closed by the runtime
	// StateDir holds the local stores, one directory for each group. Needed by stateful consumers.
	StateDir string
	// Store makes the builder of local stores in a directory: tablestore.Builder. Needed by stateful consumers.
	Store func(dir string) storage.Builder
	// Topics are the settings of the topics this project owns. With CreateTopics missing ones are created and differing ones
	// altered at each start; without, a difference is an error that says what to do.
	Topics       TopicOptions
	CreateTopics bool
	// Incarnations remembers what the state was made from; nil accepts every source (price history).
	Incarnations Incarnations
	// Epoch returns the projection's epoch, asked before each start; nil is 0. An error keeps the consumer from starting.
	Epoch func(context.Context) (int64, error)
	// HotStandby keeps the tables of partitions that other instances own up to date.
	HotStandby bool
	// OnAssigned is told which partitions of the input this instance owns, at each change; nil when there are none.
	OnAssigned func(partitions []int32)
	// OnLost is told at the start of each session of records that were deleted before they were read.
	OnLost  func(Lost)
	Backoff backoff.Config
	Timing  Timing
	Logger  *slog.Logger
	Clock   func() time.Time // default time.Now
}

// Timing are the runtime's times; zero means the default.
type Timing struct {
	Stop    time.Duration // longest wait for a processor that is to end. Default 12 s
	Healthy time.Duration // after running so long the backoff begins anew. Default 1 m
	Stall   time.Duration // a partition without progress for so long is stalled. Default 5 m
	Lag     time.Duration // how often the broker is asked how far the group is. Default 5 s
	Trim    time.Duration // how often finished records are deleted from the loop topic. Default 1 m
}

func (t Timing) withDefaults() Timing {
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{{&t.Stop, 12 * time.Second}, {&t.Healthy, time.Minute}, {&t.Stall, 5 * time.Minute}, {&t.Lag, 5 * time.Second}, {&t.Trim, time.Minute}} {
		if *d.value <= 0 {
			*d.value = d.def
		}
	}
	return t
}

// ErrStopTimeout says that a processor was still busy when it had to end. Its records are not committed and come again.
var ErrStopTimeout = errors.New("the processor did not stop in time")

// Runtime runs one consumer: it prepares topics and state, runs a Goka processor, and builds a new one with backoff whenever
// one ends, because a Goka processor ends at the first error and cannot be started again. All methods are safe for
// concurrent use; Run may be called once.
type Runtime struct {
	spec   Spec
	opts   Options
	log    *slog.Logger
	clock  func() time.Time
	board  *board
	stores *stores

	ran       atomic.Bool
	run       atomic.Pointer[run] // the present processor
	tables    storage.Builder     // set once in Run
	producers producers
}

// New checks spec and options. It touches neither broker nor disk.
func New(spec Spec, opts Options) (*Runtime, error) {
	errs := []error{spec.Validate(), opts.Kafka.Validate(), opts.Backoff.Validate()}
	if opts.Admin == nil || opts.Logger == nil {
		errs = append(errs, errors.New("a runtime needs an admin client and a logger"))
	}
	if spec.Stateful() && (opts.StateDir == "" || opts.Store == nil) {
		errs = append(errs, fmt.Errorf("the consumer %q has a table and needs a state directory and a store", spec.Name))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if opts.Clock == nil {
		opts.Clock = time.Now
	}
	opts.Timing = opts.Timing.withDefaults()
	return &Runtime{
		spec: spec, opts: opts, clock: opts.Clock,
		log:    opts.Logger.With(slog.String("consumer", spec.Name), slog.String("group", spec.Group)),
		board:  newBoard(opts.Clock()),
		stores: newStores(),
	}, nil
}

// Run runs the consumer until ctx ends, and then waits for at most Timing.Stop. It returns nil after a clean end,
// ErrStopTimeout when a callback or the broker held it up, and another error only when it could not start at all: the state
// directory is in use.
func (r *Runtime) Run(ctx context.Context) (err error) {
	if r.ran.Swap(true) {
		return errors.New("the runtime was run before")
	}
	var dir *stateDir
	if r.spec.Stateful() {
		if dir, err = openStateDir(r.opts.StateDir, r.spec.Group); err != nil {
			r.board.phase(r.clock(), PhaseStopped, err.Error())
			return err
		}
		r.tables = r.stores.builder(r.opts.Store(dir.table()))
	}
	monitored, stop := context.WithCancel(ctx)
	var monitors sync.WaitGroup
	monitors.Go(func() { r.monitor(monitored) })
	err = r.loop(ctx, dir)
	stop()
	monitors.Wait()
	// A processor that is still busy may still write: its directory stays locked until the process ends.
	if dir != nil && !errors.Is(err, ErrStopTimeout) {
		err = errors.Join(err, dir.close())
	}
	r.board.phase(r.clock(), PhaseStopped, "")
	return err
}

// loop builds one processor after the other.
func (r *Runtime) loop(ctx context.Context, dir *stateDir) error {
	wait := backoff.New(r.opts.Backoff)
	for ctx.Err() == nil {
		healthy, err := r.runOnce(ctx, dir)
		if errors.Is(err, ErrStopTimeout) {
			return err
		}
		if ctx.Err() != nil {
			continue // and the loop ends
		}
		if healthy {
			wait.Reset()
		}
		if err == nil {
			err = errors.New("the processor ended by itself")
		}
		r.backoff(ctx, wait, err)
	}
	return nil
}

// backoff waits before the next processor.
func (r *Runtime) backoff(ctx context.Context, wait *backoff.Backoff, cause error) {
	pause := wait.Next()
	next := r.clock().Add(pause)
	r.log.LogAttrs(ctx, slog.LevelError, "the processor failed and is built anew", slog.String("event", "processor-failed"),
		slog.String("error", cause.Error()), slog.Duration("backoff", pause), slog.Int("tries", wait.Tries()))
	r.board.update(r.clock(), func(s *State) {
		s.Phase, s.Reason, s.NextTry = PhaseBackoff, oneLine(cause), next
		s.Restarts++
	})
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// State returns what the consumer is doing. While it recovers, it asks Goka for the progress of each partition.
func (r *Runtime) State() State {
	s := r.board.get()
	s.Owned = r.Owned()
	// Goka's own state, not the board's copy of it, which is a moment old.
	if run := r.run.Load(); run != nil && (s.Phase == PhaseStarting || s.Phase == PhaseRecovering || s.Phase == PhaseRunning) {
		s.Phase, s.Recovery = run.phase()
	}
	if s.Phase == PhaseRunning && len(s.Stalls) > 0 {
		s.Phase, s.Reason = PhaseStalled, s.Stalls[0].Reason
	}
	return s
}

// Owned returns the partitions of the input that this instance owns, in order.
func (r *Runtime) Owned() []int32 {
	out := []int32{}
	if run := r.run.Load(); run != nil {
		for _, p := range run.guard.Status() {
			if p.Topic == r.spec.Input {
				out = append(out, p.Partition)
			}
		}
	}
	slices.Sort(out)
	return out
}

// NotHereError says that the partition of a key is not readable on this instance: another one owns it, or it is being
// restored.
type NotHereError struct {
	Partition int32 // -1 while the partition count is unknown
}

func (e *NotHereError) Error() string {
	return fmt.Sprintf("partition %d is not owned by this instance or not restored yet", e.Partition)
}

// Get reads a key of the group table, decoded by the table's codec; nil when there is none. It answers for the partitions
// that this instance owns or keeps as hot standby, and returns a *NotHereError for others.
func (r *Runtime) Get(key string) (any, error) {
	run := r.run.Load()
	if run == nil || !r.spec.Stateful() {
		return nil, &NotHereError{Partition: -1}
	}
	partition := r.spec.hasher().Partition([]byte(key), run.topics.source.Partitions)
	data, known, err := r.stores.get(partition, key)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read key %s of the table of group %s: %w", key, r.spec.Group, err)
	case !known:
		return nil, &NotHereError{Partition: partition}
	case data == nil:
		return nil, nil
	}
	value, err := r.spec.TableCodec.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("decode key %s of the table of group %s: %w", key, r.spec.Group, err)
	}
	return value, nil
}
