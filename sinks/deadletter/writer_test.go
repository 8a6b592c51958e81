package deadletter

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/sinks/batch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const topic = "pin.invest-analytics.price-history-dlq.v1"

// syncBuffer is a log that tests read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}
func (s *syncBuffer) String() string { s.mu.Lock(); defer s.mu.Unlock(); return s.b.String() }

// events writes every line.
type events struct{ logger *slog.Logger }

func (e events) Log(ctx context.Context, level slog.Level, name, msg string, attrs ...slog.Attr) {
	e.logger.LogAttrs(ctx, level, msg, append([]slog.Attr{slog.String("event", name)}, attrs...)...)
}

type rig struct {
	*Writer
	cluster *kfake.Cluster
	client  *kgo.Client
	admin   *kadm.Client
	log     *syncBuffer
	written atomic.Int64
	stop    func()
}

func start(t *testing.T, ackTimeout time.Duration, opts ...kfake.Opt) *rig {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(3, topic)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(append(ClientOptions(), kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.MetadataMinAge(10*time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }))...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r := &rig{cluster: cluster, client: client, admin: kadm.NewClient(client), log: &syncBuffer{}}
	logger := slog.New(slog.NewJSONHandler(r.log, nil))
	r.Writer, err = New(Config{Consumer: "price", Topic: topic, Backoff: backoff.Config{Min: 5 * time.Millisecond, Max: 20 * time.Millisecond},
		AckTimeout: ackTimeout, DrainTimeout: 200 * time.Millisecond, Clock: time.Now}, client, events{logger}, logger,
		Metrics{Written: func(codecs.Code) { r.written.Add(1) }})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	finished := make(chan error, 1)
	go func() { finished <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-finished)
	})
	t.Cleanup(r.stop)
	return r
}

func letter(offset int64, value string) Letter {
	return Letter{Code: codecs.CodeInvalidField, Reason: "NewPrice is below 0.", Attempts: 1, Record: &record.Record{
		ID: record.ID{Topic: "source", Partition: 2, Offset: offset}, Key: fmt.Append(nil, "key ", offset), Value: []byte(value),
		Headers: []record.Header{{Key: "h", Value: []byte("1")}, {Key: "h"}, {Key: "x-dlq-attempts", Value: []byte("99")}}}}
}

// read returns the first n letters of the topic.
func (r *rig) read(t *testing.T, n int) []*kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.cluster.ListenAddrs()...), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(50*time.Millisecond))
	require.NoError(t, err)
	defer client.Close()
	var got []*kgo.Record
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for len(got) < n {
		fetches := client.PollFetches(ctx)
		require.NoError(t, ctx.Err(), "%d of %d letters", len(got), n)
		got = append(got, fetches.Records()...)
	}
	return got
}

func (r *rig) count(t *testing.T) int {
	t.Helper()
	ends, err := r.admin.ListEndOffsets(t.Context(), topic)
	require.NoError(t, err)
	n := int64(0)
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return int(n)
}

func TestALetterArrivesByteForByte(t *testing.T) {
	r := start(t, 0)
	tombstone := letter(2, "")
	tombstone.Record.Key, tombstone.Record.Value = nil, nil
	empty := letter(3, "")
	empty.Record.Key = []byte{}
	empty.Attrs = []slog.Attr{slog.String("purchase_id", "5ec3e700")}
	require.NoError(t, r.Write(t.Context(), letter(1, "\x00\xff"), tombstone, empty))
	byOffset := map[string]*kgo.Record{}
	for _, got := range r.read(t, 3) {
		byOffset[string(got.Headers[5].Value)] = got
	}
	got := byOffset["1"]
	require.Equal(t, "key 1", string(got.Key))
	require.Equal(t, "\x00\xff", string(got.Value))
	names := []string{}
	for _, h := range got.Headers {
		names = append(names, h.Key)
	}
	require.Equal(t, []string{"h", "h", "x-dlq-reason", "x-dlq-error-code", "x-source-topic", "x-original-offset", "x-original-partition", "x-dlq-timestamp", "x-dlq-attempts"}, names)
	require.Nil(t, got.Headers[1].Value)
	require.Equal(t, "1", string(got.Headers[8].Value))
	require.WithinDuration(t, time.Now(), got.Timestamp, time.Minute)
	require.Nil(t, byOffset["2"].Key)
	require.Nil(t, byOffset["2"].Value)
	require.NotNil(t, byOffset["3"].Key)
	require.NotNil(t, byOffset["3"].Value)
	require.EqualValues(t, 3, r.written.Load())
	require.Equal(t, 3, strings.Count(r.log.String(), `"event":"dead-lettered"`))
	require.Contains(t, r.log.String(), `"offset":3,"attempts":1,"purchase_id":"5ec3e700"}`)
	require.NotContains(t, r.log.String(), "key 1", "a key may be personal data")
}

