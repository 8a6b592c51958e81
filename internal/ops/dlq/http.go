package dlq

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/httpserver"
)

// Register adds GET /api/v1/dead-letters to the API, and POST /admin/dead-letters/replay to a mux that lets only administrators in.
func (s *Service) Register(api, admin *http.ServeMux) {
	api.HandleFunc("GET /api/v1/dead-letters", s.list)
	admin.HandleFunc("POST /admin/dead-letters/replay", s.replay)
}

func unknownConsumer(name string) error {
	return &InvalidError{fmt.Sprintf("there is no consumer %q: it is promotion, popularity or price", name)}
}

func (s *Service) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	c, ok := config.ConsumerOf(q.Get("consumer"))
	if !ok {
		s.fail(w, r, unknownConsumer(q.Get("consumer")))
		return
	}
	f := Filter{Code: q.Get("code"), Key: q.Get("key"), State: q.Get("state")}
	limit := DefaultLimit
	var err error
	for name, to := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		if text := q.Get(name); text != "" {
			if *to, err = time.Parse(time.RFC3339Nano, text); err != nil {
				s.fail(w, r, &InvalidError{name + " is no time: write RFC 3339, as in 2026-11-30T10:15:30Z"})
				return
			}
		}
	}
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > MaxLimit {
			s.fail(w, r, &InvalidError{fmt.Sprintf("limit must be 1 to %d", MaxLimit)})
			return
		}
	}
	if err := f.Validate(); err != nil {
		s.fail(w, r, &InvalidError{err.Error()})
		return
	}
	page, err := s.List(r.Context(), c, f, limit, q.Get("cursor"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	for i, p := range page.Problems { // the driver's own text names hosts and users: it stays in the log
		s.Logger.LogAttrs(r.Context(), slog.LevelWarn, p, slog.String("event", "dead-letter-states-unknown"), slog.String("topic", page.Topic))
		page.Problems[i] = "what was done with these letters is unknown: PostgreSQL does not say"
	}
	if page.Missing {
		page.Problems = append(page.Problems, page.NoTopic())
	}
	w.Header().Set("Cache-Control", "no-store")
	httpserver.WriteJSON(w, http.StatusOK, page)
}

// replayBody asks for letters to be put back: by ids, by a filter, or all.
type replayBody struct {
	Consumer string          `json:"consumer"`
	IDs      []string        `json:"ids"`
	Filter   Filter          `json:"filter"`
	All      bool            `json:"all"`
	DryRun   bool            `json:"dryRun"`
	Again    bool            `json:"again"`
	Rate     int             `json:"rate"`
	UpTo     map[int32]int64 `json:"upTo"`
}

func (s *Service) replay(w http.ResponseWriter, r *http.Request) {
	var body replayBody
	if r.ContentLength == 0 {
		s.fail(w, r, NothingError{})
		return
	}
	if !httpserver.ReadJSON(w, r, &body) {
		return
	}
	c, ok := config.ConsumerOf(body.Consumer)
	req := Request{
		Consumer: c, IDs: body.IDs, Filter: body.Filter, All: body.All, DryRun: body.DryRun, Again: body.Again, Rate: body.Rate, UpTo: body.UpTo,
		By: "API of instance " + s.Instance,
	}
	if !ok {
		err := unknownConsumer(body.Consumer)
		if nothing := req.validate(); body.Consumer == "" && errors.As(nothing, &NothingError{}) {
			err = nothing
		}
		s.fail(w, r, err)
		return
	}
	if deadline, ok := r.Context().Deadline(); ok {
		// What a request has no time for is left to the next one, which goes on.
		now := s.Clock()
		req.Until = now.Add(deadline.Sub(now) / 2)
	}
	report, err := s.Replay(r.Context(), req)
	if report.Topic != "" {
		s.Logger.LogAttrs(r.Context(), slog.LevelInfo, "a replay of dead letters was asked for", slog.String("event", "dead-letters-replay"),
			slog.String("consumer", c.Role), slog.Bool("dry_run", req.DryRun), slog.Bool("all", req.All), slog.Int("ids", len(req.IDs)),
			slog.Int("replayed", report.Replayed), slog.Int("parked", report.Parked), slog.Int("skipped", report.Skipped),
			slog.Int("refused", report.Refused), slog.Bool("complete", report.Complete), slog.Any("error", err))
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	httpserver.WriteJSON(w, http.StatusOK, report)
}

func (s *Service) fail(w http.ResponseWriter, r *http.Request, err error) {
	var invalid *InvalidError
	var missing *NotFoundError
	var busy *BusyError
	switch {
	case errors.As(err, &NothingError{}):
		httpserver.WriteProblem(w, r, http.StatusUnprocessableEntity, err.Error()+`, as in {"consumer":"popularity","ids":["3@1207"]}`)
	case errors.As(err, &invalid):
		httpserver.WriteProblem(w, r, http.StatusBadRequest, invalid.Reason)
	case errors.Is(err, ErrCursor):
		httpserver.WriteProblem(w, r, http.StatusBadRequest, ErrCursor.Error())
	case errors.As(err, &missing):
		httpserver.WriteProblem(w, r, http.StatusNotFound, missing.Error())
	case errors.As(err, &busy):
		httpserver.WriteProblem(w, r, http.StatusConflict, busy.Error())
	default:
		// The clients' own texts name hosts and users: they stay in the log.
		s.Logger.LogAttrs(r.Context(), slog.LevelWarn, "a call about dead letters failed", slog.String("event", "dead-letters-failed"), slog.Any("error", err))
		httpserver.WriteUnavailable(w, r, 5*time.Second,
			"Kafka or PostgreSQL did not answer; the log of this instance says why. A replay that was interrupted goes on when it is sent again")
	}
}
