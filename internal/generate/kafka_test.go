package generate_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/test/model"
)

func broker(t *testing.T) []string {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1),
		kfake.SeedTopics(6, config.TopicViewEnded, config.TopicPurchaseChanged, config.TopicPriceChanged))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	return cluster.ListenAddrs()
}

func consume(t *testing.T, brokers []string, n int) []*kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...),
		kgo.ConsumeTopics(config.TopicViewEnded, config.TopicPurchaseChanged, config.TopicPriceChanged),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out []*kgo.Record
	for len(out) < n {
		fetches := client.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		out = append(out, fetches.Records()...)
	}
	return out
}

func TestKafkaPartitionsAreTheProducers(t *testing.T) {
	for _, name := range generate.Partitioners() {
		t.Run(name, func(t *testing.T) {
			brokers := broker(t)
			o := small()
			o.Views, o.Purchases, o.Prices, o.Malformed = 300, 100, 100, 0
			w, err := generate.NewKafkaWriter([]kgo.Opt{kgo.SeedBrokers(brokers...)}, name, 1)
			require.NoError(t, err)
			defer w.Close()
			m := model.New(o.Start.Add(o.Span))
			sum, err := generate.Send(t.Context(), generate.WithoutErrors(generate.Items(o)), generate.Destination{
				Records: w, Observe: func(item generate.Item) { item.Give(m) },
			})
			require.NoError(t, err)
			require.Zero(t, sum.Cards, "there was nobody to insert them")
			got := consume(t, brokers, sum.Records)
			require.Len(t, got, sum.Records)
			require.Equal(t, m.Expected().Records, sum.ByTopic)
			same, null := 0, 0
			for _, r := range got {
				switch {
				case r.Key == nil:
					null++
				case stream.PartitionOf(name, r.Key, 6) == r.Partition:
					same++
				}
			}
			if name == "random" {
				require.Less(t, same, len(got))
				return
			}
			require.Equal(t, len(got), same+null)
			require.Positive(t, null)
		})
	}
	_, err := generate.NewKafkaWriter(nil, "md5", 1)
	require.ErrorContains(t, err, "murmur2")
}

type failing struct{ generate.RecordWriter }

func (failing) WriteCards(context.Context, []generate.Card) error { return errors.New("no table") }

type collect struct{ cards [][]generate.Card }

func (c *collect) WriteCards(_ context.Context, cards []generate.Card) error {
	c.cards = append(c.cards, cards)
	return nil
}

func TestSendInsertsCardsBeforeTheRecordsBehindThem(t *testing.T) {
	brokers := broker(t)
	w, err := generate.NewKafkaWriter([]kgo.Opt{kgo.SeedBrokers(brokers...)}, "crc32", 1)
	require.NoError(t, err)
	defer w.Close()
	o := small()
	o.Objects, o.Views, o.Purchases, o.Prices, o.Malformed, o.LateCards = 2500, 50, 20, 20, 0, 0.01
	cards := &collect{}
	sum, err := generate.Send(t.Context(), generate.WithoutErrors(generate.Items(o)), generate.Destination{Records: w, Cards: cards})
	require.NoError(t, err)
	require.Equal(t, o.Projects+o.Objects, sum.Cards)
	require.Len(t, cards.cards[0], 1000)
	require.Greater(t, len(cards.cards), 4)

	_, err = generate.Send(t.Context(), generate.WithoutErrors(generate.Items(o)), generate.Destination{Records: w, Cards: failing{}})
	require.ErrorContains(t, err, "no table")
}

func TestSendKeepsTheRateAndStopsWithItsContext(t *testing.T) {
	brokers := broker(t)
	w, err := generate.NewKafkaWriter([]kgo.Opt{kgo.SeedBrokers(brokers...)}, "crc32", 1)
	require.NoError(t, err)
	defer w.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	begin, seen := time.Now(), 0
	sum, err := generate.Send(ctx, generate.WithoutErrors(generate.Items(small())), generate.Destination{
		Records: w, Rate: 200,
		Observe: func(item generate.Item) {
			if item.Record != nil {
				seen++
			}
			if seen == 60 {
				cancel(errors.New("enough"))
			}
		},
	})
	require.ErrorContains(t, err, "enough")
	require.InDelta(t, 60, sum.Records, 15)
	require.Greater(t, time.Since(begin), 150*time.Millisecond, "60 records at 200 a second, the first 10 at once")
}
