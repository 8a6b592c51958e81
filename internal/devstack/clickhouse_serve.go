//go:build linux && amd64 && !nochdb

package devstack

import (
	"errors"
	"fmt"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/ebitengine/purego"
)

// ClickHouseAvailable returns nil: this build can start ClickHouse.
func ClickHouseAvailable() error { return nil }

// serveClickHouse turns this process into a ClickHouse server until it is killed. The engine is a shared library that is called without
// cgo. The build tag nochdb leaves it out: without it the binary can be linked statically.
func serveClickHouse(spec clickhouseSpec) error {
	lib, err := purego.Dlopen(spec.Library, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return fmt.Errorf("load ClickHouse's library: %w", err)
	}
	var setSignalHandlers func(enabled bool)
	var runCommandLine func(argc int32, argv []*byte) uintptr
	for name, function := range map[string]any{
		"chdb_set_signal_handlers_enabled": &setSignalHandlers,
		"chdb_query_cmdline":               &runCommandLine,
	} {
		address, err := purego.Dlsym(lib, name)
		if err != nil {
			return fmt.Errorf("find the entry %s in ClickHouse's library: %w", name, err)
		}
		purego.RegisterFunc(function, address)
	}
	// The engine's own handlers would replace those of Go's runtime, and a client that goes away must not end the server.
	setSignalHandlers(false)
	signal.Ignore(syscall.SIGPIPE)

	args := spec.arguments()
	argv := make([]*byte, len(args), len(args)+1)
	var pin runtime.Pinner // C reads the strings for as long as it serves
	defer pin.Unpin()
	for i, arg := range args {
		text, err := syscall.BytePtrFromString(arg)
		if err != nil {
			return fmt.Errorf("pass %q to ClickHouse: %w", arg, err)
		}
		pin.Pin(text)
		argv[i] = text
	}
	argv = append(argv, nil)
	runCommandLine(int32(len(args)), argv)
	return errors.New("ClickHouse's endless query came to an end; its log above says why")
}
