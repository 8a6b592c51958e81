package guard_test

import (
	"bufio"
	"context"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"log"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka"
	"github.com/lovoo/goka/codec"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/stream/guard"
)

// The tests of this file run a Goka processor in a child process, which is this test binary again, against a broker in this
// process, kill it with SIGKILL in the four situations in which Goka alone loses records (design, E1), run a second child
// that takes up what was not committed, and compare what had an effect with what was produced. Each situation runs with the
// guard, and without it: there the same test must show the loss, or it proves nothing.

const workerEnv = "VITRINA_GUARD_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		if err := runWorker(os.Stdin, os.Stdout); err != nil {
			fmt.Println("error", strings.ReplaceAll(err.Error(), "\n", " "))
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// situation is one of the four: what the first child does with its records, and when it is to be killed.
type situation struct {
	name    string
	records int // records put on partition 0
	// lost is how many of them are lost without the guard.
	lost int
	// before prepares the broker for the first child, and returns what makes it well again.
	before func(c *kfake.Cluster, topic string) (mend func())
	// ready says when the first child may be killed.
	ready func(t *testing.T, b *broker, w *child)
}

func situations() []situation {
	produceFault := func(err *kerr.Error) func(c *kfake.Cluster, topic string) func() {
		return func(c *kfake.Cluster, topic string) func() {
			h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic + "-out", Partitions: []int32{0}, Err: err, Count: -1})
			return h.Remove
		}
	}
	return []situation{
		{name: "only the last of five deferred commits is released", records: 5, lost: 4},
		{name: "outage while producing", records: 3, lost: 2, before: produceFault(kerr.NotEnoughReplicas)},
		{
			name: "failed emit stops the processor", records: 3, lost: 2, before: produceFault(kerr.TopicAuthorizationFailed),
			ready: func(t *testing.T, _ *broker, w *child) { w.wait(t, "stopped") },
		},
		{
			name: "session ends while a callback waits", records: 1, lost: 1,
			ready: func(t *testing.T, _ *broker, w *child) {
				w.wait(t, "waiting")
				w.send(t, "end the session")
				w.wait(t, "stopped")
			},
		},
	}
}

func TestKilledWorkerLosesNothing(t *testing.T) {
	b := startBroker(t)
	for i, s := range situations() {
		for _, guarded := range []bool{true, false} {
			topic := fmt.Sprintf("situation-%d-%t", i, guarded)
			t.Run(fmt.Sprintf("%s/guard=%t", s.name, guarded), func(t *testing.T) {
				t.Parallel()
				lost := b.run(t, s, topic, guarded)
				if guarded {
					require.Empty(t, lost, "records without an effect")
				} else {
					require.Len(t, lost, s.lost, "without the guard the situation must lose records, or it tests nothing: %v", lost)
				}
			})
		}
	}
}

// run plays one situation and returns the records of partition 0 that had no effect.
func (b *broker) run(t *testing.T, s situation, topic string, guarded bool) []string {
	require.NoError(t, b.cluster.CreateTopic(topic, 2, nil))
	require.NoError(t, b.cluster.CreateTopic(topic+"-out", 2, nil))
	mend := func() {}
	if s.before != nil {
		mend = s.before(b.cluster, topic)
	}
	var want []string
	for i := range s.records {
		want = append(want, fmt.Sprintf("record-%d", i))
		b.produce(t, topic, 0, want[i])
	}

	first := startChild(t, b, s.name, topic, guarded)
	if s.ready != nil {
		s.ready(t, b, first)
	} else {
		// The last record's finish is marked before that of the sentinel on the other partition, and one commit request
		// carries all partitions: when the sentinel's position is at the broker, partition 0's would be too.
		first.wait(t, "marked")
		b.produce(t, topic, 1, "sentinel")
		b.waitCommitted(t, topic, 1, 1)
	}
	first.kill(t)
	mend()

	b.produce(t, topic, 0, "end")
	second := startChild(t, b, "take up", topic, guarded)
	second.wait(t, "end")
	second.kill(t)

	effects := append(first.effects(), second.effects()...)
	effects = append(effects, b.read(t, topic+"-out")...)
	return slices.DeleteFunc(want, func(r string) bool { return slices.Contains(effects, r) })
}

