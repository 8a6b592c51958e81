package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

// The metrics of the three documents and of the contracts, with their Prometheus types.
var specified = map[string]string{ //nolint:gochecknoglobals // a table of cases
	"catalog_promotion_lag_seconds":                      "gauge",
	"catalog_promotion_consume_duration_ms":              "histogram",
	"catalog_promotion_cards_recomputed_total":           "counter",
	"catalog_promotion_stale_total":                      "counter",
	"catalog_promotion_retries_total":                    "counter",
	"catalog_promotion_dlq_total":                        "counter",
	"catalog_promotion_contract_mismatch_total":          "counter",
	"catalog_promotion_post_only_total":                  "counter",
	"catalog_promotion_unknown_target_kind_total":        "counter",
	"catalog_popularity_lag_seconds":                     "gauge",
	"catalog_popularity_consume_duration_ms":             "histogram",
	"catalog_popularity_incremented_total":               "counter",
	"catalog_popularity_duplicates_total":                "counter",
	"catalog_popularity_delisted_skipped_total":          "counter",
	"catalog_popularity_property_object_not_found_total": "counter",
	"catalog_popularity_project_missing_total":           "counter",
	"catalog_popularity_retries_total":                   "counter",
	"catalog_popularity_dlq_total":                       "counter",
	"catalog_popularity_contract_mismatch_total":         "counter",
	"catalog_popularity_rekeyed_total":                   "counter",
	"invest_analytics_price_facts_ingested_total":        "counter",
	"invest_analytics_price_ingest_lag_seconds":          "gauge",
	"invest_analytics_price_ingest_batch_size":           "histogram",
	"invest_analytics_price_retries_total":               "counter",
	"invest_analytics_price_dlq_total":                   "counter",
	"invest_analytics_price_contract_mismatch_total":     "counter",
	"vitrina_consumer_group_lag":                         "gauge",
}

// Every metric of the specification is there with its type before anything happens, counts when it happens, and every log event
// of the specification is written at the default level.
func TestEveryMetricAndLogEventOfTheSpecification(t *testing.T) {
	s := harness.Start(t, "VITRINA_LOG_EVENTS_PER_SECOND=0", // one event name is one limit for all consumers
		"VITRINA_POPULARITY_RETRY_DELAYS=1s,2s,4s,8s")
	i := s.Instance("one", nil)
	i.WaitReady()
	_, before := i.Get("/metrics")
	for name, kind := range specified {
		require.Contains(t, string(before), fmt.Sprintf("# TYPE %s %s\n", name, kind))
		if kind == "counter" {
			value, found := i.Metric(name)
			require.True(t, found, name)
			require.Zero(t, value, name)
		}
	}

	o := generate.Defaults()
	o.Seed, o.Start, o.Span = 71, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects = 5_000, 1_000, 1_000, 20, 400
	o.Duplicates, o.Reordered, o.LateCards, o.Homeless, o.WrongKeys, o.Malformed = 0.1, 0.2, 0.05, 0.01, 0.05, 1
	m := model.New(time.Now())
	require.NoError(t, s.ClickHouse.Kill()) // for `failed` and the retries
	require.NoError(t, s.Send(t.Context(), o, m, 0, "crc32"))
	viewWithoutProject(t, s, m)
	s.Eventually(time.Minute, func() (bool, string) {
		n, _ := i.Metric("invest_analytics_price_retries_total")
		return n > 0, "no retry yet"
	})
	require.NoError(t, s.ClickHouse.Restart(t.Context()))
	s.WaitEqual(4*time.Minute, m.Expected())

	// Not every city has a kind that nobody knows, and PostgreSQL was never away; the tests of the packages count these.
	rare := map[string]bool{"catalog_promotion_retries_total": true, "catalog_promotion_unknown_target_kind_total": true}
	for name, kind := range specified {
		if kind == "histogram" {
			name += "_count"
		}
		if value, _ := i.Metric(name); kind != "gauge" && !rare[name] {
			require.Positive(t, value, name)
		}
	}
	missing, _ := i.Metric("catalog_popularity_project_missing_total")
	require.InDelta(t, 1, missing, 0, "the one view whose project has no card")
	for _, name := range []string{"catalog_popularity_unknown_view_source_total", "catalog_popularity_negative_duration_total"} {
		value, _ := i.Metric(name)
		require.Positive(t, value, name)
	}
	type event struct{ Consumer, Event string }
	seen := map[event]bool{}
	for _, line := range i.Log() {
		var entry event
		require.NoError(t, json.Unmarshal([]byte(line), &entry), line)
		require.NotEmpty(t, entry.Event, line)
		seen[entry] = true
	}
	for consumer, events := range map[string]string{
		"promotion":  "consumed skipped-duplicate skipped-stale dead-lettered contract-mismatch rekeyed",
		"popularity": "consumed skipped-duplicate incremented skipped-delisted property-object-not-found project-missing dead-lettered contract-mismatch rekeyed",
		"price":      "dead-lettered contract-mismatch",
		"":           "recomputed unknown-view-source negative-duration skipped-poison flushed failed", // of one consumer only, or of a sink
	} {
		for _, name := range strings.Fields(events) {
			require.True(t, seen[event{consumer, name}], "log event %s of %q", name, consumer)
		}
	}
}

// viewWithoutProject sends a view of an object whose project has no card, which counts for the object alone.
func viewWithoutProject(t *testing.T, s *harness.System, m *model.Model) {
	t.Helper()
	card := model.Card{Kind: model.PropertyObject, ID: uuid.NewString(), ProjectID: uuid.NewString(), Status: model.Published}
	_, err := s.Pool.Exec(t.Context(), `INSERT INTO catalog.property_object_cards (id, project_id, status) VALUES ($1, $2, $3)`, card.ID, card.ProjectID, card.Status)
	require.NoError(t, err)
	m.Card(card)
	id, now := uuid.NewString(), time.Now().UTC().Format(time.RFC3339)
	view := &record.Record{ID: record.ID{Topic: harness.Views}, Key: []byte(id), Value: fmt.Appendf(nil,
		`{"CreatedAt":%q,"ContractVersion":1,"Payload":{"PropertyObjectViewId":%q,"PropertyObjectId":%q,"SessionId":%q,"AnonymousId":%q,"ViewSource":"Catalog","ViewedAt":%q,"LastActivityAt":%q,"DurationSeconds":1}}`,
		now, id, card.ID, generate.NewPersonalID(), generate.NewPersonalID(), now, now)}
	m.Apply(view)
	producer, err := kgo.NewClient(s.KgoOpts()...)
	require.NoError(t, err)
	defer producer.Close()
	require.NoError(t, producer.ProduceSync(t.Context(), &kgo.Record{Topic: view.Topic, Key: view.Key, Value: view.Value}).FirstErr())
}
