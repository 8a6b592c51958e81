package batch

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pin-marketplace/vitrina/internal/backoff"
)

// BenchmarkThroughput: items through Submit, a flush that costs nothing, and Done; the bound is 1,000,000 items/s.
func BenchmarkThroughput(b *testing.B) {
	type value [4]uint64
	cfg := Config{Name: "bench", MaxItems: 5000, MaxWait: 100 * time.Millisecond, Buffer: 20000, BufferBytes: 64 << 20, DrainTimeout: time.Second, Backoff: backoff.Default()}
	batcher, err := New(cfg, func(context.Context, []value) error { return nil }, slog.New(slog.DiscardHandler), Metrics{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	finished := make(chan error, 1)
	go func() { finished <- batcher.Run(ctx) }()
	var settled atomic.Int64
	done := func(error) { settled.Add(1) }
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		session, end := context.WithCancel(ctx)
		defer end()
		for pb.Next() {
			if err := batcher.Submit(session, Item[value]{Session: session, Done: done}); err != nil {
				b.Error(err)
				return
			}
		}
	})
	stop()
	if err := <-finished; err != nil {
		b.Fatal(err)
	}
	if settled.Load() != int64(b.N) {
		b.Fatalf("%d of %d settled", settled.Load(), b.N)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "items/s")
}
