package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/httpserver"
)

const someID = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01"

// fakeAPI answers with what the real one would; the real one's form is held to the OpenAPI document in package views.
func fakeAPI(t *testing.T) *httptest.Server {
	t.Helper()
	answers := map[string]string{
		"/api/v1/purchases/" + someID: `{"purchaseId":"` + someID + `","version":3,"status":"Active","boostWeight":50,"endsAt":"2026-12-31T20:59:59Z",
			"targets":[{"kind":"Project","id":"` + someID + `","active":true,"named":true}],"source":{"topic":"t","partition":1,"offset":42},
			"freshness":{"asOf":"2026-12-01T00:00:00Z","servedBy":"view","lag":{"promotion":7},"viewLag":2}}`,
		"/api/v1/targets/Project/" + someID: `{"kind":"Project","id":"` + someID + `","boost":50,"contributions":[{"purchaseId":"` + someID + `","boostWeight":50,"status":"Active","version":3,"active":true}],
			"truncated":true,"freshness":{"asOf":"2026-12-01T00:00:00Z","servedBy":"postgresql","lag":{"promotion":null},"note":"the broker is away"}}`,
		"/api/v1/cards/PropertyObject/" + someID: `{"kind":"PropertyObject","id":"` + someID + `","projectId":"` + someID + `","status":"Hidden","promotionBoost":50,"popularityViews":9,"rowVersion":4,
			"updatedAt":"2026-12-01T00:00:00Z","explanation":{"own":[],"cascaded":[{"purchaseId":"` + someID + `","boostWeight":50,"status":"Active","version":3,"active":true}],"boost":50,"queued":false,"reason":"because"},
			"freshness":{"asOf":"2026-12-01T00:00:00Z","servedBy":"postgresql","lag":{"promotion":0,"popularity":1}}}`,
		"/api/v1/property-object-views/" + someID: `{"propertyObjectViewId":"` + someID + `","propertyObjectId":"` + someID + `","state":"dead","since":"2026-12-01T00:00:00Z",
			"source":{"topic":"t","partition":1,"offset":42,"loop":false,"earlierTopic":true},"retries":6,"code":"CODE","reason":"no card",
			"freshness":{"asOf":"2026-12-01T00:00:00Z","servedBy":"postgresql","lag":{"popularity":0}}}`,
		"/api/v1/property-objects/" + someID + "/price-history?from=2026-01-01T00%3A00%3A00%2B03%3A00&step=month": `{"propertyObjectId":"` + someID + `","step":"month",
			"series":[{"period":"2026-11","price":"100.00","pricePerMeter":"10.00","facts":2},{"period":"2026-12","price":"110.00","pricePerMeter":"11.00","facts":1}],"growthPercent":10,
			"freshness":{"asOf":"2026-12-01T00:00:00Z","servedBy":"clickhouse","lag":{"price":0}}}`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := answers[r.URL.RequestURI()]
		switch {
		case ok:
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(body))
		case strings.HasSuffix(r.URL.Path, "/recovering"):
			httpserver.WriteUnavailable(w, r, time.Second, "the copy is\nbeing read")
		case strings.HasSuffix(r.URL.Path, "/proxy"):
			http.Error(w, "<html>", http.StatusBadGateway)
		default:
			httpserver.WriteProblem(w, r, http.StatusNotFound, "no purchase "+r.URL.Path)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestGet(t *testing.T) {
	api := fakeAPI(t)
	addr := strings.TrimPrefix(api.URL, "http://")
	for name, tc := range map[string]struct {
		args []string
		code int
		has  []string // in stdout, or in stderr when it fails
	}{
		"purchase":      {[]string{"purchase", someID}, 0, []string{"Active, version 3, weight 50", "partition 1, offset 42", "7 promotion", "2 records behind", "Project  " + someID + "  yes     yes"}},
		"target":        {[]string{"target", "Project", someID}, 0, []string{"boost 50", "more contributions", "unknown promotion", "the broker is away"}},
		"card":          {[]string{"card", "PropertyObject", someID}, 0, []string{"Hidden, boost 50, 9 views", "because", "cascaded", "0 promotion, 1 popularity"}},
		"view":          {[]string{"view", someID}, 0, []string{"dead since", "CODE: no card", "created anew", "6 times"}},
		"price history": {[]string{"price-history", someID, "--step", "month", "--from", "2026-01-01T00:00:00+03:00"}, 0, []string{"growth 10 %", "2026-12  110.00  11.00"}},
		"json":          {[]string{"purchase", someID, "--output", "json"}, 0, []string{`"purchaseId": "` + someID + `"`, `"viewLag": 2`}},
		"not there":     {[]string{"purchase", "x"}, 1, []string{"vitrina: no purchase /api/v1/purchases/x\n"}},
		"recovering":    {[]string{"purchase", "recovering"}, 1, []string{"vitrina: the copy is being read (try again in 1 s)\n"}},
		"a proxy":       {[]string{"view", "proxy"}, 1, []string{"502 Bad Gateway"}},
		"wrong kind":    {[]string{"card", "Post", someID}, 2, []string{"Project"}},
		"wrong step":    {[]string{"price-history", someID, "--step", "week"}, 2, []string{"month"}},
		"wrong url":     {[]string{"purchase", someID, "--api", "localhost"}, 2, []string{"write a URL"}},
		"nobody there":  {[]string{"purchase", someID, "--api", "http://127.0.0.1:1"}, 1, []string{"ask the API at http://127.0.0.1:1", "role api"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := runProgram(t, nil, append([]string{"get", "--http-addr", addr}, tc.args...)...)
			require.Equal(t, tc.code, code, errs)
			text := out
			if code != 0 {
				require.Empty(t, out)
				text = errs
			}
			for _, has := range tc.has {
				require.Contains(t, text, has)
			}
		})
	}
}

func TestGetFindsTheInstanceOfThisMachine(t *testing.T) {
	_, port, _ := strings.Cut(strings.TrimPrefix(fakeAPI(t).URL, "http://"), ":")
	for _, addr := range []string{":" + port, "0.0.0.0:" + port, "127.0.0.1:" + port} {
		code, out, errs := runProgram(t, []string{"VITRINA_HTTP_ADDR=" + addr}, "get", "purchase", someID)
		require.Zero(t, code, errs)
		require.Contains(t, out, "version 3")
	}
	code, out, errs := runProgram(t, []string{"VITRINA_HTTP_ADDR=127.0.0.1:1"}, "get", "purchase", someID, "--api", "http://127.0.0.1:"+port+"/")
	require.Zero(t, code, errs)
	require.Contains(t, out, "version 3")
}
