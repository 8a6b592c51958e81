package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// EventLog writes one line per event, but at most so many a second of each event name: at a hundred thousand records a
// second the log would be the bottleneck. What is left out is summed in one line per event name (event "suppressed"), so
// that the lines and the sums together are the exact count. Safe for concurrent use.
type EventLog struct {
	logger *slog.Logger
	limit  int64
	clock  func() time.Time

	mu     sync.Mutex
	events map[string]*Event
}

// NewEventLog limits each event name to perSecond lines a second; 0 writes all of them.
func NewEventLog(logger *slog.Logger, perSecond int, clock func() time.Time) *EventLog {
	return &EventLog{logger: logger, limit: int64(max(0, perSecond)), clock: clock, events: make(map[string]*Event)}
}

// Now is the time by the log's clock, for AllowAt.
func (l *EventLog) Now() time.Time { return l.clock() }

// Event is one event name with its own limit. Callers on a hot path keep it, and ask Allow before they build attributes.
type Event struct {
	log   *EventLog
	name  string
	level slog.Level

	suppressed atomic.Int64
	written    atomic.Int64 // lines of the present second
	second     atomic.Int64 // the present second, Unix
}

// Event returns the handle of a name. The level of the first call stays.
func (l *EventLog) Event(name string, level slog.Level) *Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.events[name]
	if !ok {
		e = &Event{log: l, name: name, level: level}
		l.events[name] = e
	}
	return e
}

// Log writes a line of an event, or counts it as suppressed.
func (l *EventLog) Log(ctx context.Context, level slog.Level, name, msg string, attrs ...slog.Attr) {
	l.Event(name, level).Log(ctx, msg, attrs...)
}

// Log writes a line, or counts it as suppressed.
func (e *Event) Log(ctx context.Context, msg string, attrs ...slog.Attr) {
	if e.Allow(ctx) {
		e.Write(ctx, msg, attrs...)
	}
}

// Allow says whether the next line may be written; if not, it is counted. A true answer must be followed by one Write.
func (e *Event) Allow(ctx context.Context) bool { return e.AllowAt(ctx, e.log.clock()) }

// AllowAt is Allow for who knows the time.
func (e *Event) AllowAt(ctx context.Context, now time.Time) bool {
	if !e.log.logger.Enabled(ctx, e.level) {
		return false
	}
	if e.log.limit == 0 {
		return true
	}
	// A caller's time may be a little old; only a clock that was set back by more than that begins a second that has passed.
	second := now.Unix()
	if before := e.second.Load(); (second > before || second < before-1) && e.second.CompareAndSwap(before, second) {
		e.written.Store(0)
	}
	if e.written.Load() < e.log.limit && e.written.Add(1) <= e.log.limit {
		return true
	}
	e.suppressed.Add(1)
	return false
}

// Write writes a line that Allow has granted.
func (e *Event) Write(ctx context.Context, msg string, attrs ...slog.Attr) {
	e.log.logger.LogAttrs(ctx, e.level, msg, append([]slog.Attr{slog.String(EventKey, e.name)}, attrs...)...)
}

// Flush writes the sums of what was left out since the last Flush.
func (l *EventLog) Flush(ctx context.Context) {
	l.mu.Lock()
	events := make([]*Event, 0, len(l.events))
	for _, e := range l.events {
		events = append(events, e)
	}
	l.mu.Unlock()
	for _, e := range events {
		if n := e.suppressed.Swap(0); n > 0 {
			l.logger.LogAttrs(ctx, e.level, "further lines of this event were left out (log.events_per_second)",
				slog.String(EventKey, "suppressed"), slog.String("suppressed_event", e.name), slog.Int64("count", n))
		}
	}
}

// Run flushes once a second until ctx ends, and once more then, so that no count is lost at a stop.
func (l *EventLog) Run(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			l.Flush(context.WithoutCancel(ctx))
			return nil
		case <-ticker.C:
			l.Flush(ctx)
		}
	}
}
