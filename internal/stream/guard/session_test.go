package guard

import (
	"context"
	"math/rand"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// fakeGroup is sarama's consumer group without a broker: one session for each call of Consume, over the claims given.
type fakeGroup struct {
	sarama.ConsumerGroup
	claims  map[string][]int32
	message func(topic string, partition int32) <-chan *sarama.ConsumerMessage
	last    *fakeSession
}

func (f *fakeGroup) Consume(ctx context.Context, _ []string, h sarama.ConsumerGroupHandler) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &fakeSession{ctx: ctx, claims: f.claims, marks: map[record.ID]int64{}}
	f.last = s
	if err := h.Setup(s); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for topic, partitions := range f.claims {
		for _, p := range partitions {
			wg.Go(func() {
				_ = h.ConsumeClaim(s, &fakeClaim{topic: topic, partition: p, ch: f.message(topic, p)})
				cancel()
			})
		}
	}
	wg.Wait()
	return h.Cleanup(s)
}

type fakeSession struct {
	ctx    context.Context
	claims map[string][]int32
	mu     sync.Mutex
	marks  map[record.ID]int64
	reset  int64
	sent   int
}

func (s *fakeSession) Claims() map[string][]int32 { return s.claims }
func (s *fakeSession) MemberID() string           { return "member" }
func (s *fakeSession) GenerationID() int32        { return 7 }
func (s *fakeSession) Context() context.Context   { return s.ctx }
func (s *fakeSession) Commit()                    { s.sent++ }
func (s *fakeSession) MarkOffset(topic string, partition int32, offset int64, _ string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := record.ID{Topic: topic, Partition: partition}
	s.marks[id] = max(s.marks[id], offset)
}
func (s *fakeSession) ResetOffset(_ string, _ int32, offset int64, _ string) { s.reset = offset }
func (s *fakeSession) MarkMessage(*sarama.ConsumerMessage, string)           { panic("not through the guard") }

type fakeClaim struct {
	topic     string
	partition int32
	ch        <-chan *sarama.ConsumerMessage
}

func (c *fakeClaim) Topic() string                            { return c.topic }
func (c *fakeClaim) Partition() int32                         { return c.partition }
func (c *fakeClaim) InitialOffset() int64                     { return 11 }
func (c *fakeClaim) HighWaterMarkOffset() int64               { return 99 }
func (c *fakeClaim) Messages() <-chan *sarama.ConsumerMessage { return c.ch }

// handlerFunc is Goka's part.
type handlerFuncs struct {
	setup, cleanup func(sarama.ConsumerGroupSession) error
	consume        func(sarama.ConsumerGroupSession, sarama.ConsumerGroupClaim) error
}

func (h handlerFuncs) Setup(s sarama.ConsumerGroupSession) error {
	if h.setup == nil {
		return nil
	}
	return h.setup(s)
}

func (h handlerFuncs) Cleanup(s sarama.ConsumerGroupSession) error {
	if h.cleanup == nil {
		return nil
	}
	return h.cleanup(s)
}

func (h handlerFuncs) ConsumeClaim(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	return h.consume(s, c)
}

func build(t require.TestingT, g *Guard, inner *fakeGroup) sarama.ConsumerGroup {
	group, err := g.Builder(func([]string, string, string) (sarama.ConsumerGroup, error) { return inner, nil })(nil, "g", "c")
	require.NoError(t, err)
	return group
}

func channel(msgs ...*sarama.ConsumerMessage) <-chan *sarama.ConsumerMessage {
	ch := make(chan *sarama.ConsumerMessage, len(msgs))
	for _, m := range msgs {
		ch <- m
	}
	close(ch)
	return ch
}

