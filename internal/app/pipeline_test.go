package app

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/stream"
)

// Each part had a bound of its own, and in sequence they came to more than the process had.
func TestAPipelineThatDoesNotEndIsLeft(t *testing.T) {
	obeys := runFunc(func(ctx context.Context) error { <-ctx.Done(); return nil })
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	hangs := runFunc(func(context.Context) error { <-release; return nil })
	fails := errors.New("boom")
	for name, tc := range map[string]struct {
		p    pipeline
		want error
	}{
		"everything ends":    {pipeline{processor: obeys, workers: []runner{obeys}, sinks: []runner{obeys}, letters: []runner{obeys}}, nil},
		"a part fails":       {pipeline{processor: obeys, sinks: []runner{runFunc(func(context.Context) error { return fails })}}, fails},
		"the processor":      {pipeline{processor: hangs, sinks: []runner{obeys}}, stream.ErrStopTimeout},
		"a sink":             {pipeline{processor: obeys, sinks: []runner{hangs}, letters: []runner{obeys}}, stream.ErrStopTimeout},
		"the dead letters":   {pipeline{processor: obeys, sinks: []runner{obeys}, letters: []runner{hangs}}, stream.ErrStopTimeout},
		"a part that failed": {pipeline{processor: runFunc(func(context.Context) error { return fails }), sinks: []runner{hangs}}, stream.ErrStopTimeout},
		"and why it was":     {pipeline{processor: runFunc(func(context.Context) error { return fails }), sinks: []runner{hangs}}, fails},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			timeout := time.Minute
			if tc.want != nil {
				timeout = 10 * time.Millisecond
			}
			if !errors.Is(tc.want, fails) {
				cancel()
			}
			defer cancel()
			require.ErrorIs(t, tc.p.run(ctx, timeout), tc.want)
		})
	}
}
