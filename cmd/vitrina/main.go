// Command vitrina carries promotion, view and price events from Kafka to catalog cards and price history.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/pin-marketplace/vitrina/internal/devstack"
)

func main() {
	// The demo's ClickHouse is this program started again.
	if code, child := devstack.RunChild(); child {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the default takes over again: a second one ends a program that hangs while stopping.
	context.AfterFunc(ctx, stop)
	code := execute(ctx, os.Args[1:], process{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ(), exit: os.Exit})
	stop()
	os.Exit(code)
}
