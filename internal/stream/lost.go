package stream

import (
	"context"
	"log/slog"
)

// Lost are records that the broker deleted before the group had read them, by retention or by DeleteRecords.
type Lost struct {
	Topic     string
	Partition int32
	From, To  int64 // offsets: the first that is gone, the first that is left
}

// tellLost says, before a session consumes, what of its partitions is gone: sarama goes on at the first record there is and says nothing.
// A gap is told at each session until something behind it is committed.
func (r *Runtime) tellLost(ctx context.Context, claims map[string][]int32) {
	positions, err := r.opts.Admin.firstPositions(ctx, r.spec.Group, r.spec.consumed()...)
	if err != nil {
		r.log.LogAttrs(ctx, slog.LevelWarn, "whether records were deleted before they were read cannot be seen",
			slog.String("event", "positions-unknown"), slog.String("error", err.Error()))
		return
	}
	for topic, partitions := range claims {
		for _, p := range partitions {
			if int(p) >= len(positions[topic]) {
				continue
			}
			at := positions[topic][p]
			if at.Committed < 0 || at.Committed >= at.Start {
				continue
			}
			r.log.LogAttrs(ctx, slog.LevelError, "records were deleted before they were read: give the topic a longer retention than the longest outage, "+
				"and have their producer send them again (docs/runbooks/lag-grows.md, section 4)",
				slog.String("event", "records-lost"), slog.String("topic", topic), slog.Int64("partition", int64(p)),
				slog.Int64("from", at.Committed), slog.Int64("to", at.Start), slog.Int64("offsets", at.Start-at.Committed))
			if r.opts.OnLost != nil {
				r.opts.OnLost(Lost{Topic: topic, Partition: p, From: at.Committed, To: at.Start})
			}
		}
	}
}
