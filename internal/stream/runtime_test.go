package stream

import (
	"errors"
	"fmt"
	"math/rand"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// TestStateLandsWhereItsKeyBelongs: records that a producer with another partitioner put anywhere reach their key's partition
// through the loop topic, and the state is there after a restart on the same disk and on a fresh one.
func TestStateLandsWhereItsKeyBelongs(t *testing.T) {
	for _, hasher := range Hashers() {
		t.Run(string(hasher), func(t *testing.T) {
			e := newEnv(t)
			e.topic("in", 5)
			spec := collector("g", "in")
			spec.Hasher = hasher
			want := map[string][]string{}
			var recs []*kgo.Record
			for i := range 300 {
				key, value := fmt.Sprintf("key-%d", i%40), fmt.Sprint(i)
				want[key] = append(want[key], value)
				recs = append(recs, rec("in", int32(rand.Intn(5)), key, value))
			}
			e.produce(recs...)
			opts := e.options()
			check := func(r *running) {
				r.waitReady()
				e.waitDone(spec)
				require.Equal(t, []int32{0, 1, 2, 3, 4}, r.Owned())
				for key, values := range want {
					got, err := r.Get(key)
					require.NoError(t, err)
					seen := strings.Split(strings.TrimPrefix(string(got.([]byte)), ","), ",")
					slices.Sort(seen)
					slices.Sort(values)
					require.Equal(t, values, seen, key)
				}
				got, err := r.Get("unknown")
				require.NoError(t, err)
				require.Nil(t, got)
				require.NoError(t, r.stop())
				require.Equal(t, PhaseStopped, r.State().Phase)
				_, err = r.Get("key-1")
				require.ErrorAs(t, err, new(*NotHereError))
			}
			check(e.start(spec, opts))
			check(e.start(spec, opts)) // the same disk
			opts.StateDir = t.TempDir()
			check(e.start(spec, opts)) // a fresh one
		})
	}
}

// TestRawRecordReachesTheCallback: Goka's key is a string and its headers a map, the record's are Kafka's. A tombstone is a
// record like others (fact 5), and is not committed past pending work.
func TestRawRecordReachesTheCallback(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 1)
	got := make(chan *record.Record, 10)
	var incarnation atomic.Uint32
	spec := Spec{Name: "raw", Group: "g", Input: "in", Callback: func(ctx Context, rec *record.Record) {
		incarnation.Store(ctx.Incarnation())
		got <- rec
	}}
	headers := []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "b", Value: nil}, {Key: "a", Value: []byte{}}}
	e.produce(&kgo.Record{Topic: "in", Headers: headers}, &kgo.Record{Topic: "in", Key: []byte{}, Value: []byte{}})
	e.start(spec, e.options())
	first, second := <-got, <-got
	require.Nil(t, first.Key)
	require.Nil(t, first.Value)
	require.Equal(t, []record.Header{{Key: "a", Value: []byte("1")}, {Key: "b"}, {Key: "a", Value: []byte{}}}, first.Headers)
	require.NotNil(t, second.Key)
	require.NotNil(t, second.Value)
	require.Equal(t, record.ID{Topic: "in", Offset: 1}, second.ID)
	topics, err := e.admin.Topics(t.Context(), "in")
	require.NoError(t, err)
	require.Equal(t, Incarnation(topics["in"].ID), incarnation.Load())
	require.NotZero(t, incarnation.Load())
}

// TestFailuresAreFollowedByANewProcessor: whatever ends a processor, a new one takes up with the record that failed.
func TestFailuresAreFollowedByANewProcessor(t *testing.T) {
	for name, fail := range map[string]func(Context, *record.Record){
		"panic":              func(Context, *record.Record) { panic("boom") },
		"ctx.Fail":           func(ctx Context, _ *record.Record) { ctx.Fail(errors.New("boom")) },
		"no codec for topic": func(ctx Context, _ *record.Record) { ctx.Emit("elsewhere", "k", []byte("v")) },
		"deferred error":     func(ctx Context, _ *record.Record) { ctx.DeferCommit()(errors.New("boom")) },
		"emit is refused":    func(ctx Context, _ *record.Record) { ctx.Loopback("k", make([]byte, MaxRecordBytes+1)) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.topic("in", 1)
			var done effects
			var failures atomic.Int32
			spec := Spec{Name: "failing", Group: "g", Input: "in", LoopCallback: func(Context, *record.Record) {}, Callback: func(ctx Context, rec *record.Record) {
				if string(rec.Value) == "b" && failures.Add(1) <= 2 {
					fail(ctx, rec)
					return
				}
				done.add(string(rec.Value))
			}}
			e.produce(rec("in", 0, "k", "a"), rec("in", 0, "k", "b"), rec("in", 0, "k", "c"))
			r := e.start(spec, e.options())
			e.waitDone(spec)
			require.Equal(t, 1, done.count("b"))
			require.Positive(t, done.count("c"))
			require.Equal(t, 2, r.State().Restarts)
			r.waitReady()
			require.Contains(t, e.log.String(), `"event":"processor-failed"`)
		})
	}
}

