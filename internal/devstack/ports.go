package devstack

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

const (
	lowestPort = 15000
	// highestPort stays below the kernel's default range for outgoing connections (32768 and up): a port from that range may be
	// taken by somebody's connection while its server is down, and a restart on the same port would fail.
	highestPort = 32000
	portTries   = 200
)

// freePort returns a port of 127.0.0.1 that nobody listens on now and that no outgoing connection takes by itself.
func freePort(ctx context.Context) (int, error) {
	var config net.ListenConfig
	for range portTries {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		listener, err := config.Listen(ctx, "tcp4", loopback(port))
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			return 0, fmt.Errorf("release port %d after looking at it: %w", port, err)
		}
		return port, nil
	}
	return 0, fmt.Errorf("no free port between %d and %d on 127.0.0.1 in %d tries", lowestPort, highestPort, portTries)
}

// portOr returns port, or a free one when it is 0.
func portOr(ctx context.Context, port int) (int, error) {
	if port != 0 {
		return port, nil
	}
	return freePort(ctx)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// tempRoot is where servers without a directory keep their data: one directory a user, so that root and others never meet.
func tempRoot() string {
	return fmt.Sprintf("%s/vitrina-devstack-%d", os.TempDir(), os.Getuid())
}
