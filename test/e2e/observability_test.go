package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/generate"
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
	s := harness.Start(t)
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
	s.Eventually(time.Minute, func() (bool, string) {
		n, _ := i.Metric("invest_analytics_price_retries_total")
		return n > 0, "no retry yet"
	})
	require.NoError(t, s.ClickHouse.Restart(t.Context()))
	s.WaitEqual(4*time.Minute, m.Expected())

	// Not every city has a project without a card or a kind that nobody knows; the tests of the packages count these.
	rare := map[string]bool{
		"catalog_popularity_project_missing_total": true, "catalog_promotion_retries_total": true,
		"vitrina_consumer_group_lag": true, "catalog_promotion_unknown_target_kind_total": true,
	}
	for name, kind := range specified {
		if kind == "histogram" {
			name += "_count"
		}
		if value, _ := i.Metric(name); kind != "gauge" && !rare[name] {
			require.Positive(t, value, name)
		}
	}
	seen := map[string]bool{}
	for _, line := range i.Log() {
		var entry struct{ Event, Consumer string }
		require.NoError(t, json.Unmarshal([]byte(line), &entry), line)
		require.NotEmpty(t, entry.Event, line)
		seen[entry.Event] = true
	}
	for _, event := range strings.Fields(`consumed skipped-duplicate skipped-stale recomputed dead-lettered
		incremented skipped-delisted property-object-not-found skipped-poison flushed failed`) {
		require.True(t, seen[event], "log event %s", event)
	}
}
