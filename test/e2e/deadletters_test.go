package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

// Views that died for want of a card are put back by a replay that is killed ten times at random points, while other events flow: each
// counts once, none is lost, and nothing waits in the dead-letter topic in the end. Put back once more they change nothing.
func TestReplayOfDeadLettersThroughKills(t *testing.T) {
	const objects, each = 20, 100
	s := harness.Start(t, "VITRINA_POPULARITY_RETRY_DELAYS=100ms")
	i := s.Instance("one", nil)
	i.WaitReady()
	producer, err := kgo.NewClient(s.KgoOpts()...)
	require.NoError(t, err)
	t.Cleanup(producer.Close)
	var ids []uuid.UUID
	var records []*kgo.Record
	now := time.Now().UTC().Format(time.RFC3339)
	for range objects {
		object := uuid.New()
		ids = append(ids, object)
		for range each {
			view := uuid.New()
			records = append(records, &kgo.Record{Topic: harness.Views, Key: []byte(view.String()), Value: fmt.Appendf(nil,
				`{"EventId":%q,"ContractVersion":1,"CreatedAt":%q,"Payload":{"PropertyObjectViewId":%q,"PropertyObjectId":%q,"SessionId":%q,"AnonymousId":%q,"UserId":null,"ViewSource":"Catalog","ViewedAt":%q,"LastActivityAt":%q,"DurationSeconds":1}}`,
				uuid.New(), now, view, object, generate.NewPersonalID(), generate.NewPersonalID(), now, now)})
		}
	}
	require.NoError(t, producer.ProduceSync(t.Context(), records...).FirstErr())
	s.Eventually(2*time.Minute, func() (bool, string) {
		ends, err := s.Admin().ListEndOffsets(t.Context(), harness.PopularityDLQ)
		total := int64(0)
		ends.Each(func(o kadm.ListedOffset) { total += o.Offset })
		return err == nil && total >= objects*each, fmt.Sprintf("%d letters (%v)", total, err)
	})
	project := uuid.New()
	_, err = s.Pool.Exec(t.Context(), `INSERT INTO catalog.project_cards (id, status) VALUES ($1, 'Published')`, project)
	require.NoError(t, err)
	_, err = s.Pool.Exec(t.Context(), `INSERT INTO catalog.property_object_cards (id, project_id, status) SELECT o, $1, 'Published' FROM unnest($2::uuid[]) o`, project, ids)
	require.NoError(t, err)

	load := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		o := generate.Defaults()
		o.Seed, o.Start, o.Span = 77, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
		o.Views, o.Purchases, o.Prices, o.Projects, o.Objects, o.LateCards = 20_000, 500, 2_000, 10, 300, 0
		load <- s.Send(ctx, o, model.New(time.Now()), 500, "crc32")
	}()
	args := []string{"dlq", "replay", "--consumer", "popularity", "--code", "CATALOG_SYNC_PROPERTY_OBJECT_NOT_FOUND", "--rate", "60", "--output", "json"}
	for range 10 {
		kill, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond+time.Duration(rand.Int64N(int64(1500*time.Millisecond))))
		out, err := s.TryUntil(kill, args...)
		require.Error(t, err, "it must be killed before its end: %.600s", out)
		cancel()
	}
	var waiting int
	count := func() int {
		var page struct {
			Items []struct{} `json:"items"`
		}
		require.NoError(t, json.Unmarshal([]byte(s.Run("dlq", "list", "--consumer", "popularity", "--code", "CATALOG_SYNC_PROPERTY_OBJECT_NOT_FOUND", "--state", "waiting", "--limit", "1000", "--output", "json")), &page))
		return len(page.Items)
	}
	waiting = count()
	require.Positive(t, waiting, "the kills came too late to prove anything")
	args[len(args)-3] = "2000"
	s.Run(args...)
	stop()
	<-load // it ends early, which is no fault
	require.Zero(t, count())
	all := func() (bool, string) {
		var right, sum, counter int64
		err := s.Pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE popularity_views = $2), coalesce(sum(popularity_views), 0)::bigint,
			(SELECT popularity_views FROM catalog.project_cards WHERE id = $3) FROM catalog.property_object_cards WHERE id = ANY ($1)`, ids, each, project).Scan(&right, &sum, &counter)
		return err == nil && right == objects && counter == objects*each, fmt.Sprintf("%d objects have their %d views, %d in all, %d of the project (%v)", right, each, sum, counter, err)
	}
	s.Eventually(2*time.Minute, all)

	var first struct {
		Items []struct {
			ID string `json:"id"`
		} `json:"items"`
	}
	require.NoError(t, json.Unmarshal([]byte(s.Run("dlq", "list", "--consumer", "popularity", "--limit", "50", "--output", "json")), &first))
	again := []string{"dlq", "replay", "--consumer", "popularity", "--again"}
	for _, l := range first.Items {
		again = append(again, "--id", l.ID)
	}
	s.Run(again...)
	s.WaitCommitted(time.Minute, "pin-catalog-popularity", harness.Views)
	ok, detail := all()
	require.True(t, ok, detail)
}
