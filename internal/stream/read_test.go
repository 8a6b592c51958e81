package stream

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestRangesAreReadToTheirEnds(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 2)
	for _, v := range []string{"a", "b", "c", "d"} {
		e.produce(rec("in", 0, "k", v), rec("in", 1, "k", v+v))
	}
	read := func(ranges map[int32]Range, stop string) (got []string) {
		require.NoError(t, e.admin.ReadRanges(t.Context(), "in", ranges, func(rec *kgo.Record) (bool, error) {
			got = append(got, string(rec.Value))
			return string(rec.Value) != stop, nil
		}))
		slices.Sort(got) // between partitions there is no order
		return got
	}
	all, err := e.admin.Ranges(t.Context(), "in")
	require.NoError(t, err)
	require.Equal(t, map[int32]Range{0: {0, 4}, 1: {0, 4}}, all)
	require.Len(t, read(all, ""), 8)
	require.Equal(t, []string{"b", "c", "dd"}, read(map[int32]Range{0: {1, 3}, 1: {3, 4}}, ""))
	require.Equal(t, []string{"a", "b"}, read(map[int32]Range{0: {0, 4}, 1: {4, 4}}, "b"))
	require.Empty(t, read(map[int32]Range{0: {2, 2}}, ""))

	boom := errors.New("boom")
	require.ErrorIs(t, e.admin.ReadRanges(t.Context(), "in", all, func(*kgo.Record) (bool, error) { return true, boom }), boom)

	// Retention has taken what was to be read, and more.
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: "in", Partition: 0, At: 3, LeaderEpoch: -1})
	_, err = e.admin.Kadm().DeleteRecords(t.Context(), offsets)
	require.NoError(t, err)
	require.Empty(t, read(map[int32]Range{0: {0, 2}}, ""))
	require.Equal(t, []string{"d"}, read(map[int32]Range{0: {0, 4}}, ""))
}

// A rebuild read the group table inside the transaction that holds its projection, and waited for ever for a broker that sent nothing.
func TestAReadingEndsWhenTheBrokerIsSilent(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 1)
	e.produce(rec("in", 0, "k", "a"))
	client, err := kgo.NewClient(append(e.kafka.KgoOpts(), kgo.TransactionalID("tx"), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	require.NoError(t, client.BeginTransaction())
	require.NoError(t, client.ProduceSync(t.Context(), rec("in", 0, "k", "b")).FirstErr())

	ranges, err := e.admin.Ranges(t.Context(), "in")
	require.NoError(t, err)
	require.Equal(t, map[int32]Range{0: {0, 1}}, ranges, "the transaction is not over")
	e.admin.silence = 2 * time.Second
	var got []string
	err = e.admin.ReadRanges(t.Context(), "in", map[int32]Range{0: {0, 2}}, func(rec *kgo.Record) (bool, error) {
		got = append(got, string(rec.Value))
		return true, nil
	})
	require.ErrorContains(t, err, "the broker sent nothing for 2s")
	require.Equal(t, []string{"a"}, got)
	require.NoError(t, client.EndTransaction(t.Context(), kgo.TryAbort))
}