// Once a letter is acknowledged its record is committed: a leader's word alone would lose it with the leader.
func TestALetterIsAcknowledgedByEveryInSyncReplica(t *testing.T) {
	r := start(t, 0)
	var acks atomic.Int64
	r.cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.cluster.KeepControl()
		acks.Store(int64(req.(*kmsg.ProduceRequest).Acks))
		return nil, nil, false
	})
	require.NoError(t, r.Write(t.Context(), letter(1, "v")))
	require.EqualValues(t, -1, acks.Load())
}

func TestLettersOfOneKeyShareAPartition(t *testing.T) {
	r := start(t, 0)
	for i := range 20 {
		l := letter(int64(i), "v")
		l.Record.Key = []byte("the same")
		require.NoError(t, r.Write(t.Context(), l))
	}
	got := r.read(t, 20)
	for i, rec := range got {
		require.Equal(t, got[0].Partition, rec.Partition)
		require.Equal(t, fmt.Sprint(i), string(rec.Headers[5].Value))
	}
}

func TestManyLettersAtOnce(t *testing.T) {
	r := start(t, 0)
	const n = 3000
	done := make(chan error, n)
	for i := range n {
		require.NoError(t, r.Submit(t.Context(), letter(int64(i), "v"), func(err error) { done <- err }))
	}
	for range n {
		require.NoError(t, <-done)
	}
	seen := map[string]bool{}
	for _, rec := range r.read(t, n) {
		seen[string(rec.Headers[5].Value)] = true
	}
	require.Len(t, seen, n)
	require.Equal(t, n, r.count(t), "without a failure nothing is written twice")
}

// refuse makes the broker answer produce requests with an error until the returned function is called.
func (r *rig) refuse(code int16) (end func()) {
	var over atomic.Bool
	r.cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		if over.Load() {
			r.cluster.DropControl()
			return nil, nil, false
		}
		r.cluster.KeepControl()
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, rt := range req.(*kmsg.ProduceRequest).Topics {
			st := kmsg.NewProduceResponseTopic()
			st.Topic, st.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				sp := kmsg.NewProduceResponseTopicPartition()
				sp.Partition, sp.ErrorCode = rp.Partition, code
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	})
	return func() { over.Store(true) }
}

func TestAnOutageIsWaitedOut(t *testing.T) {
	for name, tc := range map[string]struct {
		code int16
		says string
	}{
		"not enough replicas": {kerr.NotEnoughReplicas.Code, "min.insync.replicas"},
		"no leader":           {kerr.LeaderNotAvailable.Code, "can be reached"},
		"not allowed":         {kerr.TopicAuthorizationFailed.Code, "grant it WRITE"},
		"disk error":          {kerr.KafkaStorageError.Code, "can be reached"},
		"unknown":             {kerr.UnknownServerError.Code, "could not be written"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, 100*time.Millisecond)
			end := r.refuse(tc.code)
			done := make(chan error, 2)
			require.NoError(t, r.Submit(t.Context(), letter(1, "v"), func(err error) { done <- err }))
			require.Eventually(t, func() bool { return strings.Contains(r.log.String(), `"event":"failed"`) }, 10*time.Second, 5*time.Millisecond)
			require.Contains(t, r.log.String(), tc.says)
			require.Empty(t, done)
			end()
			require.NoError(t, <-done)
			require.Len(t, r.read(t, 1), 1)
		})
	}
}

