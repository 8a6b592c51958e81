package e2e

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
	"github.com/pin-marketplace/vitrina/test/observe"
)

// A malformed record of each kind goes to the dead letters of its consumer, as it was and with the headers of the contracts, and
// the records behind it in its partition are processed.
func TestAMalformedRecordOfEachKindIsDeadLetteredAndHoldsNothingUp(t *testing.T) {
	s := harness.Start(t)
	s.Instance("one", nil).WaitReady()
	o := generate.Defaults()
	o.Seed, o.Start, o.Span = 11, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects, o.Malformed = 2_000, 200, 400, 10, 200, 2
	m := model.New(time.Now())
	require.NoError(t, s.Send(t.Context(), o, m, 0, "crc32"))
	s.WaitEqual(3*time.Minute, m.Expected())

	type place struct {
		topic             string
		partition, offset string
	}
	sources := map[place]*kgo.Record{}
	require.NoError(t, observe.Records(t.Context(), s.KgoOpts(), func(r *kgo.Record) {
		sources[place{r.Topic, strconv.Itoa(int(r.Partition)), strconv.FormatInt(r.Offset, 10)}] = r
	}, harness.Purchases, harness.Views, harness.Prices))

	dlq := map[string]string{harness.PromotionDLQ: harness.Purchases, harness.PopularityDLQ: harness.Views, harness.PriceDLQ: harness.Prices}
	letters := 0
	require.NoError(t, observe.Records(t.Context(), s.KgoOpts(), func(r *kgo.Record) {
		letters++
		own, added := splitHeaders(r.Headers)
		require.Equal(t, dlq[r.Topic], added["x-source-topic"])
		source := sources[place{added["x-source-topic"], added["x-original-partition"], added["x-original-offset"]}]
		require.NotNil(t, source, "the letter names its record: %v", added)
		require.Equal(t, source.Key, r.Key)
		require.Equal(t, source.Value, r.Value)
		require.Equal(t, source.Headers, own)
		require.NotEmpty(t, added["x-dlq-reason"])
		require.NotEmpty(t, added["x-dlq-error-code"])
		require.Equal(t, "1", added["x-dlq-attempts"])
		_, err := time.Parse(time.RFC3339, added["x-dlq-timestamp"])
		require.NoError(t, err)
		require.Len(t, added, 7, fmt.Sprint(added))
	}, harness.PromotionDLQ, harness.PopularityDLQ, harness.PriceDLQ))
	require.GreaterOrEqual(t, letters, len(m.Expected().DeadLetters))
}

// splitHeaders separates the record's own headers from those of the dead letter.
func splitHeaders(headers []kgo.RecordHeader) (own []kgo.RecordHeader, added map[string]string) {
	added = map[string]string{}
	for _, h := range headers {
		switch h.Key {
		case "x-dlq-reason", "x-dlq-error-code", "x-source-topic", "x-original-offset", "x-original-partition", "x-dlq-timestamp", "x-dlq-attempts":
			added[h.Key] = string(h.Value)
		default:
			own = append(own, h)
		}
	}
	return own, added
}
