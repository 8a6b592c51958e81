package app

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/pin-marketplace/vitrina/internal/httpserver"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/views"
)

// Readiness is what /readyz says: every configured role, and why one is not ready.
func (a *App) Readiness() map[string]httpserver.RoleState {
	out := make(map[string]httpserver.RoleState, len(a.roles)+1)
	for _, s := range a.Status() {
		out[s.Role] = httpserver.RoleState{Ready: s.Ready, State: s.State, Detail: detail(s)}
	}
	return out
}

// detail is one line for a person: the reason, and how far a recovery is.
func detail(s RoleStatus) string {
	parts := make([]string, 0, 2)
	if s.Reason != "" {
		parts = append(parts, s.Reason)
	}
	if s.Stream != nil && s.Stream.Phase == stream.PhaseRecovering {
		var read, end int64
		for _, r := range s.Stream.Recovery {
			read += r.Offset
			end += r.End
		}
		parts = append(parts, fmt.Sprintf("restoring the table of %d partitions from Kafka: %d of %d offsets", len(s.Stream.Recovery), read, end))
	}
	return strings.Join(parts, "; ")
}

// HTTP are the options of this instance's HTTP server; the caller adds where metrics are gathered from.
func (a *App) HTTP() (httpserver.Options, error) {
	api, admin, err := a.routes()
	if err != nil {
		return httpserver.Options{}, err
	}
	console := http.NewServeMux()
	if a.queries != nil {
		views.RegisterConsole(console)
	}
	return httpserver.Options{
		HTTP: a.cfg.HTTP, Logger: a.deps.Logger, Events: a.events, Readiness: a, Clock: a.deps.Clock,
		ShutdownTimeout: a.cfg.Runtime.DrainTimeout, API: httpserver.Routes(api), Admin: httpserver.Routes(admin),
		Console: httpserver.Routes(console),
	}, nil
}
