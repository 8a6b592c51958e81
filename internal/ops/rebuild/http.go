package rebuild

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pin-marketplace/vitrina/internal/httpserver"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// API serves the operations below /admin.
type API struct {
	Pool              *pgxpool.Pool
	PromotionsEnabled func() bool
	Instance          string
	Logger            *slog.Logger
}

// rebuildBody asks for a rebuild; From and AcceptLoss may be left out.
type rebuildBody struct {
	Projection string `json:"projection"`
	From       string `json:"from"`
	AcceptLoss bool   `json:"acceptLoss"`
}

// Register adds POST /admin/projections/rebuild, GET /admin/operations and GET /admin/operations/{id} to a mux that lets only
// administrators in.
func (a API) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST /admin/projections/rebuild", a.rebuild)
	mux.HandleFunc("GET /admin/operations", a.list)
	mux.HandleFunc("GET /admin/operations/{id}", a.operation)
}

func (a API) rebuild(w http.ResponseWriter, r *http.Request) {
	const nothing = `the body asks for nothing: send {"projection":"promotion-boost"} or {"projection":"popularity"}`
	var body rebuildBody
	if r.ContentLength == 0 {
		httpserver.WriteProblem(w, r, http.StatusUnprocessableEntity, nothing)
		return
	}
	if !httpserver.ReadJSON(w, r, &body) {
		return
	}
	if body.Projection == "" {
		httpserver.WriteProblem(w, r, http.StatusUnprocessableEntity, nothing)
		return
	}
	op, made, err := Submit(r.Context(), a.Pool, Request{
		Kind: KindRebuild, Projection: body.Projection, Source: body.From, Params: Params{AcceptLoss: body.AcceptLoss}, By: "API of instance " + a.Instance,
	}, a.PromotionsEnabled())
	if err != nil {
		a.fail(w, r, err)
		return
	}
	a.Logger.LogAttrs(r.Context(), slog.LevelInfo, "a rebuild was asked for", slog.String("event", "operation-requested"),
		slog.String("operation", op.ID.String()), slog.String("projection", op.Projection), slog.String("source", op.Source), slog.Bool("new", made))
	w.Header().Set("Location", "/admin/operations/"+op.ID.String())
	w.Header().Set("Cache-Control", "no-store")
	httpserver.WriteJSON(w, http.StatusAccepted, StatusOf(op))
}

func (a API) operation(w http.ResponseWriter, r *http.Request) {
	text := r.PathValue("id")
	if strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}") { // D18
		text = text[1 : len(text)-1]
	}
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		httpserver.WriteProblem(w, r, http.StatusBadRequest, "the id of an operation is 8-4-4-4-12 hexadecimal digits, as in the Location of the answer that made it")
		return
	}
	op, err := postgres.ReadOperation(r.Context(), a.Pool, id)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	httpserver.WriteJSON(w, http.StatusOK, StatusOf(op))
}

// listed bounds the list: older operations are asked for by their id.
const listed = 100

func (a API) list(w http.ResponseWriter, r *http.Request) {
	ops, err := postgres.ListOperations(r.Context(), a.Pool, listed)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	items := make([]Status, len(ops))
	for i, o := range ops {
		items[i] = StatusOf(o)
	}
	w.Header().Set("Cache-Control", "no-store")
	httpserver.WriteJSON(w, http.StatusOK, map[string]any{"items": items})
}

func (a API) fail(w http.ResponseWriter, r *http.Request, err error) {
	var invalid *InvalidError
	var refused *RefusedError
	switch {
	case errors.As(err, &invalid):
		httpserver.WriteProblem(w, r, http.StatusBadRequest, invalid.Reason)
	case errors.As(err, &refused):
		httpserver.WriteProblem(w, r, http.StatusConflict, refused.Reason)
	case errors.Is(err, postgres.ErrNoOperation):
		httpserver.WriteProblem(w, r, http.StatusNotFound, "there is no operation with this id")
	default:
		// The driver's own text names hosts and users: it stays in the log.
		a.Logger.LogAttrs(r.Context(), slog.LevelWarn, "an administrative call failed", slog.String("event", "admin-failed"), slog.Any("error", err))
		httpserver.WriteUnavailable(w, r, 5*time.Second, "PostgreSQL, which keeps the operations, did not answer; the log of this instance says why")
	}
}
