package rebuild

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pin-marketplace/vitrina/internal/stream"
)

// members returns the client ids of a group's members; a group that does not exist has none.
func members(ctx context.Context, admin *stream.Admin, group string) ([]string, error) {
	described, err := admin.Kadm().DescribeGroups(ctx, group)
	if err == nil {
		err = described[group].Err
	}
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("describe group %s: %w", group, err)
	}
	var out []string
	for _, m := range described[group].Members {
		out = append(out, m.ClientID)
	}
	if s := described[group].State; len(out) == 0 && s != "Empty" && s != "Dead" {
		out = append(out, "(group state "+s+")")
	}
	slices.Sort(out)
	return out, nil
}

// deleteTopic deletes one incarnation of a topic, by its id, so that a process that comes back late cannot delete the next one.
func deleteTopic(ctx context.Context, k stream.KafkaConfig, id stream.TopicID) error {
	client, err := kgo.NewClient(append(k.KgoOpts(), kgo.RetryTimeout(15*time.Second))...)
	if err != nil {
		return fmt.Errorf("create a Kafka client: %w", err)
	}
	defer client.Close()
	req := kmsg.NewPtrDeleteTopicsRequest()
	topic := kmsg.NewDeleteTopicsRequestTopic()
	topic.TopicID = id
	req.Topics, req.TimeoutMillis = append(req.Topics, topic), 15_000
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("delete the topic with id %s: %w", id, err)
	}
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil && !errors.Is(err, kerr.UnknownTopicID) && !errors.Is(err, kerr.UnknownTopicOrPartition) {
			return fmt.Errorf("delete the topic with id %s: %w", id, err)
		}
	}
	return nil
}

// forgetOffsets deletes a group's committed offsets of topics. The group must be empty: the broker refuses it otherwise.
func forgetOffsets(ctx context.Context, admin *stream.Admin, group string, topics ...stream.Topic) error {
	var set kadm.TopicsSet
	for _, t := range topics {
		for p := range t.Partitions {
			set.Add(t.Name, p)
		}
	}
	res, err := admin.Kadm().DeleteOffsets(ctx, group, set)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete the offsets of group %s: %w", group, err)
	}
	for topic, partitions := range res {
		for p, err := range partitions {
			if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
				return fmt.Errorf("delete the offset of group %s in %s/%d: %w", group, topic, p, err)
			}
		}
	}
	return nil
}

// commit sets a group's offsets in a topic, by partition; -1 leaves a partition alone. The group must be empty.
func commit(ctx context.Context, admin *stream.Admin, group, topic string, offsets []int64) error {
	var os kadm.Offsets
	for p, at := range offsets {
		if at >= 0 {
			os.Add(kadm.Offset{Topic: topic, Partition: int32(p), At: at, LeaderEpoch: -1}) //nolint:gosec // a partition number
		}
	}
	if len(os) == 0 {
		return nil
	}
	res, err := admin.Kadm().CommitOffsets(ctx, group, os)
	if err == nil {
		err = res.Error()
	}
	if err != nil {
		return fmt.Errorf("set the offsets of group %s in %s: %w", group, topic, err)
	}
	return nil
}

// ends are the end offsets of a topic by partition.
func ends(positions []stream.Positions) []int64 {
	out := make([]int64, len(positions))
	for p, at := range positions {
		out[p] = at.End
	}
	return out
}

// readTopic yields every record of a topic up to the end it has when the reading begins, in order within each partition.
// progress, which may be nil, hears how many records are read and about how many there are.
func readTopic(ctx context.Context, admin *stream.Admin, topic string, progress func(done, total int64)) iter.Seq2[*kgo.Record, error] {
	return func(yield func(*kgo.Record, error) bool) {
		ranges, err := admin.Ranges(ctx, topic)
		if err != nil {
			yield(nil, err)
			return
		}
		next := make(map[int32]int64)
		var read, done, total int64
		for p, r := range ranges {
			next[p] = r.From
			total += r.To - r.From
		}
		err = admin.ReadRanges(ctx, topic, ranges, func(rec *kgo.Record) (bool, error) {
			done += rec.Offset + 1 - next[rec.Partition] // compacted offsets count as read
			next[rec.Partition] = rec.Offset + 1
			if read++; progress != nil && read%10_000 == 0 {
				progress(done, total)
			}
			return yield(rec, nil), nil
		})
		if err != nil {
			yield(nil, err)
		}
	}
}
