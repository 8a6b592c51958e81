// Package devstack starts the real parts that vitrina talks to on a machine where nothing is set up: PostgreSQL, ClickHouse,
// Apache Kafka and an in-process Kafka. It serves `vitrina demo`, the tests, the chaos runs and the benchmarks; production never
// uses it.
//
// Every server runs as a child process that dies with this one, however this one ends (SIGKILL included), listens on 127.0.0.1
// only, and keeps its port and data across Kill and Restart. What has to be downloaded comes from npm and Maven into a cache
// that several processes may share.
//
// A context given to a Start function bounds the starting only: a server runs until Stop. The servers are safe for concurrent
// use.
package devstack

import (
	"io"
	"log/slog"
	"time"
)

// Options say where a server lives and how it is started. The zero value is a server of its own: a free port, data in a
// temporary directory that Stop removes.
type Options struct {
	// Dir holds the data, in a subdirectory named after the server, so one Dir may serve a whole stack. Data in it survive Stop
	// and are found again by the next Start. Empty: a temporary directory, removed by Stop.
	Dir string
	// Cache holds what was downloaded. Empty: $VITRINA_CACHE, else .cache of the clone that the working directory is in, else the
	// user's cache directory.
	Cache string
	// Port is the server's port (ClickHouse: the native one). 0: a free one, kept until Stop.
	Port int
	// Logger gets one line for each thing worth knowing: a download, a start, a death. Nil: none.
	Logger *slog.Logger
	// Log gets the server's own output besides the log file in its directory. Nil: the file alone.
	Log io.Writer
	// Settings override the server's settings by their own names: postgresql.conf parameters, ClickHouse's user settings, Kafka's
	// server.properties, or the broker configurations that the embedded broker knows.
	Settings map[string]string
	// SASLUser and SASLPassword make the embedded broker ask for them (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512). Empty: no authentication.
	SASLUser, SASLPassword string
	// Partitions is the partition count of topics created without one (the brokers only). 0: 1.
	Partitions int
	// AutoRestart starts a server again whenever it ends by itself (not by Stop or Kill). The development ClickHouse aborts on some
	// client errors; its data survive.
	AutoRestart bool
	// Bundled makes PostgreSQL run from the downloaded binaries although the machine has its own.
	Bundled bool
	// JVM holds further flags of Kafka's Java machine, for instance -Xmx2g.
	JVM []string
	// StartTimeout bounds one start after downloads. 0: two minutes, enough for a busy machine.
	StartTimeout time.Duration
}

func (o Options) logger() *slog.Logger {
	if o.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Logger
}

func (o Options) startTimeout() time.Duration {
	if o.StartTimeout <= 0 {
		return 2 * time.Minute
	}
	return o.StartTimeout
}