func TestRawRecordIsKeptAsKafkaDeliveredIt(t *testing.T) {
	at := time.UnixMilli(1234)
	msg := &sarama.ConsumerMessage{Topic: "t", Partition: 1, Offset: 5, Key: nil, Value: []byte("v"), Timestamp: at, Headers: []*sarama.RecordHeader{
		{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("b"), Value: nil}, {Key: []byte("a"), Value: []byte("2")},
	}}
	inner := &fakeGroup{claims: map[string][]int32{"t": {1}}, message: func(string, int32) <-chan *sarama.ConsumerMessage { return channel(msg) }}
	g := New(Config{})
	id := record.ID{Topic: "t", Partition: 1, Offset: 5}
	var kept *record.Record
	err := build(t, g, inner).Consume(t.Context(), []string{"t"}, handlerFuncs{consume: func(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
		require.Equal(t, "t", c.Topic())
		require.Equal(t, int64(11), c.InitialOffset())
		require.Equal(t, int64(99), c.HighWaterMarkOffset())
		require.Equal(t, map[string][]int32{"t": {1}}, s.Claims())
		require.Equal(t, int32(7), s.GenerationID())
		got, ok := <-c.Messages()
		require.True(t, ok)
		require.Same(t, msg, got)
		kept, ok = g.Record(id)
		require.True(t, ok)
		s.MarkMessage(got, "")
		_, ok = g.Record(id)
		require.False(t, ok, "a finished record is let go")
		s.Commit()
		s.ResetOffset("t", 1, 3, "")
		return nil
	}})
	require.NoError(t, err)
	require.Equal(t, &record.Record{ID: id, Value: []byte("v"), Timestamp: at, Headers: []record.Header{{Key: "a", Value: []byte("1")}, {Key: "b"}, {Key: "a", Value: []byte("2")}}}, kept)
	require.Nil(t, kept.Key, "a null key is not an empty one")
	require.Equal(t, int64(6), inner.last.marks[record.ID{Topic: "t", Partition: 1}])
	require.Equal(t, 1, inner.last.sent)
	require.Equal(t, int64(3), inner.last.reset)
}

func TestMarksAfterTheSessionsEndChangeNothing(t *testing.T) {
	inner := &fakeGroup{claims: map[string][]int32{"t": {0}}, message: func(string, int32) <-chan *sarama.ConsumerMessage {
		return channel(&sarama.ConsumerMessage{Topic: "t", Offset: 0}, &sarama.ConsumerMessage{Topic: "t", Offset: 1})
	}}
	g := New(Config{})
	var kept sarama.ConsumerGroupSession
	h := handlerFuncs{
		consume: func(_ sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
			for range c.Messages() {
			}
			return nil
		},
		// Goka's Cleanup waits for what is in flight: that still counts.
		cleanup: func(s sarama.ConsumerGroupSession) error {
			kept = s
			s.MarkOffset("t", 0, 1, "")
			return nil
		},
	}
	require.NoError(t, build(t, g, inner).Consume(t.Context(), []string{"t"}, h))
	key := record.ID{Topic: "t"}
	require.Equal(t, int64(1), inner.last.marks[key])
	kept.MarkOffset("t", 0, 2, "")
	require.Equal(t, int64(1), inner.last.marks[key], "a mark after the end")
	g.Abandon(record.ID{Topic: "t", Offset: 1})
	require.Empty(t, g.Abandoned())
	require.Empty(t, g.Status())
	_, ok := g.Record(record.ID{Topic: "t", Offset: 1})
	require.False(t, ok)
}

