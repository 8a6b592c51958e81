package telemetry_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

// The names of the three documents and of contracts section 6, as dashboards know them.
var contractNames = []string{
	"catalog_promotion_lag_seconds", "catalog_promotion_consume_duration_ms", "catalog_promotion_cards_recomputed_total",
	"catalog_promotion_stale_total", "catalog_promotion_retries_total", "catalog_promotion_dlq_total",
	"catalog_promotion_contract_mismatch_total", "catalog_promotion_post_only_total",
	"catalog_promotion_unknown_target_kind_total",
	"catalog_popularity_lag_seconds", "catalog_popularity_consume_duration_ms", "catalog_popularity_incremented_total",
	"catalog_popularity_duplicates_total", "catalog_popularity_delisted_skipped_total",
	"catalog_popularity_property_object_not_found_total", "catalog_popularity_project_missing_total",
	"catalog_popularity_retries_total", "catalog_popularity_dlq_total", "catalog_popularity_contract_mismatch_total",
	"catalog_popularity_rekeyed_total",
	"invest_analytics_price_facts_ingested_total", "invest_analytics_price_ingest_lag_seconds",
	"invest_analytics_price_ingest_batch_size", "invest_analytics_price_retries_total", "invest_analytics_price_dlq_total",
	"invest_analytics_price_contract_mismatch_total",
	"vitrina_consumer_group_lag", "vitrina_build_info",
}

func registerAll() *prometheus.Registry {
	reg := prometheus.NewPedanticRegistry()
	telemetry.NewPromotion(reg)
	telemetry.NewPopularity(reg, []string{"Catalog", "Search", "Selection"})
	telemetry.NewPrice(reg)
	telemetry.NewGroupLag(reg, telemetry.GroupTopic{Group: "g", Topic: "t"})
	telemetry.NewRoles(reg, []string{"promotion", "api"}, []string{"promotion"}, []string{"CONTRACT_UNDECODABLE"}, []string{"t"})
	telemetry.RegisterBuildInfo(reg, "1.2.3", "abc")
	return reg
}

func gather(t *testing.T, reg *prometheus.Registry) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	out := make(map[string]*dto.MetricFamily, len(families))
	for _, f := range families {
		out[f.GetName()] = f
	}
	return out
}

func TestEveryContractMetricIsThereAtZero(t *testing.T) {
	got := gather(t, registerAll())
	for _, name := range contractNames {
		require.Contains(t, got, name)
	}
	for name, family := range got {
		require.NotEmpty(t, family.GetHelp(), name)
		switch {
		case strings.HasSuffix(name, "_total"):
			require.Equal(t, dto.MetricType_COUNTER, family.GetType(), name)
		case strings.HasSuffix(name, "_duration_ms"), strings.HasSuffix(name, "_batch_size"):
			require.Equal(t, dto.MetricType_HISTOGRAM, family.GetType(), name)
		default:
			require.Equal(t, dto.MetricType_GAUGE, family.GetType(), name)
		}
		require.NotEmpty(t, family.GetMetric(), name)
		if name == "vitrina_build_info" {
			continue
		}
		for _, m := range family.GetMetric() {
			require.Zero(t, m.GetCounter().GetValue()+m.GetGauge().GetValue()+float64(m.GetHistogram().GetSampleCount()), name)
		}
		if strings.HasSuffix(name, "_lag_seconds") {
			require.Equal(t, "partition", family.GetMetric()[0].GetLabel()[0].GetName())
		}
	}
}

func TestIncrementedKnowsOnlyConfiguredSources(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	p := telemetry.NewPopularity(reg, []string{"Catalog"})
	p.Incremented("Catalog").Add(3)
	p.Incremented("Unknown").Inc()
	p.Incremented("made up by a producer").Inc()
	values := map[string]float64{}
	for _, m := range gather(t, reg)["catalog_popularity_incremented_total"].GetMetric() {
		require.Equal(t, "view_source", m.GetLabel()[0].GetName())
		values[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	require.Equal(t, map[string]float64{"Catalog": 3, "Unknown": 2}, values)
}

func TestGroupLagFollowsThePartitionCount(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	in := telemetry.GroupTopic{Group: "g", Topic: "t"}
	lag := telemetry.NewGroupLag(reg, in)
	lag.Set(in, []int64{5, -1, 7})
	require.Len(t, gather(t, reg)["vitrina_consumer_group_lag"].GetMetric(), 3)
	lag.Set(in, []int64{1})
	metrics := gather(t, reg)["vitrina_consumer_group_lag"].GetMetric()
	require.Len(t, metrics, 1)
	require.InDelta(t, 1, metrics[0].GetGauge().GetValue(), 0)
}
