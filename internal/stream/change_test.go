package stream

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lovoo/goka/storage"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// memory is Incarnations without a database.
type memory struct {
	mu   sync.Mutex
	list map[string]Accepted
}

func (m *memory) Accepted(_ context.Context, group string) (Accepted, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.list[group]
	return a, ok, nil
}

func (m *memory) Accept(_ context.Context, group string, a Accepted) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.list[group]; !ok {
		m.list[group] = a
	}
	return nil
}

func TestRecreatedSourceIsRefusedWhereThereIsState(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 2)
	spec := collector("g", "in")
	spec.Mend = "Run vitrina rebuild popularity"
	opts := e.options()
	notes := &memory{list: map[string]Accepted{}}
	opts.Incarnations = notes
	r := e.start(spec, opts)
	e.produce(rec("in", 0, "k", "a"), rec("in", 0, "k", "b"))
	r.waitReady()
	e.waitDone(spec)
	before := notes.list["g"]
	require.Equal(t, int32(2), before.Partitions)

	// Under the running processor: it is noticed, and refused from then on.
	e.recreate("in", 2)
	s := r.waitState(PhaseBackoff, "deleted and created again")
	require.Contains(t, s.Reason, "Run vitrina rebuild popularity")
	require.Contains(t, s.Reason, before.SourceTopicID.String())
	require.Equal(t, before, notes.list["g"], "the note is the rebuild's to change")
	require.NoError(t, r.stop())

	// On a fresh disk, and with other changes.
	topics, err := e.admin.Topics(t.Context(), "in")
	require.NoError(t, err)
	for text, note := range map[string]Accepted{
		"created again":                   before,
		"it has 2 partitions, before 5":   {SourceTopicID: topics["in"].ID, Partitions: 5, Hasher: CRC32},
		"Set collector.hasher back to mu": {SourceTopicID: topics["in"].ID, Partitions: 2, Hasher: Murmur2},
	} {
		notes.list["g"] = note
		opts.StateDir = t.TempDir()
		r := e.start(spec, opts)
		r.waitState(PhaseBackoff, text)
		require.NoError(t, r.stop())
	}

	// After a rebuild.
	notes.list["g"] = Accepted{SourceTopicID: topics["in"].ID, Partitions: 2, Hasher: CRC32}
	r = e.start(spec, opts)
	r.waitReady()
	e.produce(rec("in", 0, "k", "c"))
	e.waitDone(spec)
}

func TestRecreatedSourceIsReadFromItsBeginningWhereThereIsNoState(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 1)
	var seen effects
	spec := Spec{Name: "price", Group: "g", Input: "in", Callback: func(_ Context, rec *record.Record) { seen.add(string(rec.Value)) }}
	r := e.start(spec, e.options())
	for i := range 5 {
		e.produce(rec("in", 0, "k", fmt.Sprint("old", i)))
	}
	e.waitDone(spec)
	e.recreate("in", 1)
	e.produce(rec("in", 0, "k", "new"))
	seen.wait(t, "new", 1)
	r.waitReady()
	e.waitDone(spec)
}

// TestPositionAboveTheEndIsRefused: the topic is the same and its tail is not (an unclean election), or its offsets were set by hand.
func TestPositionAboveTheEndIsRefused(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 1)
	spec := collector("g", "in")
	r := e.start(spec, e.options())
	e.produce(rec("in", 0, "k", "a"))
	r.waitReady()
	e.waitDone(spec)
	require.NoError(t, r.stop())
	positions, err := e.admin.GroupPositions(t.Context(), "g", "in")
	require.NoError(t, err)
	above := positions["in"]
	above[0].Committed = 7
	rt, err := New(spec, e.options())
	require.NoError(t, err)
	err = rt.checkSource(t.Context(), Topic{Name: "in", Partitions: 1}, above)
	require.ErrorContains(t, err, "committed offset of partition 0 (7) lies above its end (1)")
	require.ErrorContains(t, err, "vitrina rebuild")
	require.ErrorAs(t, err, new(*SourceChangedError))
	rt.spec.TableCodec = nil
	require.NoError(t, rt.checkSource(t.Context(), Topic{Name: "in", Partitions: 1}, above))
}

