package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// TopicID is Kafka's id of a topic: a topic that is deleted and created again gets another one.
type TopicID = uuid.UUID

// Incarnation is the part of a topic's id that marks and states carry: its first four bytes.
func Incarnation(id TopicID) uint32 { return binary.BigEndian.Uint32(id[:4]) }

// Topic is what the broker says about one topic.
type Topic struct {
	Name       string
	ID         TopicID
	Partitions int32
	Replicas   int
	Leaderless []int32 // partitions without a leader or with an error
}

// Admin asks and changes things at the broker. It is safe for concurrent use and shared by the runtimes of a process.
type Admin struct {
	opts    []kgo.Opt
	client  *kgo.Client
	admin   *kadm.Client
	silence time.Duration // see readSilence
}

// NewAdmin connects lazily: it fails only on impossible settings.
func NewAdmin(k KafkaConfig) (*Admin, error) {
	if err := k.Validate(); err != nil {
		return nil, err
	}
	// A bounded retry: callers wait with their own backoff and report what happened meanwhile.
	opts := append(k.KgoOpts(), kgo.RetryTimeout(15*time.Second))
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("create the Kafka admin client: %w", err)
	}
	return &Admin{opts: opts, client: client, admin: kadm.NewClient(client), silence: readSilence}, nil
}

// Close ends the connections.
func (a *Admin) Close() { a.client.Close() }

// Kadm is the client for what this package does not offer.
func (a *Admin) Kadm() *kadm.Client { return a.admin }

// Topics describes topics by name, never from a cache: one that does not exist is missing from the map.
func (a *Admin) Topics(ctx context.Context, names ...string) (map[string]Topic, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none, where nil would be all
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, a.client)
	if err != nil {
		return nil, fmt.Errorf("ask the broker for its topics: %w", err)
	}
	out := make(map[string]Topic, len(names))
	for _, t := range resp.Topics {
		name := ""
		if t.Topic != nil {
			name = *t.Topic
		}
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			continue
		case err != nil:
			return nil, fmt.Errorf("ask the broker for topic %s: %w", name, err)
		}
		topic := Topic{Name: name, ID: TopicID(t.TopicID), Partitions: int32(len(t.Partitions))} //nolint:gosec // a partition count
		for _, p := range t.Partitions {
			topic.Replicas = max(topic.Replicas, len(p.Replicas))
			if p.Leader < 0 || p.ErrorCode != 0 {
				topic.Leaderless = append(topic.Leaderless, p.Partition)
			}
		}
		out[name] = topic
	}
	return out, nil
}

// Positions are the offsets of one partition as the broker sees them.
type Positions struct {
	Start     int64 // first record there is
	End       int64 // the next record's offset
	Committed int64 // the group's, -1 when it has none
}

// Lag is how many offsets the group has still to go. Control records at the end count, though no record will come for them.
func (p Positions) Lag() int64 { return max(0, p.End-max(p.Start, p.Committed)) }

// Lags are the lags of a topic's partitions.
func Lags(positions []Positions) []int64 {
	out := make([]int64, len(positions))
	for p, at := range positions {
		out[p] = at.Lag()
	}
	return out
}

// GroupPositions returns the positions of every partition of the topics, by topic and partition.
func (a *Admin) GroupPositions(ctx context.Context, group string, topics ...string) (map[string][]Positions, error) {
	starts, err := a.admin.ListStartOffsets(ctx, topics...)
	if err = errors.Join(err, starts.Error()); err != nil {
		return nil, fmt.Errorf("list the start offsets of %v: %w", topics, err)
	}
	// Committed offsets before end offsets, so that a lag is never negative.
	committed, err := a.admin.FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		committed, err = nil, nil // a group that never had a member
	}
	if err = errors.Join(err, committed.Error()); err != nil {
		return nil, fmt.Errorf("fetch the committed offsets of group %s: %w", group, err)
	}
	ends, err := a.admin.ListEndOffsets(ctx, topics...)
	if err = errors.Join(err, ends.Error()); err != nil {
		return nil, fmt.Errorf("list the end offsets of %v: %w", topics, err)
	}
	out := make(map[string][]Positions, len(topics))
	for _, topic := range topics {
		list := make([]Positions, len(ends[topic]))
		for p := range ends[topic] {
			if int(p) >= len(list) {
				return nil, fmt.Errorf("topic %s has partition %d but only %d partitions", topic, p, len(list))
			}
			start, _ := starts.Lookup(topic, p)
			list[p] = Positions{Start: start.Offset, End: ends[topic][p].Offset, Committed: -1}
			if c, ok := committed.Lookup(topic, p); ok {
				list[p].Committed = c.At
			}
		}
		out[topic] = list
	}
	return out, nil
}

