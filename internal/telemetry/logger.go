package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
)

// EventKey is the attribute that carries a line's event name.
const EventKey = "event"

// LogOptions configures NewLogger.
type LogOptions struct {
	Level  slog.Leveler // nil: info
	Redact *Redactor    // nil: nothing is known to be secret
}

// NewLogger returns the program's logger: JSON, one line a record, UTC times, an event name in every line ("log" where
// the caller named none: a library's line). Values of UserId, AnonymousId and SessionId never appear, whatever a caller
// passes, nor does any string the redactor knows.
func NewLogger(w io.Writer, opts LogOptions) *slog.Logger {
	level := opts.Level
	if level == nil {
		level = slog.LevelInfo
	}
	inner := slog.NewJSONHandler(opts.Redact.Writer(w), &slog.HandlerOptions{
		Level:       level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr { return cleanAttr(a) },
	})
	return slog.New(&eventHandler{Handler: inner})
}

// personal says whether an attribute name is that of a quasi-identifier.
func personal(key string) bool {
	if len(key) < 6 || len(key) > 12 {
		return false
	}
	switch strings.ReplaceAll(strings.ToLower(key), "_", "") {
	case "userid", "anonymousid", "sessionid":
		return true
	}
	return false
}

func cleanAttr(a slog.Attr) slog.Attr {
	if personal(a.Key) {
		return slog.String(a.Key, "hidden")
	}
	switch a.Value.Kind() {
	case slog.KindTime:
		a.Value = slog.StringValue(a.Value.Time().UTC().Format(time.RFC3339Nano))
	case slog.KindDuration:
		a.Value = slog.StringValue(a.Value.Duration().String())
	case slog.KindAny:
		if s, ok := a.Value.Any().(fmt.Stringer); ok {
			a.Value = slog.StringValue(s.String())
		}
	default: // as slog writes it
	}
	return a
}

// eventHandler adds the event attribute where it is missing.
type eventHandler struct {
	slog.Handler
	has bool
}

func (h *eventHandler) Handle(ctx context.Context, r slog.Record) error {
	has := h.has
	r.Attrs(func(a slog.Attr) bool {
		has = has || a.Key == EventKey
		return !has
	})
	if !has {
		r.AddAttrs(slog.String(EventKey, "log"))
	}
	return h.Handler.Handle(ctx, r)
}

func (h *eventHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	has := h.has
	for _, a := range attrs {
		has = has || a.Key == EventKey
	}
	return &eventHandler{Handler: h.Handler.WithAttrs(attrs), has: has}
}

func (h *eventHandler) WithGroup(name string) slog.Handler {
	return &eventHandler{Handler: h.Handler.WithGroup(name), has: h.has}
}
