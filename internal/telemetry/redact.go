package telemetry

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
)

// minSecret is the shortest text worth hiding wherever it appears: anything shorter would blot out ordinary words.
const minSecret = 4

// Redactor hides known secrets in free text: libraries put whole connection strings into their errors. A nil Redactor
// hides nothing. It is safe for concurrent use.
type Redactor struct{ replacer *strings.Replacer }

// NewRedactor hides those values, also where they are escaped for a URL or for JSON. Values below four characters are not searched for.
func NewRedactor(secrets ...string) *Redactor {
	var forms []string
	for _, s := range secrets {
		for _, form := range []string{s, url.QueryEscape(s), url.PathEscape(s), url.UserPassword("", s).String()[1:], quoted(s)} {
			if len(form) >= minSecret && !slices.Contains(forms, form) {
				forms = append(forms, form)
			}
		}
	}
	if len(forms) == 0 {
		return nil
	}
	// The longest first: a secret that contains another one must not be left half visible.
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) })
	pairs := make([]string, 0, 2*len(forms))
	for _, form := range forms {
		pairs = append(pairs, form, "***")
	}
	return &Redactor{replacer: strings.NewReplacer(pairs...)}
}

// Text returns s with every known secret replaced by ***.
func (r *Redactor) Text(s string) string {
	if r == nil {
		return s
	}
	return r.replacer.Replace(s)
}

// Writer hides the secrets in everything that is written to w; one Write must hold a whole line.
func (r *Redactor) Writer(w io.Writer) io.Writer {
	if r == nil {
		return w
	}
	return redactingWriter{r: r, w: w}
}

type redactingWriter struct {
	r *Redactor
	w io.Writer
}

func (w redactingWriter) Write(p []byte) (int, error) {
	if _, err := w.r.replacer.WriteString(w.w, string(p)); err != nil {
		return 0, fmt.Errorf("write a log line: %w", err)
	}
	return len(p), nil
}

// quoted is the form of s inside a JSON string.
func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		return s
	}
	return strings.Trim(string(b), `"`)
}
