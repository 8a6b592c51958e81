package rebuild_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/internal/ops/rebuild"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// A view under a wrong key goes through the loop topic, and once its source offset is committed the record there is the only copy:
// a rebuild that ended then would prune and skip on marks before that view is counted (design, section 12, rule 4).
func TestARebuildFromTheTopicWaitsForTheLoopTopic(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const loop = viewGroup + "-loop"
	client, err := kgo.NewClient(kgo.SeedBrokers(e.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer client.Close()
	produce := func(topic string) {
		require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: 1, Value: []byte("{}")}).FirstErr())
	}
	// No instance runs: the test is the group.
	commit := func(topic string) {
		var offsets kadm.Offsets
		offsets.Add(kadm.Offset{Topic: topic, Partition: 1, At: 1, LeaderEpoch: -1})
		_, err := e.admin.Kadm().CommitOffsets(t.Context(), viewGroup, offsets)
		require.NoError(t, err)
	}
	produce(viewEnded)

	op := e.submit(rebuild.KindRebuild, popularity, rebuild.FromTopic, rebuild.Params{})
	r := e.runner("command line")
	r.CrashAt(func(at string) error {
		if at == "loop done" && e.committed(viewGroup, loop) == 0 {
			return fmt.Errorf("the rebuild has caught up although a record of %s is not committed", loop)
		}
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- r.Seize(t.Context(), op.ID) }()
	waitsFor := func(topic string) {
		e.eventually(time.Minute, func() (bool, string) {
			select {
			case err := <-ended:
				t.Fatalf("the rebuild has ended before %s was committed: %v", topic, err)
			default:
			}
			var err error
			op, err = postgres.ReadOperation(t.Context(), e.pool, op.ID)
			require.NoError(t, err)
			return strings.Contains(op.Message, topic+" to go") || strings.Contains(op.Message, "consumes "+topic+":"), op.Step + ": " + op.Message
		})
	}
	waitsFor(viewEnded)
	produce(loop) // the instance has read the view and sends it on its way
	commit(viewEnded)
	waitsFor(loop)
	commit(loop)
	require.NoError(t, <-ended)
	e.succeeds(op.ID)
}
