package app

import "net/http"

// routes composes what is served below /api/v1/ and /admin/: each feature registers whole patterns ("GET /api/v1/...") from its
// own file, one line each here. /admin is reached with the admin token only. Requests come with the deadline http.request_timeout.
//
//nolint:unparam // the error is for features whose construction can fail
func (a *App) routes() (api, admin *http.ServeMux, err error) {
	api, admin = http.NewServeMux(), http.NewServeMux()
	return api, admin, nil
}
