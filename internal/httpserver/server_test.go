package httpserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/httpserver"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

type roles map[string]httpserver.RoleState

func (r roles) Readiness() map[string]httpserver.RoleState { return r }

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func options(logs io.Writer) httpserver.Options {
	reg := prometheus.NewRegistry()
	telemetry.NewPromotion(reg)
	h := config.Default().HTTP
	h.Addr, h.AdminToken, h.MaxBodyBytes = "127.0.0.1:0", "t0ken", 1024
	logger := telemetry.NewLogger(logs, telemetry.LogOptions{})
	api := http.NewServeMux()
	api.HandleFunc("GET /api/v1/echo/{id}", func(w http.ResponseWriter, r *http.Request) {
		httpserver.WriteJSON(w, http.StatusOK, map[string]string{"id": r.PathValue("id")})
	})
	api.HandleFunc("GET /api/v1/panic", func(http.ResponseWriter, *http.Request) { panic("boom") })
	api.HandleFunc("GET /api/v1/recovering", func(w http.ResponseWriter, r *http.Request) {
		httpserver.WriteUnavailable(w, r, 1500*time.Millisecond, "promotion is recovering")
	})
	admin := http.NewServeMux()
	admin.HandleFunc("POST /admin/do", func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Name string }
		if httpserver.ReadJSON(w, r, &body) {
			httpserver.WriteJSON(w, http.StatusAccepted, body)
		}
	})
	return httpserver.Options{
		HTTP: h, Logger: logger, Events: telemetry.NewEventLog(logger, 0, time.Now), Metrics: reg, Clock: time.Now,
		Readiness: roles{"promotion": {Ready: true, State: "running"}},
		API:       httpserver.Routes(api), Admin: httpserver.Routes(admin), ShutdownTimeout: 5 * time.Second,
	}
}

