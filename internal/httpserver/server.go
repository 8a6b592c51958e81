// Package httpserver is the one HTTP server of an instance: health, readiness and metrics of its own, and the places where
// the API, the administration and the console are mounted (contracts, section 5).
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

// RoleState is what /readyz says about a role.
type RoleState struct {
	Ready  bool   `json:"ready"`
	State  string `json:"state"`            // one word: starting, recovering, running, backoff, disabled, ...
	Detail string `json:"detail,omitempty"` // for a person: how far, or why not
}

// Readiness reports the state of every role of this instance, by name. It is asked at each probe and must answer at once.
type Readiness interface {
	Readiness() map[string]RoleState
}

// Options configure a Server.
type Options struct {
	HTTP      config.HTTP
	Logger    *slog.Logger
	Events    *telemetry.EventLog // for the access log
	Metrics   prometheus.Gatherer
	Readiness Readiness
	Clock     func() time.Time

	API     http.Handler // of /api/v1/; registers whole paths; nil: there is none
	Admin   http.Handler // of /admin/, behind the admin token; nil: there is none
	Console http.Handler // of everything else; nil: there is none

	ShutdownTimeout time.Duration // how long requests may still take when the server stops
}

// Server serves until its context ends.
type Server struct {
	logger         *slog.Logger
	events         *telemetry.EventLog
	clock          func() time.Time
	readiness      Readiness
	adminToken     config.Secret
	maxBody        int64
	requestTimeout time.Duration
	shutdown       time.Duration

	http     *http.Server
	listener net.Listener
	addr     string
}

// Limits that need no setting: they only keep a stuck client from holding a connection.
const (
	readHeaderTimeout = 5 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10
)

// New returns a server that does not listen yet.
func New(o Options) *Server {
	s := &Server{
		logger: o.Logger, events: o.Events, clock: o.Clock, readiness: o.Readiness, adminToken: o.HTTP.AdminToken,
		maxBody: int64(o.HTTP.MaxBodyBytes), requestTimeout: o.HTTP.RequestTimeout, shutdown: o.ShutdownTimeout,
		addr: o.HTTP.Addr,
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	if o.API != nil {
		mux.Handle("/api/v1/", s.bounded(o.API))
	}
	admin := o.Admin
	if admin == nil {
		admin = Routes(http.NewServeMux())
	}
	mux.Handle("/admin/", s.authorized(s.bounded(admin)))
	if o.Console != nil {
		mux.Handle("/", o.Console)
	}
	s.http = &http.Server{
		Handler:           s.observe(Routes(mux)),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       o.HTTP.RequestTimeout,
		WriteTimeout:      o.HTTP.RequestTimeout + readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(o.Logger.With(slog.String(telemetry.EventKey, "http-server")).Handler(), slog.LevelWarn),
	}
	return s
}

// Handler is the server's handler, for tests that need no connection.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Listen opens the address, so that a port that is taken is found before anything else starts.
func (s *Server) Listen(ctx context.Context) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.addr)
	if err != nil {
		return fmt.Errorf("listen on http.addr %s: %w", s.addr, err)
	}
	s.listener = l
	return nil
}

// Addr is the address the server listens on, with the port that the system chose for port 0.
func (s *Server) Addr() string {
	if s.listener == nil {
		return s.addr
	}
	return s.listener.Addr().String()
}

// Run serves until ctx ends, then lets requests finish within the shutdown timeout. It listens first if Listen was not called.
func (s *Server) Run(ctx context.Context) error {
	if s.listener == nil {
		if err := s.Listen(ctx); err != nil {
			return err
		}
	}
	// Requests outlive ctx on purpose: they may finish while the server stops.
	base, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	s.http.BaseContext = func(net.Listener) context.Context { return base }
	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(s.listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve HTTP on %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.shutdown)
	defer cancel()
	if err := s.http.Shutdown(bound); err != nil {
		abandon()
		if err := s.http.Close(); err != nil {
			return fmt.Errorf("close the HTTP server: %w", err)
		}
		s.logger.LogAttrs(base, slog.LevelWarn, "requests that did not end in time were dropped",
			slog.String(telemetry.EventKey, "http-stopped-hard"), slog.Any("error", err))
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP on %s: %w", s.Addr(), err)
	}
	return nil
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	WriteJSON(w, http.StatusOK, map[string]string{"status": "alive"})
}

// readyz answers 200 when every role is ready, else 503; the body says which is not, and why.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	roles := s.readiness.Readiness()
	ready := true
	for _, role := range roles {
		ready = ready && role.Ready
	}
	status := http.StatusOK
	if !ready {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "5")
	}
	w.Header().Set("Cache-Control", "no-store")
	WriteJSON(w, status, struct {
		Ready bool                 `json:"ready"`
		Roles map[string]RoleState `json:"roles"`
	}{ready, roles})
}