// runWorker is the child.
func runWorker(in io.Reader, out io.Writer) error {
	var say sync.Mutex
	report := func(args ...any) {
		say.Lock()
		defer say.Unlock()
		_, _ = fmt.Fprintln(out, args...)
	}
	topic, brokers := os.Getenv("VITRINA_GUARD_TOPIC"), []string{os.Getenv("VITRINA_GUARD_BROKER")}
	guarded := os.Getenv("VITRINA_GUARD_ON") == "true"
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		if bufio.NewScanner(in).Scan() {
			cancel()
		}
	}()
	g := guard.New(guard.Config{})
	w := &callbacks{report: report, topic: topic, guard: g, guarded: guarded}
	group := goka.DefineGroup(goka.Group(topic+"-group"),
		goka.Input(goka.Stream(topic), new(codec.String), w.of(os.Getenv(workerEnv))),
		goka.Output(goka.Stream(topic+"-out"), new(codec.String)))

	builder := goka.ConsumerGroupBuilderWithConfig(workerConfig())
	if guarded {
		builder = g.Builder(builder)
	}
	tm := goka.NewTopicManagerConfig()
	p, err := goka.NewProcessor(brokers, group,
		goka.WithConsumerGroupBuilder(builder),
		goka.WithProducerBuilder(goka.ProducerBuilderWithConfig(workerConfig())),
		goka.WithConsumerSaramaBuilder(goka.SaramaConsumerBuilderWithConfig(workerConfig())),
		goka.WithTopicManagerBuilder(goka.TopicManagerBuilderWithConfig(workerConfig(), tm)),
		goka.WithHasher(func() hash.Hash32 { return new(firstByteHash) }),
		goka.WithLogger(log.New(io.Discard, "", 0)))
	if err != nil {
		return err
	}
	runErr := p.Run(ctx)
	report("stopped", runErr != nil)
	select {} // until it is killed
}

func workerConfig() *sarama.Config {
	cfg := goka.DefaultConfig()
	cfg.Version = sarama.V2_8_0_0
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	cfg.Consumer.Offsets.AutoCommit.Interval = 50 * time.Millisecond
	cfg.Consumer.Group.Session.Timeout = 3 * time.Second // a killed child keeps its partitions that long
	cfg.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	cfg.Producer.RequiredAcks = sarama.WaitForAll
	cfg.Producer.Idempotent = true
	cfg.Net.MaxOpenRequests = 1
	cfg.Producer.Retry.Max = 1000
	cfg.Producer.Flush.Frequency = time.Millisecond
	return cfg
}

// firstByteHash puts keys that begin with 'r' on partition 0 and others on partition 1 of two.
type firstByteHash struct {
	hash.Hash32
	first byte
}

func (h *firstByteHash) Write(p []byte) (int, error) { h.first = p[0]; return len(p), nil }
func (h *firstByteHash) Reset()                      { *h = firstByteHash{Hash32: fnv.New32a()} }
func (h *firstByteHash) Sum32() uint32 {
	if h.first == 'r' {
		return 0
	}
	return 1
}

// callbacks are what the child does with its records.
type callbacks struct {
	report  func(...any)
	topic   string
	guard   *guard.Guard
	guarded bool
	held    []func(error)
}

func (c *callbacks) of(name string) goka.ProcessCallback {
	switch name {
	case situations()[0].name:
		return c.deferFive
	case situations()[1].name, situations()[2].name:
		return c.emit
	case situations()[3].name:
		return c.waitForEnd
	default:
		return c.takeUp
	}
}

func (c *callbacks) deferFive(ctx goka.Context, msg any) {
	if msg == "sentinel" {
		return
	}
	c.held = append(c.held, ctx.DeferCommit())
	if len(c.held) == 5 {
		c.report("effect", msg) // its work is done, that of the other four is not
		c.held[4](nil)
		c.report("marked")
	}
}

// emit sends each record on. Partition 0 of the output is away; the last record goes to partition 1, and gets there.
func (c *callbacks) emit(ctx goka.Context, msg any) {
	switch msg {
	case "record-2":
		ctx.Emit(goka.Stream(c.topic+"-out"), "other", msg)
		c.report("marked")
	case "sentinel": // the same partition acknowledges it after record-2
		ctx.Emit(goka.Stream(c.topic+"-out"), "other", msg)
	default:
		ctx.Emit(goka.Stream(c.topic+"-out"), "r", msg)
	}
}

