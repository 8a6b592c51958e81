package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// GroupTopics says which topics one consumer works with.
type GroupTopics struct {
	Group      string
	Source     string // read by the group, owned by another team
	Table      bool   // the group has a table
	Loop       bool   // the group has a loop topic
	DeadLetter string // its dead-letter topic
	Lasting    bool   // its table and loop topic are never made anew, not even by a rebuild
}

// TableTopic and LoopTopic are Goka's names.
func TableTopic(group string) string { return group + "-table" }

// LoopTopic is the name of a group's loop topic.
func LoopTopic(group string) string { return group + "-loop" }

// TopicOptions are the settings of the topics this project owns.
type TopicOptions struct {
	Replication         int16         // -1 or 0: the broker's default
	MinInsync           int           // min.insync.replicas; 0: the broker's default
	DeadLetterRetention time.Duration // default 90 days
}

// OwnTopic is one topic of this project as it should be.
type OwnTopic struct {
	Name        string
	Source      string // has the partition count that this one takes
	Kind        TopicKind
	Lasting     bool // GroupTopics.Lasting
	Replication int16
	Configs     map[string]string
}

// TopicKind is what a topic is for.
type TopicKind string

// The kinds of topics.
const (
	KindTable      TopicKind = "table"
	KindLoop       TopicKind = "loop"
	KindDeadLetter TopicKind = "dead letters"
	KindSource     TopicKind = "source"
)

// OwnTopics lists the topics of a group that this project creates and checks.
func OwnTopics(g GroupTopics, o TopicOptions) []OwnTopic {
	common := map[string]string{"max.message.bytes": strconv.Itoa(MaxRecordBytes)}
	if o.MinInsync > 0 {
		common["min.insync.replicas"] = strconv.Itoa(o.MinInsync)
	}
	replication := o.Replication
	if replication == 0 {
		replication = -1
	}
	topic := func(name string, kind TopicKind, configs map[string]string) OwnTopic {
		maps.Copy(configs, common)
		return OwnTopic{Name: name, Source: g.Source, Kind: kind, Lasting: g.Lasting, Replication: replication, Configs: configs}
	}
	var out []OwnTopic
	if g.Table {
		// Compacted only: with a retention by time a key could be gone from the changelog and alive on one disk.
		out = append(out, topic(TableTopic(g.Group), KindTable, map[string]string{"cleanup.policy": "compact"}))
	}
	if g.Loop {
		// A looped record is the only copy once its source offset is committed, so nothing but the runtime, which trims the
		// topic below the committed offset, may delete from it.
		out = append(out, topic(LoopTopic(g.Group), KindLoop, map[string]string{
			"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1",
		}))
	}
	if g.DeadLetter != "" {
		retention := o.DeadLetterRetention
		if retention <= 0 {
			retention = 90 * 24 * time.Hour
		}
		out = append(out, topic(g.DeadLetter, KindDeadLetter, map[string]string{
			"cleanup.policy": "delete", "retention.ms": strconv.FormatInt(retention.Milliseconds(), 10),
		}))
	}
	return out
}

// Finding is one difference between the topics as they are and as they should be.
type Finding struct {
	Topic   string            `json:"topic"`
	Kind    TopicKind         `json:"kind"`
	Problem string            `json:"problem"`
	Fix     string            `json:"fix"`
	Create  int32             `json:"create,omitempty"` // partitions to create it with; 0: do not create
	Alter   map[string]string `json:"alter,omitempty"`  // settings to change

	own OwnTopic
}

// Mendable says whether Apply can mend it.
func (f Finding) Mendable() bool { return f.Create > 0 || len(f.Alter) > 0 }

// Plan compares the topics of the groups with what they should be. No findings: all is well. Partition counts are read from
// the broker; a topic of ours takes its source's.
func (a *Admin) Plan(ctx context.Context, o TopicOptions, groups ...GroupTopics) ([]Finding, error) {
	var own []OwnTopic
	var names []string
	for _, g := range groups {
		names = append(names, g.Source)
		for _, t := range OwnTopics(g, o) {
			own = append(own, t)
			names = append(names, t.Name)
		}
	}
	topics, err := a.Topics(ctx, names...)
	if err != nil {
		return nil, err
	}
	existing := slices.DeleteFunc(slices.Clone(names), func(n string) bool { _, ok := topics[n]; return !ok })
	configs, err := a.configs(ctx, existing...)
	if err != nil {
		return nil, err
	}
	var out []Finding
	for _, g := range groups {
		out = append(out, checkSource(g, topics, configs)...)
	}
	for _, t := range own {
		out = append(out, checkOwn(t, topics, configs[t.Name])...)
	}
	return out, nil
}

