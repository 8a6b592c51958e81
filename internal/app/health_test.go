package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/batch"
)

// A sink is in trouble for as long as a batch of it fails: not after the batch was given up, which once left a role unready for good
// when its epoch had changed, and not shorter because some of the batch's partitions went to another instance, which once made it ready.
func TestTroubleLastsAsLongAsTheBatchThatFails(t *testing.T) {
	away := errors.New("the database is away")
	for name, test := range map[string]struct {
		end  func(answer func(error), endAll context.CancelFunc)
		over bool
	}{
		"its try succeeds":              {func(answer func(error), _ context.CancelFunc) { answer(nil) }, true},
		"the epoch has changed":         {func(answer func(error), _ context.CancelFunc) { answer(fmt.Errorf("epoch 2: %w", batch.ErrFatal)) }, true},
		"all its partitions are gone":   {func(_ func(error), endAll context.CancelFunc) { endAll() }, true},
		"one of its partitions is gone": {func(func(error), context.CancelFunc) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var health sinkHealth
				var result atomic.Pointer[error]
				answer := func(err error) { result.Store(&err) }
				answer(away)
				batcher, err := batch.New(batch.Config{
					Name: "test", MaxItems: 10, MaxWait: time.Second, Buffer: 10, BufferBytes: 1000, Backoff: backoff.Default(), DrainTimeout: time.Second,
				}, func(context.Context, []int) error { return *result.Load() }, slog.New(slog.DiscardHandler),
					sinkMetrics(&health, 0, prometheus.NewCounter(prometheus.CounterOpts{Name: "retries"}), nil))
				require.NoError(t, err)
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- batcher.Run(ctx) }()
				all, endAll := context.WithCancel(t.Context())
				defer endAll()
				one, endOne := context.WithCancel(all)
				require.NoError(t, batcher.Submit(ctx, batch.Item[int]{Session: one}))
				require.NoError(t, batcher.Submit(ctx, batch.Item[int]{Session: all}))
				<-time.After(time.Minute)
				synctest.Wait()
				require.Contains(t, health.trouble(time.Now()), away.Error())

				endOne()
				test.end(answer, endAll)
				<-time.After(2 * time.Minute) // the longest backoff is over
				synctest.Wait()
				if test.over {
					require.Empty(t, health.trouble(time.Now()))
				} else {
					require.Contains(t, health.trouble(time.Now()), away.Error())
					require.Greater(t, time.Since(health.failing[0].since), 2*time.Minute, "counted from the first failure")
				}
				stop()
				require.NoError(t, <-ended)
			})
		})
	}
}

func TestRetriesOfARoleAreItsOwn(t *testing.T) {
	var a App
	reg := prometheus.NewRegistry()
	a.promotion, a.views, a.price = telemetry.NewPromotion(reg), telemetry.NewPopularity(reg, nil), telemetry.NewPrice(reg)
	a.promotion.Retries.Add(1)
	a.views.Retries.Add(2)
	a.price.Retries.Add(3)
	for role, want := range map[string]int64{"promotion": 1, "popularity": 2, "price": 3, "api": 0, "prise": 0} {
		require.Equal(t, want, host{&a}.Retries(role), role)
	}
}
