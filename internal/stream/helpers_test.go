package stream

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lovoo/goka/storage"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/devstack"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/stream/tablestore"
)

func TestMain(m *testing.M) {
	if os.Getenv(brokerEnv) != "" {
		os.Exit(serveBroker())
	}
	os.Exit(devtest.Main(m))
}

const patience = 60 * time.Second

// env is a broker with a client, and what runtimes on it need.
type env struct {
	t       *testing.T
	cluster *kfake.Cluster
	kafka   KafkaConfig
	admin   *Admin
	client  *kgo.Client
	log     *lines
}

// newEnv also lets the test run beside others: nearly all of its time is waiting.
func newEnv(t *testing.T) *env {
	t.Parallel()
	return newEnvAlone(t)
}

func newEnvAlone(t *testing.T) *env {
	broker := devtest.EmbeddedServer(t, devstack.Options{})
	e := newEnvOn(t, broker.Brokers())
	e.cluster = broker.Cluster()
	return e
}

func newEnvOn(t *testing.T, brokers []string) *env {
	e := &env{t: t, log: &lines{}}
	e.kafka = KafkaConfig{Brokers: brokers, ClientID: "vitrina-test", SessionTimeout: 10 * time.Second}
	var err error
	e.admin, err = NewAdmin(e.kafka)
	require.NoError(t, err)
	t.Cleanup(e.admin.Close)
	e.client, err = kgo.NewClient(append(e.kafka.KgoOpts(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	require.NoError(t, err)
	t.Cleanup(e.client.Close)
	return e
}

func (e *env) topic(name string, partitions int32) {
	_, err := e.admin.Kadm().CreateTopic(e.t.Context(), partitions, -1, nil, name)
	require.NoError(e.t, err)
}

// deleteTopic returns when the broker does not know the topic any more.
func (e *env) deleteTopic(name string) {
	_, err := e.admin.Kadm().DeleteTopic(e.t.Context(), name)
	require.NoError(e.t, err)
	eventually(e.t, func() bool {
		topics, err := e.admin.Topics(e.t.Context(), name)
		return err == nil && len(topics) == 0
	}, func() string { return name + " is not gone" })
}

// recreate deletes a topic and creates it again, with another id.
func (e *env) recreate(name string, partitions int32) {
	e.deleteTopic(name)
	e.topic(name, partitions)
	e.client.PurgeTopicsFromClient(name)
}

func (e *env) produce(recs ...*kgo.Record) {
	require.NoError(e.t, e.client.ProduceSync(e.t.Context(), recs...).FirstErr())
}

func rec(topic string, partition int32, key, value string) *kgo.Record {
	return &kgo.Record{Topic: topic, Partition: partition, Key: []byte(key), Value: []byte(value)}
}

// options are fast ones.
func (e *env) options() Options {
	return Options{
		Kafka: e.kafka, Admin: e.admin, StateDir: e.t.TempDir(), CreateTopics: true,
		Store: func(dir string) storage.Builder {
			return tablestore.Builder(tablestore.Config{Dir: dir, FlushInterval: 20 * time.Millisecond}, e.log.logger(), nil)
		},
		Backoff: backoff.Config{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond},
		Timing:  Timing{Lag: 100 * time.Millisecond},
		Logger:  e.log.logger(),
	}
}

// running is a runtime in the background.
type running struct {
	*Runtime
	t    *testing.T
	stop func() error
}

func (e *env) start(spec Spec, opts Options) *running {
	r, err := New(spec, opts)
	require.NoError(e.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop := sync.OnceValue(func() error { cancel(); return <-done })
	e.t.Cleanup(func() {
		_ = stop()
		if e.t.Failed() {
			e.t.Log(e.log.String())
		}
	})
	return &running{Runtime: r, t: e.t, stop: stop}
}

func (r *running) waitReady() {
	eventually(r.t, func() bool { return r.State().Ready() }, func() string { return fmt.Sprintf("state: %+v", r.State()) })
}

// waitState waits for a phase and a reason that contains the text.
func (r *running) waitState(phase Phase, text string) State {
	var s State
	eventually(r.t, func() bool {
		s = r.State()
		return s.Phase == phase && strings.Contains(s.Reason, text)
	}, func() string { return fmt.Sprintf("state %+v is not %s %q", s, phase, text) })
	return s
}

// waitDone waits until the group has committed everything.
func (e *env) waitDone(spec Spec) {
	var last string
	eventually(e.t, func() bool {
		positions, err := e.admin.GroupPositions(e.t.Context(), spec.Group, spec.consumed()...)
		last = fmt.Sprint(positions, err)
		if err != nil {
			return false
		}
		for _, list := range positions {
			for _, p := range list {
				if p.Lag() > 0 {
					return false
				}
			}
		}
		return true
	}, func() string { return "the group has not committed everything: " + last })
}

func eventually(t *testing.T, ok func() bool, explain func() string) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(explain())
		}
	}
}

// effects collects what callbacks did.
type effects struct {
	mu   sync.Mutex
	list []string
}

func (e *effects) add(s string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, s)
}

func (e *effects) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}

func (e *effects) count(s string) int {
	n := 0
	for _, v := range e.all() {
		if v == s {
			n++
		}
	}
	return n
}

func (e *effects) wait(t *testing.T, s string, times int) {
	t.Helper()
	eventually(t, func() bool { return e.count(s) >= times }, func() string { return fmt.Sprintf("no %q in %v", s, e.all()) })
}

// collector is a consumer whose table holds, for each key, the values it has seen, each once: what it holds does not depend on
// how often a record is delivered.
func collector(group, input string) Spec {
	add := func(ctx Context, key, value string) {
		var have string
		if v := ctx.Value(); v != nil {
			have = string(v.([]byte))
		}
		if !slices.Contains(strings.Split(have, ","), value) {
			ctx.SetValue([]byte(have + "," + value))
		}
	}
	return Spec{
		Name: "collector", Group: group, Input: input, TableCodec: codecs.Bytes{},
		Callback: func(ctx Context, rec *record.Record) {
			if ctx.Home(rec.Key) != ctx.Partition() {
				ctx.Loopback(string(rec.Key), rec.Value)
				return
			}
			add(ctx, ctx.Key(), string(rec.Value))
		},
		LoopCallback: func(ctx Context, rec *record.Record) { add(ctx, ctx.Key(), string(rec.Value)) },
	}
}

// lines is a log in memory.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
