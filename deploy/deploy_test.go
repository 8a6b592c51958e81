package deploy_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

// documents reads every document of a YAML file; anchors are resolved, duplicate keys refused.
func documents(t *testing.T, path string) []map[string]any {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	decoder := yaml.NewDecoder(f)
	var out []map[string]any
	for {
		var doc map[string]any
		err := decoder.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err, path)
		out = append(out, doc)
	}
}

func TestEveryYAMLFileParses(t *testing.T) {
	count := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
		require.NoError(t, err)
		if strings.HasSuffix(path, ".yaml") {
			require.NotEmpty(t, documents(t, path), path)
			count++
		}
		return nil
	}))
	require.GreaterOrEqual(t, count, 10)
}

// names are all metrics the program has.
func names(t *testing.T) map[string]bool {
	t.Helper()
	reg := prometheus.NewRegistry()
	telemetry.NewPromotion(reg)
	telemetry.NewPopularity(reg, []string{"Catalog"})
	telemetry.NewPrice(reg)
	telemetry.NewGroupLag(reg, telemetry.GroupTopic{Group: "g", Topic: "t"})
	telemetry.NewRoles(reg, []string{"promotion"}, []string{"promotion"}, []string{"X"}, []string{"t"})
	telemetry.RegisterBuildInfo(reg, "", "")
	reg.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := reg.Gather()
	require.NoError(t, err)
	out := map[string]bool{}
	for _, f := range families {
		out[f.GetName()] = true
		if f.GetMetric()[0].GetHistogram() != nil {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				out[f.GetName()+suffix] = true
			}
		}
	}
	return out
}

var metric = regexp.MustCompile(`\b(catalog|invest_analytics|vitrina|process)_[a-z0-9_]+\b`)

func checkExpression(t *testing.T, known map[string]bool, expr string) {
	t.Helper()
	found := metric.FindAllString(expr, -1)
	require.NotEmpty(t, found, expr)
	for _, name := range found {
		require.True(t, known[name], "%s in %s is no metric of the program", name, expr)
	}
	require.Equal(t, strings.Count(expr, "("), strings.Count(expr, ")"), expr)
}

func TestAlertsUseMetricsThatExist(t *testing.T) {
	known, alerts := names(t), map[string]string{}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				For                 time.Duration
				Labels, Annotations map[string]string
			}
		}
	}
	text, err := os.ReadFile("prometheus/alerts.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &file))
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			checkExpression(t, known, rule.Expr)
			alerts[rule.Alert] = rule.Expr
			require.Contains(t, []string{"page", "ticket"}, rule.Labels["severity"], rule.Alert)
			for _, annotation := range []string{"summary", "description", "runbook"} {
				require.NotEmpty(t, rule.Annotations[annotation], rule.Alert)
			}
		}
	}
	// The alerts that the three documents ask for.
	for name, part := range map[string]string{
		"PromotionBoostLag": "catalog_promotion_lag_seconds) > 60", "PromotionBoostDeadLetters": "catalog_promotion_dlq_total",
		"PromotionContractMismatch": "catalog_promotion_contract_mismatch_total", "PopularityLag": "catalog_popularity_lag_seconds) > 900",
		"PopularityDeadLetters": "catalog_popularity_dlq_total", "PopularityCardsMissing": "catalog_popularity_property_object_not_found_total",
		"PriceIngestLag": "invest_analytics_price_ingest_lag_seconds) > 900", "PriceDeadLetters": "invest_analytics_price_dlq_total",
	} {
		require.Contains(t, alerts[name], part, name)
	}
}

func TestDashboardUsesMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("grafana/catalog-overview.json")
	require.NoError(t, err)
	var dashboard struct {
		Title  string
		Panels []struct {
			ID      int
			Type    string
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	require.Equal(t, "catalog-overview", dashboard.Title)
	known, ids := names(t), map[int]bool{}
	for _, panel := range dashboard.Panels {
		require.False(t, ids[panel.ID], panel.Title)
		ids[panel.ID] = true
		require.Equal(t, panel.Type == "row", len(panel.Targets) == 0, panel.Title)
		for _, target := range panel.Targets {
			checkExpression(t, known, target.Expr)
		}
	}
}

// at walks down a decoded document: names of maps, indexes of lists.
func at[T any](t *testing.T, node any, path ...any) T {
	t.Helper()
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, ok := node.(map[string]any)
			require.True(t, ok, "no map at %v of %v", step, path)
			node = m[step]
		case int:
			list, ok := node.([]any)
			require.True(t, ok, "no list at %v of %v", step, path)
			node = list[step]
		}
	}
	value, ok := node.(T)
	require.True(t, ok, "%v is %T", path, node)
	return value
}

func TestConfigMapIsAValidConfiguration(t *testing.T) {
	text := at[string](t, documents(t, "kubernetes/configmap.yaml")[0], "data", "vitrina.yaml")
	secret := at[map[string]any](t, documents(t, "kubernetes/secret.example.yaml")[0], "stringData")
	dir := t.TempDir()
	for key := range secret {
		path := "/run/secrets/vitrina/" + key
		require.Contains(t, text, path)
		mine := filepath.Join(dir, key)
		require.NoError(t, os.WriteFile(mine, []byte(at[string](t, secret, key)+"\n"), 0o600))
		text = strings.ReplaceAll(text, path, mine)
	}
	require.NotContains(t, text, "/run/secrets/vitrina/", "a secret that the example does not hold")
	file := filepath.Join(dir, "vitrina.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	cfg, err := config.Load(config.Source{File: file})
	require.NoError(t, err)
	require.NoError(t, cfg.Require(cfg.Roles...))

	pod := at[map[string]any](t, documents(t, "kubernetes/statefulset.yaml")[0], "spec", "template", "spec")
	grace := time.Duration(at[int](t, pod, "terminationGracePeriodSeconds")) * time.Second
	require.Greater(t, grace, cfg.Runtime.ShutdownTimeout)
	var environ []string
	for _, variable := range at[[]any](t, pod, "containers", 0, "env") {
		environ = append(environ, at[string](t, variable, "name")+"=x")
	}
	_, err = config.Load(config.Source{Environ: environ})
	require.NoError(t, err, "a variable that is no setting")
}

func TestComposeVariablesAreSettings(t *testing.T) {
	checked := 0
	for name, service := range at[map[string]any](t, documents(t, "compose/compose.yaml")[0], "services") {
		if at[string](t, service, "image") != "vitrina" {
			continue
		}
		var environ []string
		for key := range at[map[string]any](t, service, "environment") {
			environ = append(environ, key+"="+at[string](t, service, "environment", key))
		}
		cfg, err := config.Load(config.Source{Environ: environ})
		require.NoError(t, err, name)
		require.NoError(t, cfg.Require(config.Roles()...), name)
		checked++
	}
	require.GreaterOrEqual(t, checked, 4)
}