func TestAbandonSignalsOnlyWhileTheSessionGoesOn(t *testing.T) {
	for name, ending := range map[string]bool{"session goes on": false, "session ends": true} {
		t.Run(name, func(t *testing.T) {
			inner := &fakeGroup{claims: map[string][]int32{"t": {0}}, message: func(string, int32) <-chan *sarama.ConsumerMessage {
				return channel(&sarama.ConsumerMessage{Topic: "t", Offset: 0})
			}}
			g := New(Config{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			require.NoError(t, build(t, g, inner).Consume(ctx, []string{"t"}, handlerFuncs{consume: func(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
				<-c.Messages()
				if ending {
					cancel()
					<-s.Context().Done()
				}
				earlier := rec(0)
				earlier.ID = record.ID{Topic: "t", Offset: 0}
				g.AbandonDelivery(earlier) // a delivery of an earlier session
				require.Empty(t, g.Abandoned())
				current, ok := g.Record(record.ID{Topic: "t", Offset: 0})
				require.True(t, ok)
				g.AbandonDelivery(current)
				s.MarkOffset("t", 0, 1, "") // Goka finishes it all the same
				return nil
			}}))
			require.Empty(t, inner.last.marks)
			if ending {
				require.Empty(t, g.Abandoned())
			} else {
				require.Equal(t, record.ID{Topic: "t", Offset: 0}, <-g.Abandoned())
			}
		})
	}
}

// TestRandomInterleavings lets a Goka-like handler take records from several partitions and finish, abandon or forget them
// from many goroutines, and ends the session at any time, several sessions in a row. Whatever happens, the position of a
// partition is exactly that of the first delivered record that was not finished.
func TestRandomInterleavings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Int64().Draw(t, "seed")
		sessions := rapid.IntRange(1, 3).Draw(t, "sessions")
		stopAfter := rapid.IntRange(0, 400).Draw(t, "stop after")
		abandonEvery := rapid.IntRange(2, 400).Draw(t, "abandon one of")
		window := rapid.IntRange(2, 600).Draw(t, "window")
		g := New(Config{Window: window, Bytes: rapid.IntRange(13, 1000).Draw(t, "bytes"), Buffer: rapid.IntRange(1, 8).Draw(t, "buffer")})
		claims := map[string][]int32{"t": {0, 2}, "loop": {0, 2}}
		positions := map[record.ID]int64{} // the broker's committed offsets
		inner := &fakeGroup{claims: claims, message: func(topic string, p int32) <-chan *sarama.ConsumerMessage {
			ch := make(chan *sarama.ConsumerMessage, 300) // of at most 12 bytes: the worker holds one record until the next comes
			for o := positions[record.ID{Topic: topic, Partition: p}]; o < 300; o++ {
				if o%17 != 3 { // a control record
					ch <- &sarama.ConsumerMessage{Topic: topic, Partition: p, Offset: o, Value: make([]byte, o%13)}
				}
			}
			return ch
		}}
		group := build(t, g, inner)
		for n := range sessions {
			w := &worker{guard: g, rnd: rand.New(rand.NewSource(seed + int64(n))), stopAfter: stopAfter, abandonEvery: abandonEvery,
				taken: map[record.ID][]int64{}, done: map[record.ID]bool{}, given: map[record.ID]bool{}}
			ctx, cancel := context.WithCancel(context.Background())
			w.cancel = cancel
			// Whoever runs the processor ends it when a record was abandoned: a full window would wait for it for ever.
			go func() {
				select {
				case <-g.Abandoned():
					cancel()
				case <-ctx.Done():
				}
			}()
			err := group.Consume(ctx, []string{"t", "loop"}, handlerFuncs{consume: w.consume, cleanup: w.cleanup})
			cancel()
			require.NoError(t, err)
			for id, marked := range inner.last.marks {
				if first, ok := w.firstUnfinished(id); ok {
					require.LessOrEqual(t, marked, first, "%v committed past an unfinished record", id)
				}
			}
			for id, offsets := range w.taken {
				require.Equal(t, w.position(offsets, id), inner.last.marks[id], "%v", id)
			}
			for id, marked := range inner.last.marks {
				positions[id] = marked
			}
		}
	})
}

// worker plays Goka.
type worker struct {
	guard        *Guard
	cancel       func()
	stopAfter    int
	abandonEvery int

	mu      sync.Mutex
	rnd     *rand.Rand
	seen    int
	taken   map[record.ID][]int64 // by topic and partition: offsets in the order of delivery
	done    map[record.ID]bool
	given   map[record.ID]bool
	waiting sync.WaitGroup
}