// A try without acknowledgement may still arrive: the letter is waited for, not handed to the client once more.
func TestALetterUnderWayIsNotWrittenAgain(t *testing.T) {
	r := start(t, 20*time.Millisecond)
	var held atomic.Bool
	answer := make(chan struct{})
	r.cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		r.cluster.KeepControl()
		if held.CompareAndSwap(false, true) {
			r.cluster.SleepControl(func() { <-answer })
		}
		return nil, nil, false
	})
	p := &parcel{letter: letter(1, "v"), session: t.Context()}
	for range 5 {
		require.ErrorContains(t, r.flush(t.Context(), []*parcel{p}), "have not acknowledged")
	}
	close(answer)
	require.Eventually(t, func() bool { return r.flush(t.Context(), []*parcel{p}) == nil }, 10*time.Second, time.Millisecond)
	require.NoError(t, r.client.Flush(t.Context()))
	require.Equal(t, 1, r.count(t))
}

func TestALetterThatCannotBeSetAsideAnyMoreComesAgain(t *testing.T) {
	r := start(t, 0)
	r.stop()
	done := make(chan error, 1)
	r.setAside(t.Context(), &parcel{letter: letter(1, "v"), session: t.Context(), done: func(err error) { done <- err }})
	require.ErrorIs(t, <-done, batch.ErrAbandoned)
}

func TestAClosedClientIsNotTriedForEver(t *testing.T) {
	r := start(t, 0)
	r.client.Close()
	done := make(chan error, 1)
	require.NoError(t, r.Submit(t.Context(), letter(1, "v"), func(err error) { done <- err }))
	select {
	case err := <-done:
		require.ErrorIs(t, err, batch.ErrAbandoned)
	case <-time.After(10 * time.Second):
		t.Fatal("the letter is still being tried")
	}
}

func TestAMissingTopicIsNamedAndWaitedFor(t *testing.T) {
	r := start(t, time.Second)
	_, err := r.admin.DeleteTopic(t.Context(), topic)
	require.NoError(t, err)
	done := make(chan error, 1)
	require.NoError(t, r.Submit(t.Context(), letter(1, "v"), func(err error) { done <- err }))
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "vitrina topics apply") }, 20*time.Second, 5*time.Millisecond)
	_, err = r.admin.CreateTopic(t.Context(), 1, 1, nil, topic)
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.Equal(t, 1, r.count(t))
}

// The client never writes to a topic of another id than it knows: letters waited until the program was started anew.
func TestATopicThatWasCreatedAgainTakesLetters(t *testing.T) {
	r := start(t, time.Second)
	for range 2 {
		require.NoError(t, r.Write(t.Context(), letter(1, "v")))
		require.Equal(t, 1, r.count(t))
		_, err := r.admin.DeleteTopic(t.Context(), topic)
		require.NoError(t, err)
		_, err = r.admin.CreateTopic(t.Context(), 3, 1, nil, topic)
		require.NoError(t, err)
	}
	require.NoError(t, r.Write(t.Context(), letter(1, "v")))
	require.Equal(t, 1, r.count(t))
}

func TestASessionThatEndsInAnOutageGetsItsLettersBack(t *testing.T) {
	r := start(t, 50*time.Millisecond)
	end := r.refuse(kerr.NotEnoughReplicas.Code)
	defer end()
	session, endSession := context.WithCancel(t.Context())
	done := make(chan error, 1)
	require.NoError(t, r.Submit(session, letter(1, "v"), func(err error) { done <- err }))
	endSession()
	require.ErrorIs(t, <-done, batch.ErrAbandoned)
	require.ErrorIs(t, r.Submit(session, letter(2, "v"), nil), context.Canceled)
}

func TestAStopInAnOutageEndsInTime(t *testing.T) {
	r := start(t, 50*time.Millisecond)
	defer r.refuse(kerr.NotEnoughReplicas.Code)()
	result := make(chan error, 1)
	go func() { result <- r.Write(t.Context(), letter(1, "v"), letter(2, "v")) }()
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), `"event":"failed"`) }, 10*time.Second, 5*time.Millisecond)
	r.stop()
	require.ErrorIs(t, <-result, batch.ErrAbandoned)
}

func (r *rig) limit(t *testing.T, bytes string) {
	t.Helper()
	_, err := r.admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: maxMessageBytes, Value: &bytes}}, topic)
	require.NoError(t, err)
}