// TestReturnAfterTheSessionsEndIsNoFinish: fact 3. The record comes again although its callback returned plainly.
func TestReturnAfterTheSessionsEndIsNoFinish(t *testing.T) {
	for name, end := range map[string]func(Context){
		"return":   func(Context) {},
		"ctx.Fail": func(ctx Context) { ctx.Fail(errors.New("does not panic any more")) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.topic("in", 1)
			var seen effects
			var waiting atomic.Bool
			spec := Spec{Name: "waiting", Group: "g", Input: "in", Callback: func(ctx Context, _ *record.Record) {
				seen.add("delivered")
				if !waiting.Swap(true) {
					<-ctx.Context().Done()
					end(ctx)
				}
			}}
			e.produce(rec("in", 0, "k", "a"))
			opts := e.options()
			r := e.start(spec, opts)
			seen.wait(t, "delivered", 1)
			require.NoError(t, r.stop())
			e.start(spec, opts)
			seen.wait(t, "delivered", 2)
			e.waitDone(spec)
		})
	}
}

func TestStoppedConsumerIsNoMember(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 2)
	r := e.start(Spec{Name: "stopped", Group: "g", Input: "in", Callback: func(Context, *record.Record) {}}, e.options())
	r.waitReady()
	require.Len(t, e.cluster.GroupInfo("g").Members, 1)
	require.NoError(t, r.stop())
	require.Empty(t, e.cluster.GroupInfo("g").Members)
	require.Equal(t, PhaseStopped, r.State().Phase)
	require.Empty(t, r.Owned())
	require.ErrorContains(t, r.Run(t.Context()), "run before")
}

// TestStopEndsABackoff: a consumer that fails can be stopped at once.
func TestStopEndsABackoff(t *testing.T) {
	e := newEnv(t)
	opts := e.options()
	opts.Backoff.Min, opts.Backoff.Max = time.Hour, time.Hour
	r := e.start(Spec{Name: "n", Group: "g", Input: "missing", Callback: func(Context, *record.Record) {}}, opts)
	s := r.waitState(PhaseBackoff, "topic missing does not exist")
	require.False(t, s.NextTry.IsZero())
	require.NoError(t, r.stop())
}

// TestStopIsBounded: neither a callback that hangs (Goka would wait for ever) nor a deferred commit that nobody releases (60 s)
// nor a broker that does not acknowledge holds up the end.
func TestStopIsBounded(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	spec := func(cb Callback) Spec {
		s := collector("g", "in")
		s.Callback = cb
		return s
	}
	for name, c := range map[string]struct {
		callback Callback
		prepare  func(e *env)
		want     error
	}{
		"callback hangs":             {callback: func(Context, *record.Record) { <-hang }, want: ErrStopTimeout},
		"deferred commit is kept":    {callback: func(ctx Context, _ *record.Record) { ctx.DeferCommit() }, want: ErrStopTimeout},
		"broker does not answer":     {callback: func(ctx Context, _ *record.Record) { ctx.SetValue([]byte("v")) }, prepare: refuseTable},
		"callback waits for session": {callback: func(ctx Context, _ *record.Record) { <-ctx.Context().Done() }},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.topic("in", 1)
			entered := make(chan struct{}, 10)
			opts := e.options()
			opts.Timing.Stop = 2 * time.Second
			if c.prepare != nil {
				c.prepare(e)
			}
			r := e.start(spec(func(ctx Context, rec *record.Record) {
				entered <- struct{}{}
				c.callback(ctx, rec)
			}), opts)
			r.waitReady()
			e.produce(rec("in", 0, "k", "a"))
			<-entered
			started := time.Now()
			require.ErrorIs(t, r.stop(), c.want)
			require.Less(t, time.Since(started), 10*time.Second)
		})
	}
}

func refuseTable(e *env) {
	e.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: TableTopic("g"), Err: kerr.NotEnoughReplicas, Count: -1})
}