func TestCheckIsAskedBeforeEachStart(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 1)
	e.produce(rec("in", 0, "k", "a"))
	spec := collector("g", "in")
	asked := make(chan Source, 100)
	spec.Check = func(_ context.Context, s Source) error {
		asked <- s
		return fmt.Errorf("the horizon lies above the end")
	}
	r := e.start(spec, e.options())
	r.waitState(PhaseBackoff, "the horizon lies above the end")
	s := <-asked
	require.Equal(t, []Positions{{End: 1, Committed: -1}}, s.Positions)
	require.Equal(t, "in", s.Topic)
}

// TestStaleLocalStateIsDropped: fact 6. A table topic that was created anew, another epoch: the directory goes, with a line in
// the log; otherwise it stays.
func TestStaleLocalStateIsDropped(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 1)
	spec := collector("g", "in")
	opts := e.options()
	epoch := int64(1)
	opts.Epoch = func(context.Context) (int64, error) { return epoch, nil }
	dir := filepath.Join(opts.StateDir, "g")
	marker := filepath.Join(dir, "table", "marker")
	round := func() {
		r := e.start(spec, opts)
		r.waitReady()
		e.produce(rec("in", 0, "k", fmt.Sprint(time.Now().UnixNano())))
		e.waitDone(spec)
		require.NoError(t, r.stop())
	}
	round()
	require.NoError(t, os.WriteFile(marker, nil, 0o600))
	round()
	require.FileExists(t, marker)
	require.NotContains(t, e.log.String(), "state-dir-wiped")

	epoch++
	round()
	require.NoFileExists(t, marker)
	require.Contains(t, e.log.String(), "the projection was rebuilt")

	require.NoError(t, os.WriteFile(marker, nil, 0o600))
	e.deleteTopic(TableTopic("g"))
	round()
	require.NoFileExists(t, marker)
	require.Contains(t, e.log.String(), "the table topic was created anew")

	require.NoError(t, os.WriteFile(marker, nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "meta.json"), []byte("{"), 0o600))
	round()
	require.NoFileExists(t, marker)

	require.NoError(t, os.WriteFile(marker, nil, 0o600))
	require.NoError(t, os.Remove(filepath.Join(dir, "meta.json")))
	round()
	require.NoFileExists(t, marker)
	require.Contains(t, e.log.String(), "nothing says what it was made from")

	opts.Epoch = func(context.Context) (int64, error) { return 0, fmt.Errorf("the projection is being rebuilt") }
	e.start(spec, opts).waitState(PhaseBackoff, "the projection is being rebuilt")
}

func TestStateDirectoryHasOneOwner(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 1)
	spec := collector("g", "in")
	opts := e.options()
	first := e.start(spec, opts)
	first.waitReady()
	second := e.start(spec, opts)
	second.waitState(PhaseStopped, "in use by another instance")
	err := second.stop()
	require.ErrorContains(t, err, fmt.Sprintf("process %d", os.Getpid()))
	require.ErrorContains(t, err, "give each instance its own state.dir")
	require.NoError(t, first.stop())
	e.start(spec, opts).waitReady()

	opts.StateDir = filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(opts.StateDir, nil, 0o600))
	require.ErrorContains(t, e.start(spec, opts).stop(), "state.dir")
}

// slowStore holds up a restore.
type slowStore struct {
	storage.Storage
	gate chan struct{}
}

func (s *slowStore) Set(key string, value []byte) error {
	<-s.gate
	return s.Storage.Set(key, value)
}

func TestRestoreShowsItsProgress(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 1)
	spec := collector("g", "in")
	opts := e.options()
	r := e.start(spec, opts)
	for i := range 10 {
		e.produce(rec("in", 0, fmt.Sprint("k", i), "v"))
	}
	r.waitReady()
	e.waitDone(spec)
	require.NoError(t, r.stop())

	opts.StateDir = t.TempDir()
	gate := make(chan struct{})
	inner := opts.Store
	opts.Store = func(dir string) storage.Builder {
		build := inner(dir)
		return func(topic string, partition int32) (storage.Storage, error) {
			st, err := build(topic, partition)
			return &slowStore{Storage: st, gate: gate}, err
		}
	}
	var ahead atomic.Int64 // of the clock
	opts.Clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	r = e.start(spec, opts)
	for range 4 {
		gate <- struct{}{}
	}
	eventually(t, func() bool {
		s := r.State()
		return s.Phase == PhaseRecovering && len(s.Recovery) == 1 && s.Recovery[0] == Recovery{Partition: 0, Offset: 3, End: 10}
	}, func() string { return fmt.Sprintf("%+v", r.State()) })
	_, err := r.Get("k0")
	require.ErrorAs(t, err, new(*NotHereError), "a table that is being restored is not read")
	require.NotContains(t, e.log.String(), "recovery-progress")
	eventually(t, func() bool {
		ahead.Add(int64(10 * time.Second)) // how often the log says it, from whenever the restore was seen
		return strings.Contains(e.log.String(), `"event":"recovery-progress","partitions_left":1,"offset":3,"end":10`)
	}, e.log.String)
	close(gate)
	r.waitReady()
	got, err := r.Get("k0")
	require.NoError(t, err)
	require.Equal(t, ",v", string(got.([]byte)))
}