// firstPositions is GroupPositions that waits until the broker can answer: a new cluster first makes the topic in which it
// keeps groups' offsets.
func (a *Admin) firstPositions(ctx context.Context, group string, topics ...string) (map[string][]Positions, error) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		positions, err := a.GroupPositions(ctx, group, topics...)
		if !kerr.IsRetriable(err) {
			return positions, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-tick.C:
		}
	}
}

// DeleteBefore deletes the records of a topic below the given offset of each partition.
func (a *Admin) DeleteBefore(ctx context.Context, topic string, offsets map[int32]int64) error {
	var os kadm.Offsets
	for p, at := range offsets {
		os.Add(kadm.Offset{Topic: topic, Partition: p, At: at, LeaderEpoch: -1})
	}
	res, err := a.admin.DeleteRecords(ctx, os)
	if err = errors.Join(err, res.Error()); err != nil {
		return fmt.Errorf("delete finished records of topic %s: %w", topic, err)
	}
	return nil
}

// configs returns the effective configuration of the topics that this client may describe.
func (a *Admin) configs(ctx context.Context, topics ...string) (map[string]map[string]string, error) {
	res, err := a.admin.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("describe the configuration of topics %v: %w", topics, err)
	}
	out := make(map[string]map[string]string, len(topics))
	for _, r := range res {
		if errors.Is(r.Err, kerr.TopicAuthorizationFailed) {
			continue
		}
		if r.Err != nil {
			return nil, fmt.Errorf("describe the configuration of topic %s: %w", r.Name, r.Err)
		}
		values := make(map[string]string, len(r.Configs))
		for _, c := range r.Configs {
			if c.Value != nil {
				values[c.Key] = *c.Value
			}
		}
		out[r.Name] = values
	}
	return out, nil
}

func (a *Admin) create(ctx context.Context, t OwnTopic, partitions int32) error {
	configs := make(map[string]*string, len(t.Configs))
	for k, v := range t.Configs {
		configs[k] = kadm.StringPtr(v)
	}
	res, err := a.admin.CreateTopic(ctx, partitions, t.Replication, configs, t.Name)
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return nil // another instance was faster, with the same settings
	}
	if err != nil {
		if res.ErrMessage != "" {
			return fmt.Errorf("create topic %s: %w: %s", t.Name, err, res.ErrMessage)
		}
		return fmt.Errorf("create topic %s: %w", t.Name, err)
	}
	return nil
}

func (a *Admin) alter(ctx context.Context, topic string, values map[string]string) error {
	var changes []kadm.AlterConfig
	for _, k := range slices.Sorted(maps.Keys(values)) {
		changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: k, Value: kadm.StringPtr(values[k])})
	}
	res, err := a.admin.AlterTopicConfigs(ctx, changes, topic)
	if err != nil {
		return fmt.Errorf("alter topic %s: %w", topic, err)
	}
	for _, r := range res {
		if r.Err != nil {
			return fmt.Errorf("alter topic %s: %w %s", topic, r.Err, r.ErrMessage)
		}
	}
	return nil
}

// waitForLeaders returns when every partition of the topics has a leader. A group table created a moment before the first
// session can otherwise end that session with "not the leader" (design, section 3, fact 8 and section 8).
func (a *Admin) waitForLeaders(ctx context.Context, topics ...string) error {
	for tick := time.NewTicker(200 * time.Millisecond); ; {
		got, err := a.Topics(ctx, topics...)
		if err == nil {
			missing := slices.DeleteFunc(slices.Clone(topics), func(t string) bool {
				info, ok := got[t]
				return ok && info.Partitions > 0 && len(info.Leaderless) == 0
			})
			if len(missing) == 0 {
				tick.Stop()
				return nil
			}
			err = fmt.Errorf("topics %v have partitions without a leader: look at the brokers", missing)
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return err
		case <-tick.C:
		}
	}
}

// atLeast compares two numeric settings.
func atLeast(got, want string) bool {
	g, err1 := strconv.ParseInt(got, 10, 64)
	w, err2 := strconv.ParseInt(want, 10, 64)
	return err1 == nil && err2 == nil && g >= w
}

// Record is a record as franz-go read it, for whoever reads a topic beside the processors.
func Record(rec *kgo.Record) *record.Record {
	out := &record.Record{ID: record.ID{Topic: rec.Topic, Partition: rec.Partition, Offset: rec.Offset}, Key: rec.Key, Value: rec.Value, Timestamp: rec.Timestamp}
	for _, h := range rec.Headers {
		out.Headers = append(out.Headers, record.Header(h))
	}
	return out
}