func (c *callbacks) waitForEnd(ctx goka.Context, _ any) {
	c.report("waiting")
	<-ctx.Context().Done()
	if c.guarded {
		c.guard.Abandon(record.ID{Topic: string(ctx.Topic()), Partition: ctx.Partition(), Offset: ctx.Offset()})
	}
}

func (c *callbacks) takeUp(_ goka.Context, msg any) {
	if msg == "end" {
		c.report("end")
		return
	}
	c.report("effect", msg)
}

// child is a running worker process.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{}

	mu    sync.Mutex
	lines []string
	more  chan struct{}
}

func startChild(t *testing.T, b *broker, what, topic string, guarded bool) *child {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+what, "VITRINA_GUARD_TOPIC="+topic, "VITRINA_GUARD_BROKER="+b.addr,
		fmt.Sprintf("VITRINA_GUARD_ON=%t", guarded))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{cmd: cmd, stdin: stdin, done: make(chan struct{}), more: make(chan struct{}, 1)}
	go func() {
		defer close(c.done)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			c.mu.Lock()
			c.lines = append(c.lines, s.Text())
			c.mu.Unlock()
			select {
			case c.more <- struct{}{}:
			default:
			}
		}
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return c
}

func (c *child) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lines)
}

// wait returns when the child has said a line that begins with the word.
func (c *child) wait(t *testing.T, word string) {
	deadline := time.After(60 * time.Second)
	for {
		for _, l := range c.all() {
			if strings.HasPrefix(l, "error") {
				t.Fatal(l)
			}
			if strings.HasPrefix(l, word) {
				return
			}
		}
		select {
		case <-c.more:
		case <-c.done:
			require.Contains(t, strings.Join(c.all(), "\n"), word, "the child is gone")
			return
		case <-deadline:
			t.Fatalf("the child has not said %q but %v", word, c.all())
		}
	}
}

func (c *child) send(t *testing.T, line string) {
	_, err := io.WriteString(c.stdin, line+"\n")
	require.NoError(t, err)
}

func (c *child) kill(t *testing.T) {
	require.NoError(t, c.cmd.Process.Kill())
	<-c.done
	var exit *exec.ExitError
	require.ErrorAs(t, c.cmd.Wait(), &exit)
}

func (c *child) effects() []string {
	var out []string
	for _, l := range c.all() {
		if e, ok := strings.CutPrefix(l, "effect "); ok {
			out = append(out, e)
		}
	}
	return out
}

// broker is an embedded broker with a client.
type broker struct {
	cluster *kfake.Cluster
	addr    string
	client  *kgo.Client
	admin   *kadm.Client
}

func startBroker(t *testing.T) *broker {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(time.Second))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return &broker{cluster: cluster, addr: cluster.ListenAddrs()[0], client: client, admin: kadm.NewClient(client)}
}

func (b *broker) produce(t *testing.T, topic string, partition int32, value string) {
	res := b.client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: partition, Key: []byte(value), Value: []byte(value)})
	require.NoError(t, res.FirstErr())
}

func (b *broker) waitCommitted(t *testing.T, topic string, partition int32, want int64) {
	require.Eventually(t, func() bool {
		offsets, err := b.admin.FetchOffsets(t.Context(), topic+"-group")
		o, ok := offsets.Lookup(topic, partition)
		return err == nil && ok && o.At >= want
	}, 30*time.Second, 20*time.Millisecond, "position of %s/%d", topic, partition)
}

// read returns every value of a topic.
func (b *broker) read(t *testing.T, topic string) []string {
	ends, err := b.admin.ListEndOffsets(t.Context(), topic)
	require.NoError(t, err)
	var left int64
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	client, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer client.Close()
	var out []string
	for int64(len(out)) < left {
		fetches := client.PollFetches(t.Context())
		require.NoError(t, fetches.Err0())
		fetches.EachRecord(func(r *kgo.Record) { out = append(out, string(r.Value)) })
	}
	return out
}
