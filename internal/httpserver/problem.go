package httpserver

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Problem is an RFC 9457 problem document, the only form in which this server reports an error.
type Problem struct {
	Type     string `json:"type"`               // about:blank: the status says it all
	Title    string `json:"title"`              // the same for every problem of the type
	Status   int    `json:"status"`             // the HTTP status
	Detail   string `json:"detail,omitempty"`   // what happened here and what to do; never a secret
	Instance string `json:"instance,omitempty"` // the path asked for
}

// WriteProblem answers with a problem document of that status.
func WriteProblem(w http.ResponseWriter, r *http.Request, status int, detail string) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Length")
	h.Del("Content-Encoding")
	w.WriteHeader(status)
	encode(w, Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail, Instance: r.URL.Path})
}

// WriteUnavailable answers 503 with Retry-After: what was asked for is recovering or out of reach.
func WriteUnavailable(w http.ResponseWriter, r *http.Request, retryAfter time.Duration, detail string) {
	seconds := max(1, int(retryAfter.Round(time.Second)/time.Second))
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	WriteProblem(w, r, http.StatusServiceUnavailable, detail)
}

// WriteJSON answers with a JSON value.
func WriteJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encode(w, value)
}

func encode(w io.Writer, value any) {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value) //nolint:errchkjson // the status is out already, and a client that went away needs no document
}

// ReadJSON reads a request's body into value, strictly: unknown fields and anything behind the value are refused. On a
// fault it answers itself (400 or 413) and returns false. The Content-Type is not asked for: `curl -d` sends another one.
func ReadJSON(w http.ResponseWriter, r *http.Request, value any) bool {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	err := decoder.Decode(value)
	if err == nil {
		if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the JSON value")
		}
	}
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return true
	case errors.As(err, &tooLarge):
		WriteProblem(w, r, http.StatusRequestEntityTooLarge, "the body is larger than "+strconv.FormatInt(tooLarge.Limit, 10)+" bytes (http.max_body_bytes)")
	case errors.Is(err, io.EOF):
		WriteProblem(w, r, http.StatusBadRequest, "the body is empty")
	default:
		WriteProblem(w, r, http.StatusBadRequest, "the body cannot be read: "+err.Error())
	}
	return false
}

// Routes serves a mux whose own 404 and 405 answers become problem documents.
func Routes(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r) // again, so that r gets its path values
			return
		}
		refusal := &statusOnly{header: w.Header()}
		handler.ServeHTTP(refusal, r)
		switch refusal.status {
		case http.StatusMethodNotAllowed:
			WriteProblem(w, r, refusal.status, r.Method+" is not possible here; possible: "+w.Header().Get("Allow"))
		default:
			WriteProblem(w, r, http.StatusNotFound, "there is nothing here")
		}
	})
}

// statusOnly takes the mux's refusal without its text.
type statusOnly struct {
	header http.Header
	status int
}

func (s *statusOnly) Header() http.Header         { return s.header }
func (s *statusOnly) Write(b []byte) (int, error) { return len(b), nil }
func (s *statusOnly) WriteHeader(status int)      { s.status = status }

// maxShown bounds what a refusal repeats of the request.
const maxShown = 60

// Shown is what a refusal repeats of the request.
func Shown(text string) string {
	if len(text) > maxShown {
		return strings.ToValidUTF8(text[:maxShown], "") + "…"
	}
	return text
}
