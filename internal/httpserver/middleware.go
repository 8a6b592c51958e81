package httpserver

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

// recorder notes what was answered, for the access log.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err //nolint:wrapcheck // the handler must see the connection's own error
}

// Unwrap lets http.ResponseController reach flushing and deadlines.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// observe writes the access log and turns a panic into a 500. The query is left out: it may carry anything.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := s.clock()
		rec := &recorder{ResponseWriter: w}
		defer func() { //nolint:contextcheck // it uses the request's
			if fault := recover(); fault != nil {
				if err, ok := fault.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					panic(fault) //nolint:forbidigo // net/http's own way to drop a connection
				}
				s.logger.LogAttrs(r.Context(), slog.LevelError, "a request handler failed; the request was answered with 500",
					slog.String(telemetry.EventKey, "http-panic"), slog.String("method", r.Method), slog.String("path", r.URL.Path),
					slog.String("fault", fmt.Sprint(fault)), slog.String("stack", string(debug.Stack())))
				if rec.status == 0 {
					WriteProblem(rec, r, http.StatusInternalServerError, "the request failed inside the server; its log says where")
				}
			}
			s.access(r, rec, s.clock().Sub(begin))
		}()
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(rec, r)
	})
}

func (s *Server) access(r *http.Request, rec *recorder, took time.Duration) {
	if rec.status == 0 {
		rec.status = http.StatusOK
	}
	attrs := []slog.Attr{
		slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Int("status", rec.status),
		slog.Int64("bytes", rec.bytes), slog.Duration("took", took), slog.String("remote", r.RemoteAddr),
	}
	switch {
	case strings.HasPrefix(r.URL.Path, "/admin/"):
		// The audit trail: every call, never left out for a limit.
		s.logger.LogAttrs(r.Context(), slog.LevelInfo, "an administrative call",
			append([]slog.Attr{slog.String(telemetry.EventKey, "admin-call")}, attrs...)...)
	case quiet(r.URL.Path):
		s.events.Log(r.Context(), slog.LevelDebug, "http-probe", "a probe", attrs...)
	default:
		s.events.Log(r.Context(), slog.LevelInfo, "http-request", "a request", attrs...)
	}
}

// quiet are the paths that a deployment asks every few seconds.
func quiet(path string) bool { return path == "/healthz" || path == "/readyz" || path == "/metrics" }

// bounded limits the time and the body of a request.
func (s *Server) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > s.maxBody {
			WriteProblem(w, r, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes (http.max_body_bytes)", s.maxBody))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, s.maxBody)
		ctx, cancel := context.WithTimeout(r.Context(), s.requestTimeout)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// authorized lets only requests with the admin token through.
func (s *Server) authorized(next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(s.adminToken.Reveal()))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.adminToken == "" {
			WriteProblem(w, r, http.StatusForbidden, "administration is off: set http.admin_token (VITRINA_ADMIN_TOKEN) and start again")
			return
		}
		scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
		if !ok || !strings.EqualFold(scheme, "Bearer") {
			w.Header().Set("WWW-Authenticate", `Bearer realm="vitrina"`)
			WriteProblem(w, r, http.StatusUnauthorized, "send the admin token: Authorization: Bearer TOKEN")
			return
		}
		// Digests of equal length: the comparison's time says nothing about the token, not even how long it is.
		got := sha256.Sum256([]byte(strings.TrimSpace(token)))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			WriteProblem(w, r, http.StatusForbidden, "this is not the admin token")
			return
		}
		next.ServeHTTP(w, r)
	})
}
