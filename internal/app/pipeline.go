package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pin-marketplace/vitrina/internal/stream"
)

// runner is anything with a lifecycle bound to a context.
type runner interface {
	Run(ctx context.Context) error
}

// runFunc makes a runner of a function.
type runFunc func(ctx context.Context) error

func (f runFunc) Run(ctx context.Context) error { return f(ctx) }

// pipeline is one consumer from Kafka to its database. Its parts stop in the order of the data: the processor gives up its
// partitions while the sinks still finish what it handed them, the sinks while the dead letters still go out.
type pipeline struct {
	processor runner   // ends when ctx ends; its error ends the pipeline
	workers   []runner // beside the processor: retry, pruning, recompute
	sinks     []runner // stopped after processor and workers
	letters   []runner // stopped last
}

// run returns when everything has stopped. The first error of any part stops all of them. Each part has a bound of its own, and they end
// one after the other: timeout bounds the whole from the moment it is to end, and stream.ErrStopTimeout says that a part was still busy.
func (p pipeline) run(ctx context.Context, timeout time.Duration) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	lettersCtx, stopLetters := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLetters()
	sinksCtx, stopSinks := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSinks()

	var letters, sinks, front errgroup.Group
	var once sync.Once
	var first error
	start := func(g *errgroup.Group, ctx context.Context, r runner) {
		g.Go(func() error {
			if err := r.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
				once.Do(func() { first = err })
				stop(err)
			}
			return nil
		})
	}
	for _, r := range p.letters {
		start(&letters, lettersCtx, r)
	}
	for _, r := range p.sinks {
		start(&sinks, sinksCtx, r)
	}
	for _, r := range p.workers {
		start(&front, ctx, r)
	}
	start(&front, ctx, p.processor)

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// The parts' errors are in first; the groups only wait.
		_ = front.Wait()
		stopSinks()
		_ = sinks.Wait()
		stopLetters()
		_ = letters.Wait()
	}()
	select {
	case <-ended:
		return first
	case <-ctx.Done():
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-ended:
		return first
	case <-timer.C:
		err := fmt.Errorf("not everything of the consumer has ended within %s: %w", timeout, stream.ErrStopTimeout)
		if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
			err = fmt.Errorf("%w (it was to end because of: %w)", err, cause)
		}
		return err
	}
}
