package views

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/httpserver"
	"github.com/pin-marketplace/vitrina/views/pricehistory"
)

// Register adds the queries of the contracts to a mux. The document at /api/v1/openapi.json describes them.
func (s *Service) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/v1/purchases/{id}", s.answer(func(r *http.Request) (any, error) {
		id, err := guid(r)
		if err != nil {
			return nil, err
		}
		return s.Purchase(r.Context(), id)
	}))
	mux.HandleFunc("GET /api/v1/targets/{kind}/{id}", s.answer(func(r *http.Request) (any, error) {
		t, err := target(r)
		if err != nil {
			return nil, err
		}
		return s.Target(r.Context(), t)
	}))
	mux.HandleFunc("GET /api/v1/cards/{kind}/{id}", s.answer(func(r *http.Request) (any, error) {
		t, err := target(r)
		if err != nil {
			return nil, err
		}
		return s.Card(r.Context(), t)
	}))
	mux.HandleFunc("GET /api/v1/property-object-views/{id}", s.answer(func(r *http.Request) (any, error) {
		id, err := guid(r)
		if err != nil {
			return nil, err
		}
		return s.PropertyObjectView(r.Context(), id)
	}))
	mux.HandleFunc("GET /api/v1/property-objects/{id}/price-history", s.answer(func(r *http.Request) (any, error) {
		q, err := priceQuery(r)
		if err != nil {
			return nil, err
		}
		return s.PriceHistory(r.Context(), q)
	}))
	mux.HandleFunc("GET /api/v1/pipelines", s.answer(func(r *http.Request) (any, error) { return s.Pipelines(r.Context()), nil }))
	mux.HandleFunc("GET /api/v1/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(s.document) // a client that went away needs no document
	})
}

// answer writes what a query returns, or its problem.
func (s *Service) answer(query func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		value, err := query(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		httpserver.WriteJSON(w, http.StatusOK, value)
	}
}

func badRequest(format string, args ...any) error {
	return &requestError{reason: fmt.Sprintf(format, args...)}
}

// guid reads an id of the path: 8-4-4-4-12 hexadecimal digits of any case, with or without braces (D18).
func guid(r *http.Request) (uuid.UUID, error) {
	text := r.PathValue("id")
	bare := text
	if strings.HasPrefix(bare, "{") && strings.HasSuffix(bare, "}") {
		bare = bare[1 : len(bare)-1]
	}
	if len(bare) == 36 { // the other forms that the library reads are none of the contract
		if id, err := uuid.Parse(bare); err == nil {
			return id, nil
		}
	}
	return uuid.Nil, badRequest("%q is no id: write 8-4-4-4-12 hexadecimal digits, as in 0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01", httpserver.Shown(text))
}

func target(r *http.Request) (codecs.Target, error) {
	kind := codecs.TargetKind(r.PathValue("kind"))
	if kind != codecs.KindProject && kind != codecs.KindPropertyObject {
		return codecs.Target{}, badRequest("%q is no kind: it is Project or PropertyObject", httpserver.Shown(string(kind)))
	}
	id, err := guid(r)
	return codecs.Target{Kind: kind, ID: id}, err
}

func priceQuery(r *http.Request) (pricehistory.Query, error) {
	id, err := guid(r)
	if err != nil {
		return pricehistory.Query{}, err
	}
	q := pricehistory.Query{PropertyObjectID: id, Step: pricehistory.Day}
	values := r.URL.Query()
	if values.Has("step") {
		if q.Step, err = pricehistory.ParseStep(values.Get("step")); err != nil {
			return q, badRequest("step is %q; it must be day, month or year", httpserver.Shown(values.Get("step")))
		}
	}
	if q.From, err = instant(values.Get("from"), "from"); err != nil {
		return q, err
	}
	if q.To, err = instant(values.Get("to"), "to"); err != nil {
		return q, err
	}
	if !q.From.IsZero() && !q.To.IsZero() && q.From.After(q.To) {
		return q, badRequest("from (%s) lies after to (%s)", httpserver.Shown(values.Get("from")), httpserver.Shown(values.Get("to")))
	}
	return q, nil
}

// instant reads an RFC 3339 time; an empty one is no bound.
func instant(text, name string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil && strings.Contains(text, " ") {
		return t, badRequest("%s is %q: write + as %%2B in a query, or use UTC, as in 2026-11-30T00:00:00Z", name, httpserver.Shown(text))
	}
	if err != nil {
		return t, badRequest("%s is %q: write an RFC 3339 time, as in 2026-11-30T00:00:00Z", name, httpserver.Shown(text))
	}
	return t, nil
}
