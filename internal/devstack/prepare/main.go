// Command prepare downloads what the local servers need before tests or the demo start them:
//
//	go run ./internal/devstack/prepare            # everything
//	go run ./internal/devstack/prepare postgres   # one part
//
// It is quick when everything is there, and names what is missing with the command that installs it.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/pin-marketplace/vitrina/internal/devstack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := prepare(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func prepare(ctx context.Context, names []string) error {
	parts := devstack.Parts()
	if len(names) > 0 {
		parts = nil
		for _, name := range names {
			parts = append(parts, devstack.Part(name))
		}
	}
	return devstack.Prepare(ctx, devstack.Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}, parts...)
}