func (w *worker) consume(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	var held []int64
	for {
		select {
		case <-s.Context().Done():
			return nil
		case msg, ok := <-c.Messages():
			if !ok {
				return nil
			}
			key := record.ID{Topic: c.Topic(), Partition: c.Partition()}
			w.mu.Lock()
			w.seen++
			if w.seen > w.stopAfter || msg.Offset >= 298 {
				w.cancel()
			}
			w.taken[key] = append(w.taken[key], msg.Offset)
			held = append(held, msg.Offset)
			release := w.rnd.Intn(4) == 0 || len(held) > 1
			w.mu.Unlock()
			if release {
				batch := held
				held = nil
				w.waiting.Go(func() { w.finish(s, key, batch) })
			}
		}
	}
}

func (w *worker) finish(s sarama.ConsumerGroupSession, key record.ID, offsets []int64) {
	w.mu.Lock()
	w.rnd.Shuffle(len(offsets), func(i, j int) { offsets[i], offsets[j] = offsets[j], offsets[i] })
	w.mu.Unlock()
	for _, o := range offsets {
		id := record.ID{Topic: key.Topic, Partition: key.Partition, Offset: o}
		w.mu.Lock()
		give := w.rnd.Intn(w.abandonEvery) == 0
		w.mu.Unlock()
		if give {
			w.guard.Abandon(id)
			w.mu.Lock()
			w.given[id] = true
			w.mu.Unlock()
		}
		s.MarkOffset(key.Topic, key.Partition, o+1, "")
		if !give {
			w.mu.Lock()
			w.done[id] = true
			w.mu.Unlock()
		}
	}
}

func (w *worker) cleanup(sarama.ConsumerGroupSession) error {
	w.waiting.Wait()
	return nil
}

func (w *worker) firstUnfinished(key record.ID) (int64, bool) {
	for _, o := range w.taken[key] {
		if !w.done[record.ID{Topic: key.Topic, Partition: key.Partition, Offset: o}] {
			return o, true
		}
	}
	return 0, false
}

func (w *worker) position(offsets []int64, key record.ID) int64 {
	var next int64
	for _, o := range offsets {
		if !w.done[record.ID{Topic: key.Topic, Partition: key.Partition, Offset: o}] {
			break
		}
		next = o + 1
	}
	return next
}

func TestRepeatedDeliveryIsPassedOnOnce(t *testing.T) {
	inner := &fakeGroup{claims: map[string][]int32{"t": {0}}, message: func(string, int32) <-chan *sarama.ConsumerMessage {
		return channel(&sarama.ConsumerMessage{Topic: "t", Offset: 4}, &sarama.ConsumerMessage{Topic: "t", Offset: 4}, &sarama.ConsumerMessage{Topic: "t", Offset: 5})
	}}
	g := New(Config{})
	var got []int64
	require.NoError(t, build(t, g, inner).Consume(t.Context(), []string{"t"}, handlerFuncs{consume: func(_ sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
		for m := range c.Messages() {
			got = append(got, m.Offset)
		}
		return nil
	}}))
	require.Equal(t, []int64{4, 5}, got)
}

// BenchmarkClaim is one message through sarama's channel, the forwarder and Goka's loop, finished at once.
func BenchmarkClaim(b *testing.B) {
	ch := make(chan *sarama.ConsumerMessage, 1024)
	msgs := make([]sarama.ConsumerMessage, b.N)
	headers := []*sarama.RecordHeader{{Key: []byte("EventId"), Value: []byte("1")}, {Key: []byte("Type"), Value: []byte("2")}}
	go func() {
		for i := range msgs {
			msgs[i] = sarama.ConsumerMessage{Topic: "t", Offset: int64(i), Headers: headers}
			ch <- &msgs[i]
		}
		close(ch)
	}()
	inner := &fakeGroup{claims: map[string][]int32{"t": {0}}, message: func(string, int32) <-chan *sarama.ConsumerMessage { return ch }}
	g := New(Config{})
	b.ReportAllocs()
	b.ResetTimer()
	require.NoError(b, build(b, g, inner).Consume(b.Context(), []string{"t"}, handlerFuncs{consume: func(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
		for m := range c.Messages() {
			if _, ok := g.Record(record.ID{Topic: "t", Offset: m.Offset}); !ok {
				b.Fatal("record is gone")
			}
			s.MarkOffset("t", 0, m.Offset+1, "")
		}
		return nil
	}}))
}
