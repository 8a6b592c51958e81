package config

import (
	"fmt"
	"io"
	"log/slog"
)

const masked = "***"

// Secret is a text that is printed nowhere: fmt with any verb, slog, JSON, YAML and text encodings all give ***. An empty
// one prints as nothing, which tells an operator that it is not set. Reveal is the only way to the value. Do not make it a
// map key (encoding/json writes string keys as they are) or an unexported field (fmt cannot call its methods there).
type Secret string

// Reveal returns the secret itself, for the client that needs it.
func (s Secret) Reveal() string { return string(s) }

// String is *** or, when nothing is set, empty.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return masked
}

// Format hides the value whatever the verb: %d of a string type would print it in its complaint.
func (s Secret) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, s.String()) // fmt gives a formatter no way to report an error
}

// LogValue hides the value from log/slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the value from JSON and XML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML hides the value from YAML.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }
