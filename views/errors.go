package views

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pin-marketplace/vitrina/internal/httpserver"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
	"github.com/pin-marketplace/vitrina/views/pricehistory"
)

// UnavailableError says why something cannot be answered now, for a person, and when to ask again.
type UnavailableError struct {
	Reason string
	After  time.Duration
}

func (e *UnavailableError) Error() string { return e.Reason }

func unavailable(format string, args ...any) error {
	return &UnavailableError{Reason: fmt.Sprintf(format, args...), After: retryAfter}
}

// NotFoundError says what does not exist, and what is still to come that might make it exist.
type NotFoundError struct{ Reason string }

func (e *NotFoundError) Error() string { return e.Reason }

// requestError is a question that cannot be understood.
type requestError struct{ reason string }

func (e *requestError) Error() string { return e.reason }

// retryAfter is when to ask again: outages and recoveries end, or another instance answers.
const retryAfter = 5 * time.Second

// fail turns an error into its problem document.
func (s *Service) fail(w http.ResponseWriter, r *http.Request, err error) {
	var bad *requestError
	var away *UnavailableError
	var none *NotFoundError
	switch {
	case errors.Is(r.Context().Err(), context.Canceled):
		return // nobody is listening
	case errors.As(err, &bad):
		httpserver.WriteProblem(w, r, http.StatusBadRequest, bad.reason)
	case errors.Is(err, pricehistory.ErrTooLong):
		httpserver.WriteProblem(w, r, http.StatusBadRequest, err.Error())
	case errors.As(err, &none):
		httpserver.WriteProblem(w, r, http.StatusNotFound, none.Reason)
	case errors.Is(err, postgres.ErrNotFound), errors.Is(err, pricehistory.ErrNotFound):
		httpserver.WriteProblem(w, r, http.StatusNotFound, err.Error())
	case errors.As(err, &away):
		httpserver.WriteUnavailable(w, r, away.After, away.Reason)
	default:
		s.events.Log(r.Context(), slog.LevelWarn, "api-failed", "a question could not be answered", slog.String("path", r.URL.Path), slog.Any("error", err))
		detail, ours := outage(err, s.cfg.HTTP.RequestTimeout)
		if ours {
			httpserver.WriteProblem(w, r, http.StatusInternalServerError, detail)
			return
		}
		httpserver.WriteUnavailable(w, r, retryAfter, detail)
	}
}

// outage says in words what failed. The driver's own text stays in the log: it names hosts and users. ours is true when waiting
// does not help.
func outage(err error, timeout time.Duration) (detail string, ours bool) {
	var pg *pgconn.PgError
	var ch *clickhouse.Outage
	switch {
	case errors.As(err, &ch):
		return ch.What, false
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("there was no answer within %s (http.request_timeout)", timeout), false
	case errors.As(err, &pg):
		switch {
		case pg.Code == "42P01" || pg.Code == "3F000" || pg.Code == "42703":
			return "PostgreSQL lacks a table or a column of this version: run vitrina migrate up", false
		case pg.Code == "42501":
			return "the user of postgres.dsn may not read what this needs: grant it USAGE on the schemas vitrina and catalog, and SELECT on their tables", false
		case pg.Code == "57014":
			return "PostgreSQL gave the query up after postgres.statement_timeout", false
		}
		switch pg.Code[:min(2, len(pg.Code))] {
		case "08", "28", "3D", "40", "53", "55", "57", "58":
			return "PostgreSQL cannot answer now (SQLSTATE " + pg.Code + ")", false
		}
		return "PostgreSQL refused the query (SQLSTATE " + pg.Code + "); the server's log says why", true
	case isConnection(err):
		return "PostgreSQL is out of reach", false
	}
	return "the request failed inside the server; its log says where", true
}

func isConnection(err error) bool {
	var connect *pgconn.ConnectError
	var network interface{ Timeout() bool }
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err)
}
