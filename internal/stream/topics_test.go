package stream

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/internal/record"
)

func TestPlanAndApplyTopics(t *testing.T) {
	e := newEnv(t)
	groups := []GroupTopics{
		{Group: "views", Source: "views.v1", Table: true, Loop: true, DeadLetter: "views-dlq"},
		{Group: "price", Source: "price.v1", DeadLetter: "price-dlq"},
	}
	e.topic("views.v1", 6)
	e.topic("price.v1", 3)
	ctx := t.Context()
	options := TopicOptions{DeadLetterRetention: 30 * 24 * time.Hour}

	findings, err := e.admin.Plan(ctx, options, groups...)
	require.NoError(t, err)
	require.Equal(t, []string{"views-table 6", "views-loop 6", "views-dlq 6", "price-dlq 3"}, summary(findings))
	done, err := e.admin.Apply(ctx, findings)
	require.NoError(t, err)
	require.Len(t, done, 4)
	findings, err = e.admin.Plan(ctx, options, groups...)
	require.NoError(t, err)
	require.Empty(t, findings)

	topics, err := e.admin.Topics(ctx, "views-table", "views-loop", "views-dlq", "price-dlq", "unknown")
	require.NoError(t, err)
	require.Len(t, topics, 4)
	require.Equal(t, int32(6), topics["views-loop"].Partitions)
	configs, err := e.admin.configs(ctx, "views-table", "views-loop", "views-dlq")
	require.NoError(t, err)
	require.Equal(t, "compact", configs["views-table"]["cleanup.policy"])
	require.Equal(t, "-1", configs["views-loop"]["retention.ms"])
	require.Equal(t, "-1", configs["views-loop"]["retention.bytes"])
	require.Equal(t, fmt.Sprint(MaxRecordBytes), configs["views-loop"]["max.message.bytes"])
	require.Equal(t, "2592000000", configs["views-dlq"]["retention.ms"])

	// Somebody changed what must not be: mended. Larger limits and longer lives stay.
	set := func(topic, key, value string) {
		_, err := e.admin.Kadm().AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}, topic)
		require.NoError(t, err)
	}
	set("views-table", "cleanup.policy", "compact,delete")
	set("views-loop", "retention.ms", "3600000")
	set("views-loop", "max.message.bytes", fmt.Sprint(2*MaxRecordBytes))
	set("views-dlq", "retention.ms", "-1")
	findings, err = e.admin.Plan(ctx, options, groups...)
	require.NoError(t, err)
	require.Equal(t, []string{"views-table cleanup.policy=compact", "views-loop retention.ms=-1"}, summary(findings))
	require.Contains(t, describe(findings), "topic views-table has cleanup.policy=compact,delete instead of compact: alter these settings")
	_, err = e.admin.Apply(ctx, findings)
	require.NoError(t, err)
	findings, err = e.admin.Plan(ctx, options, groups...)
	require.NoError(t, err)
	require.Empty(t, findings)

	// Partition counts are never changed; a dead-letter topic may have any.
	e.recreate("views.v1", 8)
	findings, err = e.admin.Plan(ctx, options, groups...)
	require.NoError(t, err)
	require.Len(t, findings, 2)
	for _, f := range findings {
		require.False(t, f.Mendable())
		require.Contains(t, f.Problem, "has 6 partitions and its source views.v1 has 8")
	}
	_, err = e.admin.Apply(ctx, findings)
	require.ErrorContains(t, err, "recreate views.v1 with 6 partitions")

	// A source that is missing or compacted belongs to somebody else.
	e.deleteTopic("price.v1")
	e.deleteTopic("price-dlq")
	e.recreate("views.v1", 6)
	set("views.v1", "cleanup.policy", "compact")
	findings, err = e.admin.Plan(ctx, options, groups...)
	require.NoError(t, err)
	require.Len(t, findings, 3)
	require.Contains(t, describe(findings), "topic price.v1 does not exist: it belongs to the producing service")
	require.Contains(t, describe(findings), "topic price-dlq does not exist: it is created with the partitions of price.v1, which must exist first")
	require.Contains(t, describe(findings), "topic views.v1 is compacted (cleanup.policy=compact), which drops events")
	done, err = e.admin.Apply(ctx, findings)
	require.Error(t, err)
	require.Empty(t, done)
}

func summary(findings []Finding) []string {
	var out []string
	for _, f := range findings {
		line := f.Topic
		if f.Create > 0 {
			line += fmt.Sprint(" ", f.Create)
		}
		for k, v := range f.Alter {
			line += " " + k + "=" + v
		}
		out = append(out, line)
	}
	return out
}

