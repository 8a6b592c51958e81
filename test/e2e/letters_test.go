package e2e

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/test/harness"
)

// Partitions stood still behind letters whose topic was deleted, and nothing but the log said so.
func TestAMissingDeadLetterTopicIsToldAndMended(t *testing.T) {
	s := harness.Start(t)
	i := s.Instance("one", nil)
	i.WaitReady()
	client, err := kgo.NewClient(append(s.KgoOpts(), kgo.DefaultProduceTopic(config.TopicViewEnded))...)
	require.NoError(t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	letters := config.TopicPopularityDLQ
	written := func() int64 {
		ends, err := admin.ListEndOffsets(t.Context(), letters)
		require.NoError(t, err)
		var n int64
		ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
		return n
	}
	faulty := func() {
		require.NoError(t, client.ProduceSync(t.Context(), kgo.StringRecord("{")).FirstErr())
	}
	faulty()
	s.Eventually(time.Minute, func() (bool, string) { return written() == 1, "the first letter is written" })
	_, err = admin.DeleteTopic(t.Context(), letters)
	require.NoError(t, err)
	faulty()
	s.Eventually(time.Minute, func() (bool, string) {
		status, body := i.Get("/readyz")
		return status == 503 && bytes.Contains(body, []byte("dead letters cannot be written")), string(body)
	})
	s.Run("topics", "apply")
	i.WaitReady()
	s.Eventually(time.Minute, func() (bool, string) { return written() == 1, "the second letter is written to the new topic" })
}
