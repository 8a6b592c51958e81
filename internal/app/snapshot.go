package app

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

// Snapshot is what this instance has done since its start, for the demo's live line.
type Snapshot struct {
	Elapsed              time.Duration
	Views, Duplicates    int64 // views counted, views skipped as known
	Boosts               int64 // cards whose boost was written
	Facts                int64 // facts inserted
	DeadLetters          int64
	Received             int64 // records finished or in flight
	Lag                  int64 // records not yet committed, all groups
	ReceivedPerSecond    float64
	previousReceived     int64
	previousReceivedTime time.Time
}

// String is the live line.
func (s Snapshot) String() string {
	return fmt.Sprintf("%5.0fs  events in %d (%.0f/s)  views counted %d (+%d known)  boosts written %d  facts inserted %d  dead letters %d  lag %d",
		s.Elapsed.Seconds(), s.Received, s.ReceivedPerSecond, s.Views, s.Duplicates, s.Boosts, s.Facts, s.DeadLetters, s.Lag)
}

// Watch calls show at each interval until ctx ends.
func (a *App) Watch(ctx context.Context, every time.Duration, show func(Snapshot)) {
	started := time.Now()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	last := Snapshot{previousReceivedTime: started}
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			s := a.snapshot()
			s.Elapsed = now.Sub(started)
			s.ReceivedPerSecond = float64(s.Received-last.previousReceived) / now.Sub(last.previousReceivedTime).Seconds()
			s.previousReceived, s.previousReceivedTime = s.Received, now
			last = s
			show(s)
		}
	}
}

func (a *App) snapshot() Snapshot {
	var s Snapshot
	for _, source := range append([]string{"Unknown"}, a.cfg.Popularity.ViewSources...) {
		s.Views += value(a.views.Incremented(source))
	}
	s.Duplicates = value(a.views.Duplicates)
	s.Boosts = value(a.promotion.CardsRecomputed)
	s.Facts = value(a.price.FactsIngested)
	s.DeadLetters = value(a.views.DLQ) + value(a.promotion.DLQ) + value(a.price.DLQ)
	s.Received = observations(a.views.ConsumeDuration) + observations(a.promotion.ConsumeDuration) + observations(a.price.ConsumeDuration) + s.DeadLetters
	s.Lag = a.lags.total()
	return s
}

// value reads a counter; one that cannot be read shows as 0, which only the live line sees.
func value(c prometheus.Counter) int64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return 0
	}
	return int64(m.GetCounter().GetValue())
}

func observations(h prometheus.Histogram) int64 {
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		return 0
	}
	return int64(m.GetHistogram().GetSampleCount()) //nolint:gosec // far below the limit
}

// lagBoard holds the lag of each topic of each group as the broker gave it last.
type lagBoard struct {
	mu   sync.Mutex
	lags map[telemetry.GroupTopic][]int64
}

func (b *lagBoard) set(in telemetry.GroupTopic, lags []int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lags == nil {
		b.lags = make(map[telemetry.GroupTopic][]int64)
	}
	b.lags[in] = slices.Clone(lags)
}

func (b *lagBoard) total() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	var sum int64
	for _, lags := range b.lags {
		for _, l := range lags {
			sum += l
		}
	}
	return sum
}

// Handled is how many records this instance has finished, of all its consumers.
func (a *App) Handled() int64 { return a.snapshot().Received }
