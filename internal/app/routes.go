package app

import (
	"net/http"

	"github.com/pin-marketplace/vitrina/internal/httpserver"
)

// routes composes what is served below /api/v1/ and /admin/: each feature registers whole patterns ("GET /api/v1/...") from its
// own file, one line each here. /admin is reached with the admin token only. Requests come with the deadline http.request_timeout.
//
//nolint:unparam // the error is for features whose construction can fail
func (a *App) routes() (api, admin *http.ServeMux, err error) {
	api, admin = http.NewServeMux(), http.NewServeMux()
	if a.queries == nil {
		api.HandleFunc("/api/v1/", func(w http.ResponseWriter, r *http.Request) {
			httpserver.WriteProblem(w, r, http.StatusNotFound, "this instance does not run the role api")
		})
		return api, admin, nil
	}
	a.queries.Register(api)
	a.operations().Register(admin)
	DeadLetters(a.cfg, a.pool, a.admin, a.kafka, a.instance, a.deps.Logger, a.deps.Clock).Register(api, admin)
	return api, admin, nil
}
