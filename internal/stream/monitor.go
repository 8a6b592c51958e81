package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/stream/guard"
)

// watched is what the monitor remembers of one partition between two looks.
type watched struct {
	run       *run
	delivered uint64
	since     time.Time // of the last delivery
	vain      int64     // up to here the broker has nothing to deliver
}

// monitor asks the broker how far the group is (Goka's own figure is wrong: design, section 3, fact 9), looks for partitions
// that stand still, notices a topic that was recreated, and trims the loop topic.
func (r *Runtime) monitor(ctx context.Context) {
	seen := make(map[record.ID]watched)
	tick := time.NewTicker(r.opts.Timing.Lag)
	defer tick.Stop()
	failing := false
	trimmed := r.clock()
	for {
		positions, err := r.look(ctx, seen)
		if err == nil && r.spec.LoopCallback != nil && r.clock().Sub(trimmed) >= r.opts.Timing.Trim {
			trimmed = r.clock()
			err = r.trim(ctx, positions[LoopTopic(r.spec.Group)])
		}
		// Once for each outage, not every few seconds; before the first start topics may be missing, which is told elsewhere.
		if err != nil && ctx.Err() == nil && !failing && r.run.Load() != nil {
			r.log.LogAttrs(ctx, slog.LevelWarn, "how far the group is cannot be seen", slog.String("event", "positions-unknown"), slog.String("error", err.Error()))
		}
		failing = err != nil && (failing || r.run.Load() != nil)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (r *Runtime) look(ctx context.Context, seen map[record.ID]watched) (map[string][]Positions, error) {
	ctx, cancel := context.WithTimeout(ctx, max(10*time.Second, r.opts.Timing.Lag))
	defer cancel()
	positions, err := r.opts.Admin.GroupPositions(ctx, r.spec.Group, r.spec.consumed()...)
	if err != nil {
		return nil, err
	}
	if run := r.run.Load(); run != nil && run.ready.Load() != 0 {
		r.stalls(ctx, run, positions, seen)
		var changed *topicChangedError
		if err := r.sameTopics(ctx, run.topics); errors.As(err, &changed) {
			run.failed(err)
		} else if err != nil {
			return positions, err
		}
	}
	return positions, nil
}

// failed asks the run loop for another processor.
func (run *run) failed(err error) {
	select {
	case run.fail <- err:
	default:
	}
}

// stalls looks for partitions without progress. A record that is not finished for long waits for a sink: a restart would not
// help it, so it is only reported. A partition to which nothing is delivered although the broker has records for it has a
// consumer that hangs: a new processor gets a new one.
func (r *Runtime) stalls(ctx context.Context, run *run, positions map[string][]Positions, seen map[record.ID]watched) {
	now := r.clock()
	var stalls []Stall
	for _, p := range run.guard.Status() {
		id := record.ID{Topic: p.Topic, Partition: p.Partition}
		if int(p.Partition) >= len(positions[p.Topic]) {
			continue
		}
		w := seen[id]
		if w.run != run || w.delivered != p.Delivered || p.Window > 0 {
			w = watched{run: run, delivered: p.Delivered, since: now}
		}
		switch {
		case p.Window > 0 && now.Sub(p.Since) >= r.opts.Timing.Stall:
			stalls = append(stalls, Stall{Topic: p.Topic, Partition: p.Partition, Since: p.Since, Reason: waiting(p, now)})
		case p.Window == 0 && now.Sub(w.since) >= r.opts.Timing.Stall:
			if reason := r.silent(ctx, p, positions[p.Topic][p.Partition], &w, now); reason != "" {
				stalls = append(stalls, Stall{Topic: p.Topic, Partition: p.Partition, Since: w.since, Reason: reason})
				run.failed(errors.New(reason))
			}
		}
		seen[id] = w
	}
	r.showStalls(ctx, now, stalls)
}

// silent says why a partition that delivers nothing should: the broker has records for it that anybody could read. Otherwise it notes in w
// when to look again.
func (r *Runtime) silent(ctx context.Context, p guard.Partition, at Positions, w *watched, now time.Time) string {
	next := max(at.Start, at.Committed, p.LastDelivered+1, w.vain)
	if at.End <= next {
		return ""
	}
	more, err := r.opts.Admin.Deliverable(ctx, p.Topic, p.Partition, next, at.End)
	switch {
	case err != nil: // nobody can read it now
		w.since = now
		return ""
	case !more: // only a transaction's marker
		w.vain, w.since = at.End, now
		return ""
	}
	return fmt.Sprintf("nothing is delivered from %s/%d since %s although records lie between %d and %d",
		p.Topic, p.Partition, w.since.UTC().Format(time.RFC3339), next, at.End)
}

// showStalls logs what has changed and puts it on the board.
func (r *Runtime) showStalls(ctx context.Context, now time.Time, stalls []Stall) {
	before := r.board.get()
	for _, s := range stalls {
		if !stalled(before.Stalls, s) {
			r.log.LogAttrs(ctx, slog.LevelError, "a partition does not progress", slog.String("event", "partition-stalled"),
				slog.String("topic", s.Topic), slog.Int64("partition", int64(s.Partition)), slog.String("reason", s.Reason))
		}
	}
	if len(stalls) == 0 && len(before.Stalls) > 0 {
		r.log.LogAttrs(ctx, slog.LevelInfo, "every partition progresses again", slog.String("event", "partitions-progress"))
	}
	if len(stalls) > 0 || len(before.Stalls) > 0 {
		r.board.update(now, func(s *State) { s.Stalls = stalls })
	}
}

func waiting(p guard.Partition, now time.Time) string {
	return fmt.Sprintf("record %s/%d@%d is not finished for %s, and %d others are behind it",
		p.Topic, p.Partition, p.Oldest, now.Sub(p.Since).Round(time.Second), p.Window-1)
}

func stalled(list []Stall, s Stall) bool {
	for _, other := range list {
		if other.Topic == s.Topic && other.Partition == s.Partition {
			return true
		}
	}
	return false
}

// trim deletes what the group has finished from the partitions of the loop topic that this instance owns. Commits are
// contiguous, so nothing below them is still needed.
func (r *Runtime) trim(ctx context.Context, positions []Positions) error {
	finished := make(map[int32]int64)
	for _, p := range r.Owned() {
		if int(p) < len(positions) && positions[p].Committed > positions[p].Start {
			finished[p] = positions[p].Committed
		}
	}
	if len(finished) == 0 {
		return nil
	}
	return r.opts.Admin.DeleteBefore(ctx, LoopTopic(r.spec.Group), finished)
}
