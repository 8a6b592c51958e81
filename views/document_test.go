package views_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/httpserver"
	"github.com/pin-marketplace/vitrina/views"
)

// TestTheDocumentIsPublished holds the copy in docs equal: run `cp views/openapi.yaml docs/openapi.yaml` after a change.
func TestTheDocumentIsPublished(t *testing.T) {
	embedded, err := os.ReadFile("openapi.yaml")
	require.NoError(t, err)
	published, err := os.ReadFile("../docs/openapi.yaml")
	require.NoError(t, err)
	require.Equal(t, string(embedded), string(published))
}

// TestEveryRefusalIsDocumented: a call that can find nothing must say so in the document, and every object must be described.
func TestEveryRefusalIsDocumented(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	require.NoError(t, err)
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			require.NotEmpty(t, op.Summary, path)
			require.NotEmpty(t, op.OperationID, path)
			if strings.Contains(path, "{") {
				require.NotNil(t, op.Responses.Status(404), "%s %s", method, path)
				require.NotNil(t, op.Responses.Status(503), "%s %s", method, path)
			}
			if strings.HasPrefix(path, "/admin/") {
				require.NotNil(t, op.Security, path)
				require.NotNil(t, op.Responses.Status(401), path)
				require.NotNil(t, op.Responses.Status(403), path)
			}
		}
	}
}

func TestTheConsoleLoadsNothingFromElsewhere(t *testing.T) {
	mux := http.NewServeMux()
	views.RegisterConsole(mux)
	h := httpserver.Routes(mux)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, http.StatusOK, w.Code)
	page := w.Body.String()
	require.Less(t, strings.Count(page, "\n"), 300)
	require.Equal(t, 1, strings.Count(page, "<script>"))
	require.NotRegexp(t, `(?i)(src|href)=|@import|url\(|https?://(?:[^w]|w[^w])|on(click|load|submit)=|innerHTML`, page)
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "script-src 'sha256-")
	w = httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/nowhere", nil))
	require.Equal(t, http.StatusNotFound, w.Code)
	var p httpserver.Problem
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
}