// noise does not compress.
func noise(n int) string {
	b := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return string(b)
}

func TestABatchTooLargeIsWrittenOneByOne(t *testing.T) {
	r := start(t, 0)
	r.limit(t, "30000")
	var letters []Letter
	for i := range 12 {
		letters = append(letters, letter(int64(i), noise(20000)))
		letters[i].Record.Key = nil
	}
	require.NoError(t, r.Write(t.Context(), letters...))
	require.Equal(t, 12, r.count(t))
	require.NotContains(t, r.log.String(), "dlq-topic-raised")
}

func TestTheTopicIsRaisedForALetterThatItDoesNotTake(t *testing.T) {
	r := start(t, 0)
	r.limit(t, "30000")
	big := letter(7, noise(300000))
	require.NoError(t, r.Write(t.Context(), letter(6, "small"), big, letter(8, "small")))
	for _, rec := range r.read(t, 3) {
		if string(rec.Headers[5].Value) == "7" {
			require.Equal(t, big.Record.Value, rec.Value)
		}
	}
	require.Contains(t, r.log.String(), "dlq-topic-raised")
	require.EqualValues(t, 3, r.written.Load())
}

func TestALetterThatMayNotBeWrittenHoldsUpNoOther(t *testing.T) {
	r := start(t, 0)
	r.limit(t, "30000")
	var mayAlter atomic.Bool
	r.cluster.ControlKey(int16(kmsg.IncrementalAlterConfigs), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.cluster.KeepControl()
		if mayAlter.Load() {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
		for _, res := range req.(*kmsg.IncrementalAlterConfigsRequest).Resources {
			one := kmsg.NewIncrementalAlterConfigsResponseResource()
			one.ResourceType, one.ResourceName, one.ErrorCode = res.ResourceType, res.ResourceName, kerr.TopicAuthorizationFailed.Code
			resp.Resources = append(resp.Resources, one)
		}
		return resp, nil, true
	})
	big := make(chan error, 2)
	require.NoError(t, r.Submit(t.Context(), letter(1, noise(300000)), func(err error) { big <- err }))
	lost, endLost := context.WithCancel(t.Context())
	require.NoError(t, r.Submit(lost, letter(2, noise(400000)), func(err error) { big <- err }))
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "raise it to") }, 10*time.Second, 5*time.Millisecond)
	for i := range 50 {
		require.NoError(t, r.Write(t.Context(), letter(int64(10+i), "small")))
	}
	endLost()
	require.ErrorIs(t, <-big, batch.ErrAbandoned, "its session ended")
	require.Empty(t, big)
	mayAlter.Store(true) // what the log asked for
	require.NoError(t, <-big)
	require.Equal(t, 51, r.count(t))
}

// The topic takes the letter and something else does not: its limit is as an operator has set it, and stays.
func TestTheTopicsLimitIsNeverLowered(t *testing.T) {
	r := start(t, 0)
	r.limit(t, "50000000")
	end := r.refuse(kerr.MessageTooLarge.Code)
	done := make(chan error, 1)
	require.NoError(t, r.Submit(t.Context(), letter(1, "v"), func(err error) { done <- err }))
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), `"event":"failed"`) }, 10*time.Second, 5*time.Millisecond)
	require.Contains(t, r.log.String(), "already allows 50000000")
	require.NotContains(t, r.log.String(), "dlq-topic-raised")
	end()
	require.NoError(t, <-done)
}

func TestConfigIsChecked(t *testing.T) {
	_, err := New(Config{Topic: topic}, nil, nil, slog.Default(), Metrics{})
	require.ErrorContains(t, err, "clock")
}

func TestATryWritesOnlyWhatIsNotWritten(t *testing.T) {
	r := start(t, 0)
	first := []*parcel{{letter: letter(1, "v"), session: t.Context()}, {letter: letter(2, "v"), session: t.Context()}}
	require.NoError(t, r.flush(t.Context(), first))
	again := slices.Concat(first, []*parcel{{letter: letter(3, "v"), session: t.Context()}}) // the one whose failure brought the batch back
	require.NoError(t, r.flush(t.Context(), again))
	require.Equal(t, 3, r.count(t))
	require.EqualValues(t, 3, r.written.Load())
}