// TestStallIsReported: a record that nobody finishes makes the consumer unready, and ready again when it is finished; a sink's
// outage is no reason for a new processor.
func TestStallIsReported(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 2)
	release := make(chan func(error), 1)
	spec := Spec{Name: "stalled", Group: "g", Input: "in", Callback: func(ctx Context, rec *record.Record) {
		if string(rec.Value) == "stuck" {
			release <- ctx.DeferCommit()
		}
	}}
	opts := e.options()
	opts.Timing.Stall = 300 * time.Millisecond
	r := e.start(spec, opts)
	e.produce(rec("in", 1, "k", "stuck"), rec("in", 1, "k", "x"), rec("in", 1, "k", "y"))
	s := r.waitState(PhaseStalled, "record in/1@0 is not finished")
	require.Contains(t, s.Reason, "2 others are behind it")
	require.False(t, s.Ready())
	(<-release)(nil)
	r.waitReady()
	e.waitDone(spec)
	require.Equal(t, 0, r.State().Restarts)
	require.Contains(t, e.log.String(), `"event":"partition-stalled"`)
	require.Contains(t, e.log.String(), `"event":"partitions-progress"`)
}

// TestConsumerThatDeliversNothingIsReplaced: the broker's end moves and nothing comes.
func TestConsumerThatDeliversNothingIsReplaced(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 1)
	var seen effects
	spec := Spec{Name: "silent", Group: "g", Input: "in", Callback: func(_ Context, rec *record.Record) { seen.add(string(rec.Value)) }}
	opts := e.options()
	opts.Timing.Stall = 300 * time.Millisecond
	r := e.start(spec, opts)
	r.waitReady()
	// Sarama retries this without a word, for ever. Its fetches name topics, franz-go's their ids.
	fault := e.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "in", Err: kerr.NotLeaderForPartition, Count: -1,
		When: func(r kmsg.Request) bool { return r.GetVersion() < 13 }})
	e.produce(rec("in", 0, "k", "a"))
	eventually(t, func() bool { return r.State().Restarts > 0 }, func() string { return fmt.Sprintf("%+v %v hits %d", r.State(), seen.all(), fault.Hits()) })
	fault.Remove()
	seen.wait(t, "a", 1)
	e.waitDone(spec)
}

// TestLagComesFromTheBroker: fact 9; and the loop topic is trimmed below what is committed.
func TestLagComesFromTheBroker(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 2)
	spec := collector("g", "in")
	inner := spec.Callback
	var open atomic.Bool
	spec.Callback = func(ctx Context, rec *record.Record) {
		for !open.Load() && ctx.Context().Err() == nil {
			select {
			case <-ctx.Context().Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
		inner(ctx, rec)
	}
	opts := e.options()
	opts.Timing.Trim = 50 * time.Millisecond
	lags := func() []int64 {
		positions, err := e.admin.GroupPositions(t.Context(), "g", "in")
		require.NoError(t, err)
		return Lags(positions["in"])
	}
	home := CRC32.Partition([]byte("k"), 2)
	for i := range 7 {
		e.produce(rec("in", 1-home, "k", fmt.Sprint(i)))
	}
	e.start(spec, opts)
	want := []int64{0, 0}
	want[1-home] = 7
	eventually(t, func() bool { return slices.Equal(lags(), want) }, func() string { return fmt.Sprint(lags()) })
	open.Store(true)
	e.waitDone(spec)
	eventually(t, func() bool { return slices.Equal(lags(), []int64{0, 0}) }, func() string { return fmt.Sprint(lags()) })
	eventually(t, func() bool {
		p, err := e.admin.GroupPositions(t.Context(), "g", LoopTopic("g"))
		return err == nil && p[LoopTopic("g")][home].Start == 7 && p[LoopTopic("g")][home].End == 7
	}, func() string { return "the loop topic is not trimmed" })
}

// TestRestartsLeakNothing: a consumer that fails for hours must not fill the memory.
func TestRestartsLeakNothing(t *testing.T) {
	e := newEnvAlone(t) // it counts the goroutines of the whole process
	e.topic("in", 2)
	spec := collector("g", "in")
	spec.Callback = func(Context, *record.Record) { panic("boom") }
	opts := e.options()
	opts.Backoff.Min, opts.Backoff.Max = time.Millisecond, time.Millisecond
	e.produce(rec("in", 0, "k", "a"))
	restarts := func(n int) {
		r := e.start(spec, opts)
		eventually(t, func() bool { return r.State().Restarts >= n }, func() string { return fmt.Sprintf("%+v", r.State()) })
		require.NoError(t, r.stop())
	}
	restarts(1)
	before := runtime.NumGoroutine()
	restarts(8)
	// What a closed client leaves behind ends a moment later.
	eventually(t, func() bool { return runtime.NumGoroutine() <= before }, func() string {
		return fmt.Sprintf("%d goroutines after one restart, %d after more", before, runtime.NumGoroutine())
	})
}