func TestRuntimeWithoutTheRightToCreateSaysWhatToDo(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 1)
	opts := e.options()
	opts.CreateTopics = false
	s := e.start(collector("g", "in"), opts).waitState(PhaseBackoff, "topic g-table does not exist")
	require.Contains(t, s.Reason, "vitrina topics apply")
}

// TestEndsBehindTransactionMarkers: section 12, rule 11, and aborted records are not delivered.
func TestEndsBehindTransactionMarkers(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 1)
	client, err := kgo.NewClient(append(e.kafka.KgoOpts(), kgo.TransactionalID("tx"), kgo.DefaultProduceTopic("in"), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	transaction := func(commit kgo.TransactionEndTry, values ...string) {
		require.NoError(t, client.BeginTransaction())
		for _, v := range values {
			require.NoError(t, client.ProduceSync(t.Context(), rec("in", 0, "k", v)).FirstErr())
		}
		require.NoError(t, client.EndTransaction(t.Context(), commit))
	}
	deliverable := func(from, to int64) bool {
		more, err := e.admin.Deliverable(t.Context(), "in", 0, from, to)
		require.NoError(t, err)
		return more
	}
	transaction(kgo.TryCommit, "a", "b") // 0, 1, marker 2
	transaction(kgo.TryAbort, "x")       // 3, marker 4
	require.True(t, deliverable(0, 5))
	require.True(t, deliverable(1, 5))
	require.True(t, deliverable(1, 2))
	require.False(t, deliverable(2, 5))
	require.False(t, deliverable(2, 3))
	require.False(t, deliverable(5, 5))

	var seen effects
	spec := Spec{Name: "n", Group: "g", Input: "in", Callback: func(_ Context, rec *record.Record) { seen.add(string(rec.Value)) }}
	opts := e.options()
	opts.Timing.Stall = 200 * time.Millisecond
	r := e.start(spec, opts)
	seen.wait(t, "b", 1)
	eventually(t, func() bool {
		done, left, err := e.admin.CaughtUp(t.Context(), "g", map[string][]int64{"in": {5}})
		return err == nil && done && left == 0
	}, func() string { return "never caught up" })
	p, err := e.admin.GroupPositions(t.Context(), "g", "in")
	require.NoError(t, err)
	require.Equal(t, int64(2), p["in"][0].Committed, "the end, 5, is never reached")
	require.Equal(t, []string{"a", "b"}, seen.all())
	// More than a stall's time later the marker still is no reason for another processor.
	transaction(kgo.TryAbort, "y")
	require.Never(t, func() bool { s := r.State(); return s.Phase != PhaseRunning || s.Restarts > 0 }, time.Second, 20*time.Millisecond)
	require.Equal(t, []string{"a", "b"}, seen.all())

	done, left, err := e.admin.CaughtUp(t.Context(), "other", map[string][]int64{"in": {5}})
	require.NoError(t, err)
	require.False(t, done)
	require.Equal(t, int64(5), left)
	_, _, err = e.admin.CaughtUp(t.Context(), "g", map[string][]int64{"in": {5, 5}})
	require.ErrorContains(t, err, "no partition 1")
	require.False(t, slices.ContainsFunc(seen.all(), func(s string) bool { return strings.ContainsAny(s, "xy") }))
}

// An operator who rebuilt popularity, as the message said, was told only then that no rebuild makes its table anew.
func TestAnotherPartitionCountNamesOnlyWhatHelps(t *testing.T) {
	topics := map[string]Topic{"in": {Name: "in", Partitions: 8}, "g-table": {Name: "g-table", Partitions: 6}}
	for _, tc := range []struct {
		lasting   bool
		fix, lack string
	}{
		{true, "have the owner of in give it 6 partitions again (docs/runbooks/partition-count-changed.md)", "vitrina rebuild"},
		{false, "rebuild the projection (vitrina rebuild), which recreates g-table with 8", "never made anew"},
	} {
		g := (&Spec{Group: "g", Input: "in", TableCodec: undecoded{}, Lasting: tc.lasting}).Topics()
		findings := checkOwn(OwnTopics(g, TopicOptions{})[0], topics, nil)
		require.Len(t, findings, 1)
		require.Contains(t, findings[0].Fix, tc.fix)
		require.NotContains(t, findings[0].Fix, tc.lack)
	}
}
