package views

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
)

//go:embed console.html
var consoleHTML string

// RegisterConsole adds the page at /. It is one document that loads nothing but this instance's API.
func RegisterConsole(mux *http.ServeMux) {
	script := consoleHTML
	if _, rest, ok := strings.Cut(consoleHTML, "<script>"); ok {
		script, _, _ = strings.Cut(rest, "</script>")
	}
	sum := sha256.Sum256([]byte(script))
	policy := "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; script-src 'sha256-" +
		base64.StdEncoding.EncodeToString(sum[:]) + "'"
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = w.Write([]byte(consoleHTML)) // a client that went away needs no page
	})
}