func checkSource(g GroupTopics, topics map[string]Topic, configs map[string]map[string]string) []Finding {
	if _, ok := topics[g.Source]; !ok {
		return []Finding{{Topic: g.Source, Kind: KindSource, Problem: "does not exist",
			Fix: "it belongs to the producing service: have it created there, or check kafka.brokers and this client's rights"}}
	}
	if policy := configs[g.Source]["cleanup.policy"]; strings.Contains(policy, "compact") && g.Table {
		return []Finding{{Topic: g.Source, Kind: KindSource, Problem: "is compacted (cleanup.policy=" + policy + "), which drops events",
			Fix: "have its owner set cleanup.policy=delete"}}
	}
	return nil
}

func checkOwn(t OwnTopic, topics map[string]Topic, configs map[string]string) []Finding {
	source, hasSource := topics[t.Source]
	have, ok := topics[t.Name]
	if !ok {
		f := Finding{Topic: t.Name, Kind: t.Kind, Problem: "does not exist", Create: source.Partitions, own: t,
			Fix: fmt.Sprintf("create it with the %d partitions of %s", source.Partitions, t.Source)}
		if !hasSource {
			f.Fix = "it is created with the partitions of " + t.Source + ", which must exist first"
		}
		return []Finding{f}
	}
	var out []Finding
	if configs == nil {
		t.Configs = nil // this client may not describe the topic: its settings cannot be compared
	}
	if hasSource && have.Partitions != source.Partitions && t.Kind != KindDeadLetter {
		// Never changed here: a key would move to another partition, away from its state.
		out = append(out, Finding{Topic: t.Name, Kind: t.Kind,
			Problem: fmt.Sprintf("has %d partitions and its source %s has %d", have.Partitions, t.Source, source.Partitions),
			Fix:     otherCount(t, have, source)})
	}
	changes := map[string]string{}
	var problems []string
	for _, key := range slices.Sorted(maps.Keys(t.Configs)) {
		want, got := t.Configs[key], configs[key]
		if got == want {
			continue
		}
		if (key == "max.message.bytes" || key == "min.insync.replicas") && atLeast(got, want) {
			continue
		}
		if key == "retention.ms" && t.Kind == KindDeadLetter && (got == "-1" || atLeast(got, want)) {
			continue
		}
		changes[key] = want
		problems = append(problems, fmt.Sprintf("%s=%s instead of %s", key, got, want))
	}
	if len(changes) > 0 {
		out = append(out, Finding{Topic: t.Name, Kind: t.Kind, Problem: "has " + strings.Join(problems, ", "),
			Fix: "alter these settings", Alter: changes, own: t})
	}
	return out
}

// otherCount says what to do about a topic of ours whose source has another number of partitions now.
func otherCount(t OwnTopic, have, source Topic) string {
	if t.Lasting {
		return fmt.Sprintf("the group's table is its only long memory and is never made anew, so have the owner of %s give it %d partitions again (docs/runbooks/partition-count-changed.md)",
			t.Source, have.Partitions)
	}
	return fmt.Sprintf("partition counts of topics with state cannot change: recreate %s with %d partitions, or rebuild the projection"+
		" (vitrina rebuild), which recreates %s with %d", t.Source, have.Partitions, t.Name, source.Partitions)
}

// Apply mends what can be mended: missing topics of ours are created, differing settings of ours are altered. Partition counts
// and other teams' topics are never touched. It returns what it did, and an error for what is left.
func (a *Admin) Apply(ctx context.Context, findings []Finding) ([]Finding, error) {
	var done []Finding
	var created []string
	var errs []error
	for _, f := range findings {
		var err error
		switch {
		case f.Create > 0:
			err = a.create(ctx, f.own, f.Create)
			created = append(created, f.Topic)
		case len(f.Alter) > 0:
			err = a.alter(ctx, f.Topic, f.Alter)
		default:
			err = fmt.Errorf("topic %s %s: %s", f.Topic, f.Problem, f.Fix)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, f)
	}
	if len(errs) > 0 {
		return done, errors.Join(errs...)
	}
	if len(created) > 0 {
		wait, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		if err := a.waitForLeaders(wait, created...); err != nil {
			return done, err
		}
	}
	return done, nil
}

// describe makes one sentence of findings, for errors.
func describe(findings []Finding) string {
	var parts []string
	for _, f := range findings {
		parts = append(parts, fmt.Sprintf("topic %s %s: %s", f.Topic, f.Problem, f.Fix))
	}
	return strings.Join(parts, "; ")
}
