package devstack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// maxMessageBytes is Kafka's default for the largest batch a topic takes; messages above it are refused.
const maxMessageBytes = "1048588"

// Embedded is a Kafka broker inside this process: consumer groups, compacted topics, topic ids, transactions, deletion, retention.
// It is no Apache Kafka: the end-to-end and chaos suites use that one.
type Embedded struct {
	opts Options
	dir  *workdir // nil: in memory
	port int

	mu      sync.Mutex
	cluster *kfake.Cluster // nil while stopped
	stopped bool
}

// StartEmbedded starts the in-process broker. Without Dir its data live in memory and Restart loses them. Topics are never
// created by themselves.
func StartEmbedded(ctx context.Context, opts Options) (*Embedded, error) {
	e := &Embedded{opts: opts}
	if opts.Dir != "" {
		dir, err := openWorkdir(opts.Dir, "broker")
		if err != nil {
			return nil, err
		}
		e.dir = dir
	}
	const tries = 3
	for try := 1; ; try++ {
		port, err := portOr(ctx, opts.Port)
		if err == nil {
			e.port = port
			err = e.start()
		}
		if err == nil {
			return e, nil
		}
		if try == tries || opts.Port != 0 {
			return nil, errors.Join(fmt.Errorf("start the embedded broker: %w", err), e.closeDir())
		}
	}
}

func (e *Embedded) start() error {
	partitions := max(e.opts.Partitions, 1)
	settings := map[string]string{"message.max.bytes": maxMessageBytes}
	for name, value := range e.opts.Settings {
		settings[name] = value
	}
	options := []kfake.Opt{
		kfake.Ports(e.port), // one port is one broker
		kfake.DefaultNumPartitions(partitions),
		kfake.ClusterID("vitrina-embedded"),
		kfake.GroupMinSessionTimeout(time.Second), // lets tests notice a dead member sooner than Kafka's minimum of 6 s
		kfake.BrokerConfigs(settings),
		kfake.WithLogger(brokerLog{e.opts.logger()}),
	}
	if e.dir != nil {
		options = append(options, kfake.DataDir(e.dir.join("data")))
	}
	if e.opts.SASLUser != "" {
		options = append(options, kfake.EnableSASL())
		for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
			options = append(options, kfake.Superuser(mechanism, e.opts.SASLUser, e.opts.SASLPassword))
		}
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		return fmt.Errorf("listen on port %d: %w", e.port, err)
	}
	e.cluster = cluster
	return nil
}

// Brokers are the addresses for clients.
func (e *Embedded) Brokers() []string { return []string{loopback(e.port)} }

// Cluster is the broker itself, for tests that inject faults or look inside. It is another one after Restart, nil after Stop.
func (e *Embedded) Cluster() *kfake.Cluster {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cluster
}

// Restart closes every connection and starts again on the same port, with the same data if the broker has a directory, else
// empty. Transactions and group sessions end as on a broker's restart.
func (e *Embedded) Restart(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return errors.New("the embedded broker was stopped for good: start a new one")
	}
	e.close()
	if err := e.start(); err != nil {
		return fmt.Errorf("restart the embedded broker: %w", err)
	}
	return nil
}

// Stop ends the broker for good and saves its data. A second Stop does nothing.
func (e *Embedded) Stop(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return nil
	}
	e.stopped = true
	e.close()
	return e.closeDir()
}

func (e *Embedded) close() {
	if e.cluster != nil {
		e.cluster.Close()
		e.cluster = nil
	}
}

func (e *Embedded) closeDir() error {
	if e.dir == nil {
		return nil
	}
	return e.dir.close()
}

// brokerLog passes the broker's warnings and errors on; its other lines are about every request.
type brokerLog struct{ logger *slog.Logger }

func (b brokerLog) Logf(level kfake.LogLevel, format string, args ...any) {
	switch level {
	case kfake.LogLevelError:
		b.logger.Error(fmt.Sprintf(format, args...), slog.String("event", "devstack-broker"))
	case kfake.LogLevelWarn:
		b.logger.Warn(fmt.Sprintf(format, args...), slog.String("event", "devstack-broker"))
	default:
	}
}
