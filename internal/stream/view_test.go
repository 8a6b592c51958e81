package stream

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka/storage"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/stream/tablestore"
)

func TestViewFollowsTheWholeTable(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 3)
	spec := collector("g", "in")
	opts := e.options()
	v, err := NewView(ViewOptions{
		Kafka: e.kafka, Admin: e.admin, Group: "g", Codec: codecs.Bytes{}, StateDir: t.TempDir(), Logger: e.log.logger(),
		Backoff: backoff.Config{Min: 20 * time.Millisecond, Max: 100 * time.Millisecond}, Check: 50 * time.Millisecond,
		Store: func(dir string) storage.Builder {
			return tablestore.Builder(tablestore.Config{Dir: dir, Follow: true}, e.log.logger(), nil)
		},
	})
	require.NoError(t, err)
	require.False(t, v.Ready())
	_, err = v.Get("k")
	require.ErrorAs(t, err, new(*NotHereError))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }() // the topic does not exist yet
	stop := sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() })

	r := e.start(spec, opts)
	reads := func(key, want string) {
		eventually(t, func() bool {
			got, err := v.Get(key)
			if err != nil || (got == nil) != (want == "") {
				return false
			}
			return want == "" || string(got.([]byte)) == want
		}, func() string { got, err := v.Get(key); return fmt.Sprint(key, got, err) })
	}
	for i := range 12 {
		e.produce(rec("in", 0, fmt.Sprint("k", i), "1"))
	}
	for i := range 12 {
		reads(fmt.Sprint("k", i), ",1")
	}
	require.True(t, v.Ready())
	reads("unknown", "")

	// The table is recreated: the copy starts anew.
	require.NoError(t, r.stop())
	e.recreate(TableTopic("g"), 3)
	reads("k1", "")
	opts.StateDir = t.TempDir()
	r = e.start(spec, opts)
	r.waitReady()
	e.produce(rec("in", 0, "k1", "2"))
	reads("k1", ",2")
	require.NoError(t, stop())
	require.ErrorContains(t, v.Run(t.Context()), "run before")
}

// fakeSessions is a consumer group whose sessions end at once for the given reason.
type fakeSessions struct {
	sarama.ConsumerGroup
	cause error
	err   error
	count int
}

type fakeSession struct {
	sarama.ConsumerGroupSession
	ctx context.Context
}

func (fakeSession) Claims() map[string][]int32 { return nil }

func (s fakeSession) Context() context.Context { return s.ctx }

func (f *fakeSessions) Consume(ctx context.Context, _ []string, h sarama.ConsumerGroupHandler) error {
	f.count++
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := fakeSession{ctx: ctx}
	if err := h.Setup(s); err != nil {
		return err
	}
	cancel(f.cause)
	if err := h.Cleanup(s); err != nil {
		return err
	}
	return f.err
}

type idleHandler struct{}

func (idleHandler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (idleHandler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (idleHandler) ConsumeClaim(sarama.ConsumerGroupSession, sarama.ConsumerGroupClaim) error {
	return nil
}

// TestRejoiningIsBounded: only a rebalance is followed by the next session at once, and a row of short ones is left to Goka's sleep.
func TestRejoiningIsBounded(t *testing.T) {
	fine := func(context.Context, map[string][]int32) error { return nil }
	for name, c := range map[string]struct {
		group *fakeSessions
		check func(context.Context, map[string][]int32) error
		want  int
		fails bool
	}{
		"rebalances in a row": {group: &fakeSessions{cause: sarama.ErrRebalanceInProgress}, check: fine, want: 4},
		"a claim ended":       {group: &fakeSessions{cause: sarama.ErrSessionConsumeClaimExited}, check: fine, want: 1},
		"an error":            {group: &fakeSessions{cause: sarama.ErrRebalanceInProgress, err: context.DeadlineExceeded}, check: fine, want: 1, fails: true},
		"topics changed":      {group: &fakeSessions{}, check: func(context.Context, map[string][]int32) error { return &topicChangedError{} }, want: 1, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			build := rejoining(func([]string, string, string) (sarama.ConsumerGroup, error) { return c.group, nil }, c.check, time.Now)
			group, err := build(nil, "g", "c")
			require.NoError(t, err)
			err = group.Consume(t.Context(), nil, idleHandler{})
			require.Equal(t, c.fails, err != nil, "%v", err)
			require.Equal(t, c.want, c.group.count)
		})
	}
}
