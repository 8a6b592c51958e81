package devstack_test

import (
	"context"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/pin-marketplace/vitrina/internal/devstack"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
)

func kafkaClient(t *testing.T, brokers []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(brokers...)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// produce writes values with the given keys to partition 0 and returns the offsets.
func produce(t *testing.T, brokers []string, topic string, keys ...string) {
	t.Helper()
	client := kafkaClient(t, brokers, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for _, key := range keys {
		require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte("v")}).FirstErr())
	}
}

// consume reads n keys of a topic as a group and commits them.
func consume(t *testing.T, brokers []string, group, topic string, n int) []string {
	t.Helper()
	client := kafkaClient(t, brokers, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var keys []string
	for len(keys) < n {
		fetches := client.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) { keys = append(keys, string(r.Key)) })
	}
	require.NoError(t, client.CommitUncommittedOffsets(ctx))
	client.Close()
	return keys
}

// exerciseBroker is what vitrina needs of a broker; both brokers pass it.
func exerciseBroker(t *testing.T, brokers []string) {
	t.Helper()
	ctx := t.Context()
	admin := kadm.NewClient(kafkaClient(t, brokers))

	_, err := admin.CreateTopic(ctx, 3, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}, "table")
	require.NoError(t, err)
	topics, err := admin.ListTopics(ctx, "table")
	require.NoError(t, err)
	require.Len(t, topics["table"].Partitions, 3)
	require.NotEqual(t, kadm.TopicID{}, topics["table"].ID, "topics have ids")

	client := kafkaClient(t, brokers)
	err = client.ProduceSync(ctx, &kgo.Record{Topic: "nobody-made-this", Value: []byte("v")}).FirstErr()
	require.ErrorIs(t, err, kerr.UnknownTopicOrPartition, "topics must not be created by themselves")

	_, err = admin.CreateTopic(ctx, 1, 1, nil, "stream")
	require.NoError(t, err)
	before := time.Now().Add(-time.Hour).UnixMilli()
	produce(t, brokers, "stream", "a", "b", "c")
	require.Equal(t, []string{"a", "b", "c"}, consume(t, brokers, "group", "stream", 3))
	committed, err := admin.FetchOffsetsForTopics(ctx, "group", "stream")
	require.NoError(t, err)
	at, ok := committed.Lookup("stream", 0)
	require.True(t, ok)
	require.EqualValues(t, 3, at.At)
	offsets, err := admin.ListOffsetsAfterMilli(ctx, before, "stream")
	require.NoError(t, err)
	found, ok := offsets.Lookup("stream", 0)
	require.True(t, ok)
	require.Zero(t, found.Offset)

	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: kadm.StringPtr("-1")}}, "stream")
	require.NoError(t, err)
	require.NoError(t, altered[0].Err)
	var trim kadm.Offsets
	trim.Add(kadm.Offset{Topic: "stream", Partition: 0, At: 2})
	_, err = admin.DeleteRecords(ctx, trim)
	require.NoError(t, err)
	starts, err := admin.ListStartOffsets(ctx, "stream")
	require.NoError(t, err)
	start, _ := starts.Lookup("stream", 0)
	require.EqualValues(t, 2, start.Offset)

	old := topics["table"].ID
	_, err = admin.DeleteTopic(ctx, "table")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := admin.CreateTopic(ctx, 3, 1, nil, "table")
		return err == nil
	}, 10*time.Second, 50*time.Millisecond)
	topics, err = kadm.NewClient(kafkaClient(t, brokers)).ListTopics(ctx, "table") // a new client: kadm remembers topics for seconds
	require.NoError(t, err)
	require.NotEqual(t, old, topics["table"].ID, "a topic made anew has another id")

	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Producer.Idempotent, config.Producer.RequiredAcks, config.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
	config.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer(brokers, config)
	require.NoError(t, err)
	_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: "stream", Value: sarama.StringEncoder("v")})
	require.NoError(t, err)
	require.NoError(t, producer.Close())
}

func TestEmbeddedBrokerDoesWhatVitrinaNeeds(t *testing.T) { exerciseBroker(t, devtest.Embedded(t)) }

func TestEmbeddedBrokerKeepsDataPortAndCommitsAcrossRestart(t *testing.T) {
	opts := devstack.Options{Dir: t.TempDir(), Partitions: 4}
	broker, err := devstack.StartEmbedded(t.Context(), opts)
	require.NoError(t, err)
	defer func() { require.NoError(t, broker.Stop(context.WithoutCancel(t.Context()))) }()
	admin := kadm.NewClient(kafkaClient(t, broker.Brokers()))
	_, err = admin.CreateTopic(t.Context(), -1, 1, nil, "stream")
	require.NoError(t, err)
	topics, err := admin.ListTopics(t.Context(), "stream")
	require.NoError(t, err)
	require.Len(t, topics["stream"].Partitions, 4)
	produce(t, broker.Brokers(), "stream", "a", "b")
	require.Equal(t, []string{"a", "b"}, consume(t, broker.Brokers(), "group", "stream", 2))

	addresses := broker.Brokers()
	require.NoError(t, broker.Restart(t.Context()))
	require.Equal(t, addresses, broker.Brokers())
	produce(t, addresses, "stream", "c")
	require.Equal(t, []string{"c"}, consume(t, addresses, "group", "stream", 1), "the commit survived")

	require.NoError(t, broker.Stop(t.Context()))
	again, err := devstack.StartEmbedded(t.Context(), opts)
	require.NoError(t, err)
	defer func() { require.NoError(t, again.Stop(context.WithoutCancel(t.Context()))) }()
	require.Equal(t, []string{"a", "b", "c"}, consume(t, again.Brokers(), "other", "stream", 3))
}

func TestEmbeddedBrokerAsksForAPassword(t *testing.T) {
	broker, err := devstack.StartEmbedded(t.Context(), devstack.Options{SASLUser: "user", SASLPassword: "pass"})
	require.NoError(t, err)
	defer func() { require.NoError(t, broker.Stop(context.WithoutCancel(t.Context()))) }()
	good := scram.Auth{User: "user", Pass: "pass"}
	require.NoError(t, kafkaClient(t, broker.Brokers(), kgo.SASL(good.AsSha256Mechanism())).Ping(t.Context()))
	bad := scram.Auth{User: "user", Pass: "guess"}
	require.Error(t, kafkaClient(t, broker.Brokers(), kgo.SASL(bad.AsSha256Mechanism())).Ping(t.Context()))
}
