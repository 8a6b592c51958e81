package views_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/httpserver"
	"github.com/pin-marketplace/vitrina/internal/ops/rebuild"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

type ready struct{}

func (ready) Readiness() map[string]httpserver.RoleState { return nil }

// administration is an instance with nothing but the operations of package rebuild: nobody carries them out.
func (s *system) administration(change func(*httpserver.Options), promotions bool) *instance {
	logger := slog.New(slog.DiscardHandler)
	admin := http.NewServeMux()
	rebuild.API{Pool: s.pool, PromotionsEnabled: func() bool { return promotions }, Instance: "test", Logger: logger}.Register(admin)
	o := httpserver.Options{
		HTTP: config.Default().HTTP, Logger: logger, Events: telemetry.NewEventLog(logger, 0, time.Now), Metrics: prometheus.NewRegistry(), Readiness: ready{}, Clock: time.Now,
		Admin: httpserver.Routes(admin), ShutdownTimeout: time.Second,
	}
	o.HTTP.AdminToken = "t0ken"
	if change != nil {
		change(&o)
	}
	return &instance{system: s, handler: httpserver.New(o).Handler()}
}

// TestAdministrationIsAsDocumented holds each answer of the operations to the document.
func TestAdministrationIsAsDocumented(t *testing.T) {
	s := newSystem(t)
	i := s.administration(nil, true)
	const path = "/admin/projections/rebuild"
	require.Equal(t, 200, i.get("/admin/operations").status)
	made := i.call("POST", path, `{"projection":"popularity"}`)
	require.Equal(t, 202, made.status, string(made.body))
	again := i.call("POST", path, `{"projection":"popularity","from":"marks"}`)
	require.Equal(t, made.header.Get("Location"), again.header.Get("Location"))
	require.Equal(t, 200, i.get(made.header.Get("Location")).status)
	require.Equal(t, 200, i.get("/admin/operations").status)
	for name, tc := range map[string]struct {
		i              *instance
		method, target string
		body           string
		status         int
	}{
		"nothing":        {i, "POST", path, ``, 422},
		"empty":          {i, "POST", path, `{}`, 422},
		"unknown":        {i, "POST", path, `{"projection":"prices"}`, 400},
		"wrong source":   {i, "POST", path, `{"projection":"popularity","from":"table"}`, 400},
		"unknown field":  {i, "POST", path, `{"projections":"popularity"}`, 400},
		"no JSON":        {i, "POST", path, `{`, 400},
		"another one":    {i, "POST", path, `{"projection":"popularity","from":"topic"}`, 409},
		"flag off":       {s.administration(nil, false), "POST", path, `{"projection":"promotion-boost"}`, 409},
		"large":          {s.administration(func(o *httpserver.Options) { o.HTTP.MaxBodyBytes = 10 }, true), "POST", path, `{"projection":"popularity"}`, 413},
		"bad id":         {i, "GET", "/admin/operations/7", ``, 400},
		"no operation":   {i, "GET", "/admin/operations/" + uuid.NewString(), ``, 404},
		"another token":  {s.administration(func(o *httpserver.Options) { o.HTTP.AdminToken = "x" }, true), "GET", "/admin/operations", ``, 403},
		"no token known": {s.administration(func(o *httpserver.Options) { o.HTTP.AdminToken = "" }, true), "POST", path, `{"projection":"popularity"}`, 403},
	} {
		t.Run(name, func(t *testing.T) {
			a := tc.i.call(tc.method, tc.target, tc.body)
			require.Equal(t, tc.status, a.status, string(a.body))
			a.problem(t)
		})
	}
	for _, p := range []string{path, "/admin/operations", "/admin/operations/" + uuid.NewString()} {
		method := http.MethodGet
		if p == path {
			method = http.MethodPost
		}
		r := httptest.NewRequest(method, p, nil)
		a := i.answer(r)
		require.Equal(t, 401, a.status)
		require.NoError(t, i.document(r, a))
	}
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader("projection=popularity"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Authorization", "Bearer t0ken")
	a := i.answer(r)
	require.Equal(t, 400, a.status)
	require.NoError(t, i.document(r, a))
}

// answer serves a request as it is.
func (i *instance) answer(r *http.Request) answer {
	w := httptest.NewRecorder()
	i.handler.ServeHTTP(w, r)
	body, err := io.ReadAll(w.Result().Body)
	require.NoError(i.t, err)
	return answer{status: w.Code, header: w.Result().Header, body: body}
}
