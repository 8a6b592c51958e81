package tablestore

import (
	"context"
	"fmt"
	"io"
	"log"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka"
	"github.com/lovoo/goka/codec"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A real processor and a real view over a broker in this process: Goka's acknowledgements arrive in order, so the offset follows them
// to the end, nothing is read again after a restart, and a view over the same table sees every value.
func TestUnderGoka(t *testing.T) {
	const records = 3000
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "in"))
	require.NoError(t, err)
	defer cluster.Close()
	brokers := cluster.ListenAddrs()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic("in"))
	require.NoError(t, err)
	defer client.Close()
	table := string(goka.GroupTable("g"))
	_, err = kadm.NewClient(client).CreateTopic(ctx, 1, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}, table)
	require.NoError(t, err)
	for i := range records {
		client.Produce(ctx, &kgo.Record{Key: []byte(fmt.Sprint("key-", i%1000)), Value: []byte(fmt.Sprint(i))}, nil)
	}
	require.NoError(t, client.Flush(ctx))

	out := &logBuffer{}
	tables, err := New(Config{Dir: t.TempDir(), FlushInterval: 20 * time.Millisecond}, out.logger(), nil)
	require.NoError(t, err)
	for life := range int64(2) {
		var handled atomic.Int64
		stop := startProcessor(ctx, t, brokers, tables, func(ctx goka.Context, msg any) {
			ctx.SetValue(msg)
			handled.Add(1)
		})
		require.Eventually(t, func() bool {
			st := tables.Stats()
			return len(st) == 1 && st[0].Recovered && st[0].OnDisk == records*(life+1)-1
		}, 30*time.Second, 10*time.Millisecond, "%+v", tables.Stats())
		require.Equal(t, int64(records), handled.Load())
		require.False(t, tables.Stats()[0].Pinned)
		require.Equal(t, int64(1000), tables.Stats()[0].Keys)
		stop()
		for i := range records {
			client.Produce(ctx, &kgo.Record{Key: []byte(fmt.Sprint("key-", i%1000)), Value: []byte(fmt.Sprint(i))}, nil)
		}
		require.NoError(t, client.Flush(ctx))
	}
	require.Contains(t, out.String(), fmt.Sprintf(`"offset":%d,"keys":1000`, records-1), "the second life reads nothing again")
	checkView(ctx, t, brokers, table)
}

func testConfig() *sarama.Config {
	c := goka.DefaultConfig()
	c.Version = sarama.V2_8_0_0
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Idempotent = true
	c.Net.MaxOpenRequests = 1
	return c
}

func startProcessor(ctx context.Context, t *testing.T, brokers []string, tables *Tables, callback goka.ProcessCallback) (stop func()) {
	t.Helper()
	topics := goka.NewTopicManagerConfig()
	topics.Table.Replication = 1
	cfg := testConfig()
	p, err := goka.NewProcessor(brokers,
		goka.DefineGroup("g", goka.Input("in", new(codec.Bytes), callback), goka.Persist(new(codec.Bytes))),
		goka.WithStorageBuilder(tables.Build),
		goka.WithConsumerGroupBuilder(goka.ConsumerGroupBuilderWithConfig(cfg)),
		goka.WithConsumerSaramaBuilder(goka.SaramaConsumerBuilderWithConfig(cfg)),
		goka.WithProducerBuilder(goka.ProducerBuilderWithConfig(testConfig())),
		goka.WithTopicManagerBuilder(goka.TopicManagerBuilderWithConfig(testConfig(), topics)),
		goka.WithLogger(log.New(io.Discard, "", 0)),
	)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-ended)
		require.Empty(t, tables.Stats())
	}
}

func checkView(ctx context.Context, t *testing.T, brokers []string, table string) {
	t.Helper()
	cfg := Config{Dir: t.TempDir(), Follow: true}
	tables := newTables(t, cfg)
	view, err := goka.NewView(brokers, goka.Table(table), new(codec.Bytes),
		goka.WithViewStorageBuilder(tables.Build),
		goka.WithViewConsumerSaramaBuilder(goka.SaramaConsumerBuilderWithConfig(testConfig())),
		goka.WithViewTopicManagerBuilder(goka.TopicManagerBuilderWithConfig(testConfig(), goka.NewTopicManagerConfig())),
		goka.WithViewLogger(log.New(io.Discard, "", 0)),
	)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- view.Run(ctx) }()
	<-view.WaitRunning()
	var keys []string
	it, err := view.Iterator()
	require.NoError(t, err)
	for it.Next() {
		keys = append(keys, it.Key())
		value, err := view.Get(it.Key())
		require.NoError(t, err)
		require.NotNil(t, value)
	}
	require.NoError(t, it.Err())
	it.Release()
	require.Len(t, keys, 1000)
	require.True(t, slices.IsSorted(keys))
	cancel()
	require.NoError(t, <-ended)
}
