package stream

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Deliverable says whether a record that a consumer would be given lies at from or behind it and below to. End offsets alone
// do not say so: a transaction's marker takes an offset and is never delivered, nor are the records of an aborted one, so a
// group that has everything may stay below the end for ever (design, section 12, rule 11).
func (a *Admin) Deliverable(ctx context.Context, topic string, partition int32, from, to int64) (bool, error) {
	found := false
	err := a.ReadRanges(ctx, topic, map[int32]Range{partition: {from, to}}, func(*kgo.Record) (more bool, err error) {
		found = true
		return false, nil
	})
	if err != nil {
		return false, fmt.Errorf("look for records of partition %d from offset %d: %w", partition, from, err)
	}
	return found, nil
}

// CaughtUp says whether the group has finished every record below the given ends, by topic and partition: its committed
// offset is there, or nothing deliverable lies in between. left is the sum of the offsets still to go.
func (a *Admin) CaughtUp(ctx context.Context, group string, ends map[string][]int64) (done bool, left int64, err error) {
	topics := make([]string, 0, len(ends))
	for topic := range ends {
		topics = append(topics, topic)
	}
	positions, err := a.GroupPositions(ctx, group, topics...)
	if err != nil {
		return false, 0, err
	}
	done = true
	for topic, list := range ends {
		for p, end := range list {
			if p >= len(positions[topic]) {
				return false, 0, fmt.Errorf("topic %s has no partition %d any more", topic, p)
			}
			at := positions[topic][p]
			from := max(at.Start, at.Committed)
			if from >= end {
				continue
			}
			more, err := a.Deliverable(ctx, topic, int32(p), from, end) //nolint:gosec // a partition number
			if err != nil {
				return false, 0, err
			}
			if more {
				done = false
				left += end - from
			}
		}
	}
	return done, left, nil
}
