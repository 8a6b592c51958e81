package stream

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
)

// TestOnApacheKafka plays what depends on the broker on the real one: topics made, altered and trimmed, the loop, a restart on
// a fresh disk, two instances, and a source that is deleted and created again under a running processor.
func TestOnApacheKafka(t *testing.T) {
	t.Parallel()
	e := newEnvOn(t, devtest.Kafka(t))
	name := uuid.NewString()
	input, group := "in-"+name, "group-"+name
	e.topic(input, 3)
	spec := collector(group, input)
	spec.DeadLetter = "dlq-" + name
	opts := e.options()
	notes := &memory{list: map[string]Accepted{}}
	opts.Incarnations = notes
	opts.Kafka.ClientID = "a"
	opts.Timing.Trim = 100 * time.Millisecond
	a := e.start(spec, opts)
	a.waitReady()

	for i := range 60 {
		e.produce(rec(input, int32(i%3), fmt.Sprint("key-", i%7), fmt.Sprint(i)))
	}
	e.waitDone(spec)
	loop := LoopTopic(group)
	eventually(t, func() bool {
		p, err := e.admin.GroupPositions(t.Context(), group, loop)
		if err != nil {
			return false
		}
		var kept, end int64
		for _, at := range p[loop] {
			kept, end = kept+at.End-at.Start, end+at.End
		}
		return kept == 0 && end > 0
	}, func() string { return "the loop topic is not trimmed" })

	retention := "1000"
	_, err := e.admin.Kadm().AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "retention.ms", Value: &retention}}, loop)
	require.NoError(t, err)
	opts.StateDir, opts.Kafka.ClientID = t.TempDir(), "b"
	b := e.start(spec, opts)
	eventually(t, func() bool { return len(a.Owned()) == 2 && len(b.Owned()) == 1 }, func() string { return fmt.Sprint(a.State(), b.State()) })
	a.waitReady()
	b.waitReady()
	findings, err := e.admin.Plan(t.Context(), opts.Topics, spec.Topics())
	require.NoError(t, err)
	require.Empty(t, findings, "the second start has mended the loop's retention")
	var here, gone int
	for i := range 7 {
		key := fmt.Sprint("key-", i)
		_, err := a.Get(key)
		if CRC32.Partition([]byte(key), 3) == 2 { // now the second one's
			require.ErrorAs(t, err, new(*NotHereError))
			gone++
		} else {
			require.NoError(t, err)
			here++
		}
	}
	require.Positive(t, here)
	require.Positive(t, gone)
	require.NoError(t, a.stop())
	eventually(t, func() bool { return len(b.Owned()) == 3 }, func() string { return fmt.Sprint(b.State()) })
	b.waitReady()
	for i := range 7 {
		got, err := b.Get(fmt.Sprint("key-", i))
		require.NoError(t, err)
		require.NotNil(t, got)
	}
	require.Zero(t, b.State().Restarts)
	require.NotContains(t, e.log.String(), "processor-failed")

	e.recreate(input, 3)
	b.waitState(PhaseBackoff, "was deleted and created again")
	require.NoError(t, b.stop())
}