// TestTwoInstancesShareAndHandOver: the second one gets its share within seconds although Goka sleeps 5 s after each session
// (fact 11), and the first one's end hands its partitions over as fast.
func TestTwoInstancesShareAndHandOver(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 4)
	spec := collector("g", "in")
	opts := e.options()
	opts.HotStandby = true
	opts.Kafka.ClientID = "a"
	a := e.start(spec, opts)
	a.waitReady()
	require.Equal(t, []int32{0, 1, 2, 3}, a.Owned())
	opts.StateDir, opts.Kafka.ClientID = t.TempDir(), "b"
	started := time.Now()
	b := e.start(spec, opts)
	eventually(t, func() bool { return len(a.Owned()) == 2 && len(b.Owned()) == 2 }, func() string { return fmt.Sprint(a.State(), b.State()) })
	a.waitReady()
	b.waitReady()
	require.Less(t, time.Since(started), 5*time.Second)
	require.Equal(t, []int32{0, 1}, a.Owned(), "member ids, which begin with client ids, decide")
	require.Equal(t, []int32{2, 3}, b.Owned())
	var recs int
	for p := range int32(4) {
		for i := range 20 {
			e.produce(rec("in", p, fmt.Sprintf("key-%d", (int(p)*20+i)%9), fmt.Sprint(p, i)))
			recs++
		}
	}
	e.waitDone(spec)
	// Hot standby: both answer for every key.
	for i := range 9 {
		key := fmt.Sprintf("key-%d", i)
		eventually(t, func() bool {
			x, err1 := a.Get(key)
			y, err2 := b.Get(key)
			return err1 == nil && err2 == nil && x != nil && y != nil && bytes.Equal(x.([]byte), y.([]byte))
		}, func() string { return "the standby of " + key + " differs" })
	}
	started = time.Now()
	require.NoError(t, a.stop())
	eventually(t, func() bool { return len(b.Owned()) == 4 }, func() string { return fmt.Sprint(b.State()) })
	b.waitReady()
	require.Less(t, time.Since(started), 5*time.Second)
	require.Zero(t, b.State().Restarts)
}

// Retention went past the group's offset, and the consumer went on behind the gap without a word.
func TestRecordsDeletedBeforeTheyWereReadAreTold(t *testing.T) {
	e := newEnv(t)
	e.topic("in", 2)
	var seen effects
	spec := Spec{Name: "n", Group: "g", Input: "in", Callback: func(_ Context, rec *record.Record) { seen.add(string(rec.Value)) }}
	opts := e.options()
	lost := make(chan Lost, 10)
	opts.OnLost = func(l Lost) { lost <- l }
	r := e.start(spec, opts)
	e.produce(rec("in", 0, "k", "a"), rec("in", 1, "k", "b"))
	seen.wait(t, "a", 1)
	seen.wait(t, "b", 1)
	e.waitDone(spec)
	require.NoError(t, r.stop())
	require.Empty(t, lost)

	e.produce(rec("in", 1, "k", "gone"), rec("in", 1, "k", "gone"), rec("in", 1, "k", "left"))
	require.NoError(t, e.admin.DeleteBefore(t.Context(), "in", map[int32]int64{1: 3}))
	r = e.start(spec, opts)
	seen.wait(t, "left", 1)
	e.waitDone(spec)
	require.Len(t, lost, 1) // told before anything is consumed
	require.Equal(t, Lost{Topic: "in", Partition: 1, From: 1, To: 3}, <-lost)
	require.Contains(t, e.log.String(), `"event":"records-lost","topic":"in","partition":1,"from":1,"to":3,"offsets":2`)
	require.NoError(t, r.stop())

	r = e.start(spec, opts)
	r.waitReady()
	require.NoError(t, r.stop())
	require.Empty(t, lost, "what was consumed since ended the gap")
}