func call(h http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestAnswers(t *testing.T) {
	h := httpserver.New(options(io.Discard)).Handler()
	bearer := []string{"Authorization", "Bearer t0ken"}
	for name, tc := range map[string]struct {
		method, path, body string
		headers            []string
		status             int
		has                string
	}{
		"alive":               {"GET", "/healthz", "", nil, 200, `"alive"`},
		"ready":               {"GET", "/readyz", "", nil, 200, `"promotion":{"ready":true,"state":"running"}`},
		"metrics":             {"GET", "/metrics", "", nil, 200, "catalog_promotion_dlq_total 0"},
		"api":                 {"GET", "/api/v1/echo/7", "", nil, 200, `"7"`},
		"nothing there":       {"GET", "/nowhere", "", nil, 404, "nothing here"},
		"nothing in the api":  {"GET", "/api/v1/nowhere", "", nil, 404, "nothing here"},
		"wrong method":        {"POST", "/healthz", "", nil, 405, "GET"},
		"wrong api method":    {"DELETE", "/api/v1/echo/7", "", nil, 405, "GET"},
		"panic":               {"GET", "/api/v1/panic", "", nil, 500, "inside the server"},
		"recovering":          {"GET", "/api/v1/recovering", "", nil, 503, "recovering"},
		"admin":               {"POST", "/admin/do", `{"name":"x"}`, bearer, 202, `"x"`},
		"admin, no token":     {"POST", "/admin/do", `{}`, nil, 401, "Bearer"},
		"admin, basic":        {"POST", "/admin/do", `{}`, []string{"Authorization", "Basic dDBrZW4="}, 401, "Bearer"},
		"admin, wrong token":  {"POST", "/admin/do", `{}`, []string{"Authorization", "Bearer t0kem"}, 403, "not the admin token"},
		"admin, longer token": {"POST", "/admin/do", `{}`, []string{"Authorization", "Bearer t0ken0"}, 403, "not the admin token"},
		"admin, empty token":  {"POST", "/admin/do", `{}`, []string{"Authorization", "Bearer "}, 403, "not the admin token"},
		"admin, lower scheme": {"POST", "/admin/do", `{}`, []string{"Authorization", "bearer t0ken"}, 202, ""},
		"admin, nowhere":      {"POST", "/admin/nowhere", `{}`, nil, 401, ""},
		"admin, nowhere in":   {"POST", "/admin/nowhere", `{}`, bearer, 404, "nothing here"},
		"no JSON":             {"POST", "/admin/do", `{`, bearer, 400, "cannot be read"},
		"empty body":          {"POST", "/admin/do", ``, bearer, 400, "empty"},
		"unknown field":       {"POST", "/admin/do", `{"nam":1}`, bearer, 400, "nam"},
		"two values":          {"POST", "/admin/do", `{}{}`, bearer, 400, "follows"},
		"another type":        {"POST", "/admin/do", `name=x`, append([]string{"Content-Type", "text/plain"}, bearer...), 400, ""},
		"a large body":        {"POST", "/admin/do", `{"name":"` + strings.Repeat("x", 2000) + `"}`, bearer, 413, "1024"},
	} {
		t.Run(name, func(t *testing.T) {
			w := call(h, tc.method, tc.path, tc.body, tc.headers...)
			require.Equal(t, tc.status, w.Code, w.Body.String())
			require.Contains(t, w.Body.String(), tc.has)
			require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
			if tc.status < 400 {
				return
			}
			var p httpserver.Problem
			require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
			require.Equal(t, httpserver.Problem{Type: "about:blank", Title: http.StatusText(tc.status), Status: tc.status, Detail: p.Detail, Instance: tc.path}, p)
			require.Equal(t, tc.status == 401, w.Header().Get("WWW-Authenticate") != "")
			require.Equal(t, tc.status == 405, w.Header().Get("Allow") != "")
			if tc.status == 503 {
				require.Equal(t, "2", w.Header().Get("Retry-After"))
			}
		})
	}
}

func TestAChunkedBodyIsLimitedToo(t *testing.T) {
	h := httpserver.New(options(io.Discard)).Handler()
	r := httptest.NewRequest(http.MethodPost, "/admin/do", io.MultiReader(strings.NewReader(`{"name":"`), strings.NewReader(strings.Repeat("x", 5000)), strings.NewReader(`"}`)))
	r.ContentLength = -1
	r.Header.Set("Authorization", "Bearer t0ken")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(t, http.StatusRequestEntityTooLarge, w.Code)
}

func TestAdministrationIsOffWithoutAToken(t *testing.T) {
	o := options(io.Discard)
	o.HTTP.AdminToken = ""
	h := httpserver.New(o).Handler()
	for _, headers := range [][]string{nil, {"Authorization", "Bearer "}, {"Authorization", "Bearer t0ken"}} {
		w := call(h, "POST", "/admin/do", `{}`, headers...)
		require.Equal(t, http.StatusForbidden, w.Code)
		require.Contains(t, w.Body.String(), "VITRINA_ADMIN_TOKEN")
	}
	o.Admin = nil
	require.Equal(t, http.StatusForbidden, call(httpserver.New(o).Handler(), "GET", "/admin/x", "").Code)
}

func TestReadyzSaysWhoIsNotReady(t *testing.T) {
	o := options(io.Discard)
	o.Readiness = roles{"price": {Ready: true, State: "running"}, "popularity": {State: "recovering", Detail: "2 of 6 partitions"}}
	w := call(httpserver.New(o).Handler(), "GET", "/readyz", "")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.JSONEq(t, `{"ready":false,"roles":{"price":{"ready":true,"state":"running"},"popularity":{"ready":false,"state":"recovering","detail":"2 of 6 partitions"}}}`, w.Body.String())
}

func TestLogsShowNoQueryAndNoToken(t *testing.T) {
	logs := &logBuffer{}
	h := httpserver.New(options(logs)).Handler()
	call(h, "GET", "/api/v1/echo/7?token=s3cret", "")
	call(h, "POST", "/admin/do?x=s3cret", `{"name":"x"}`, "Authorization", "Bearer t0ken")
	call(h, "GET", "/api/v1/panic", "")
	text := logs.String()
	require.NotContains(t, text, "s3cret")
	require.NotContains(t, text, "t0ken")
	for _, event := range []string{`"event":"http-request"`, `"event":"admin-call"`, `"event":"http-panic"`, `"status":202`, "boom"} {
		require.Contains(t, text, event)
	}
}

func TestRunStopsGracefully(t *testing.T) {
	defer goleak.VerifyNone(t)
	o := options(io.Discard)
	started, release := make(chan struct{}), make(chan struct{})
	o.Console = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(started)
		<-release
		_, _ = io.WriteString(w, "finished")
	})
	s := httpserver.New(o)
	require.NoError(t, s.Listen(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer := make(chan string, 1)
	go func() {
		resp, err := client.Get("http://" + s.Addr() + "/slow")
		if err != nil {
			answer <- err.Error()
			return
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		answer <- string(body)
	}()
	<-started
	cancel()
	require.Eventually(t, func() bool { // stopping: nobody new comes in
		conn, err := net.Dial("tcp", s.Addr())
		return err != nil || conn.Close() != nil
	}, 20*time.Second, time.Millisecond)
	close(release)
	require.Equal(t, "finished", <-answer)
	require.NoError(t, <-done)
}

func TestRunDropsWhatDoesNotEndInTime(t *testing.T) {
	defer goleak.VerifyNone(t)
	logs := &logBuffer{}
	o := options(logs)
	o.ShutdownTimeout = 50 * time.Millisecond
	started := make(chan struct{})
	o.Console = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(started)
		<-r.Context().Done()
	})
	s := httpserver.New(o)
	require.NoError(t, s.Listen(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		if resp, err := client.Get("http://" + s.Addr() + "/hang"); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-started
	cancel()
	require.NoError(t, <-done)
	<-ended
	require.Contains(t, logs.String(), "http-stopped-hard")
}

func TestListenNamesTheAddressThatIsTaken(t *testing.T) {
	first := httpserver.New(options(io.Discard))
	require.NoError(t, first.Listen(t.Context()))
	o := options(io.Discard)
	o.HTTP.Addr = first.Addr()
	require.ErrorContains(t, httpserver.New(o).Run(t.Context()), first.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, first.Run(ctx))
}
