package postgres

import (
	"context"
	"log/slog"

	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

// Letters writes dead letters, counts and logs them: nil means that all in-sync replicas have them. *deadletter.Writer is one.
type Letters interface {
	Write(ctx context.Context, letters ...deadletter.Letter) error
}

// EventLog writes one line of a named event. *telemetry.EventLog is one.
type EventLog interface {
	Log(ctx context.Context, level slog.Level, name, msg string, attrs ...slog.Attr)
}
