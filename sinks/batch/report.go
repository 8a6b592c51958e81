package batch

import (
	"log/slog"
	"time"
)

// reportEvery is how often a failure that lasts is said again: an outage is one line a minute, not one a try.
const reportEvery = time.Minute

// reporter writes the batcher's log lines. It is used by the Run goroutine alone.
type reporter struct {
	name   string
	logger *slog.Logger
	last   time.Time // of the last line about a failure
	since  time.Time // of the first failure since the last success
	told   bool      // a failure since then has been logged
}

func (r *reporter) failed(err error, items, tries int, next time.Duration) {
	now := time.Now()
	if r.since.IsZero() {
		r.since = now
	}
	if !r.last.IsZero() && now.Sub(r.last) < reportEvery {
		return
	}
	r.last, r.told = now, true
	r.logger.Error("a batch could not be written; it is kept and tried again, and no offset moves meanwhile",
		"event", "failed", "sink", r.name, "error", err.Error(), "items", items, "tries", tries,
		"failing_for", now.Sub(r.since).Round(time.Second).String(), "next_try_in", next.Round(time.Millisecond).String())
}

func (r *reporter) succeeded(items, tries int) {
	if r.told {
		r.logger.Info("batches are written again",
			"event", "recovered", "sink", r.name, "items", items, "tries", tries, "failed_for", time.Since(r.since).Round(time.Second).String())
	}
	r.since, r.told = time.Time{}, false
}

func (r *reporter) fatal(err error, items int) {
	r.logger.Error("a batch was given up; its records come again", "event", "failed", "sink", r.name, "error", err.Error(), "items", items)
}

func (r *reporter) abandoned(err error, items int) {
	r.logger.Warn("stopped before the batch could be written; its records come again",
		"event", "abandoned", "sink", r.name, "error", err.Error(), "items", items)
}
