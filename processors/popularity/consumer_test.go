package popularity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/lovoo/goka"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/batch"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

const (
	viewID   = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a05"
	objectID = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a02"
	personal = "5ec3e700-0000-4000-8000-000000000001" // of UserId, AnonymousId and SessionId alike
)

// unused gives the embedded context another name than its method Context.
type unused = stream.Context

// rig is a consumer between a partition, whose table it keeps, and a sink that remembers.
type rig struct {
	*Consumer
	unused // the rest of stream.Context

	t       *testing.T
	now     time.Time
	log     bytes.Buffer
	table   []byte
	written [][]byte // every value written to the table
	tasks   []Task
	looped  []string // keys
	letters []deadletter.Letter
	settled []error // how each record's commit was released
	refuse  error   // of the sink and the letters
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, now: time.Now()} // the gauge of the lag reads the clock itself
	logger := slog.New(slog.NewJSONHandler(&r.log, nil))
	r.Consumer = New(Config{Group: "g", Hasher: "crc32", Codec: codecs.NewViewCodec([]string{"Catalog"}), Sink: viewSink{r}, Letters: viewLetters{r},
		Metrics: telemetry.NewPopularity(prometheus.NewRegistry(), []string{"Catalog"}), Tracing: telemetry.NoTracing(),
		Events: telemetry.NewEventLog(logger, 0, time.Now), Clock: func() time.Time { return r.now }})
	return r
}

func (r *rig) Context() context.Context                            { return r.t.Context() }
func (r *rig) Value() any                                          { return r.table }
func (r *rig) Incarnation() uint32                                 { return 7 }
func (r *rig) Home([]byte) int32                                   { return 3 }
func (r *rig) Loopback(key string, _ any, _ ...goka.ContextOption) { r.looped = append(r.looped, key) }
func (r *rig) DeferCommit() func(error) {
	return func(err error) { r.settled = append(r.settled, err) }
}
func (r *rig) Fail(err error) { require.NoError(r.t, err) }
func (r *rig) SetValue(v any, _ ...goka.ContextOption) {
	r.table = v.([]byte)
	r.written = append(r.written, r.table)
}
func (r *rig) record(value string) *record.Record {
	return &record.Record{ID: record.ID{Topic: "views", Partition: 3, Offset: 100}, Key: []byte(viewID), Value: []byte(value)}
}

// viewSink acknowledges each view at once, or takes none.
type viewSink struct{ *rig }

func (s viewSink) Submit(_ context.Context, item batch.Item[Task]) error {
	if s.refuse != nil {
		return s.refuse
	}
	s.tasks = append(s.tasks, item.Value)
	item.Done(nil)
	return nil
}

type viewLetters struct{ *rig }

func (s viewLetters) Submit(_ context.Context, l deadletter.Letter, done func(error)) error {
	if s.refuse != nil {
		return s.refuse
	}
	s.letters = append(s.letters, l)
	done(nil)
	return nil
}

// event is a sound view, changed by pairs of old and new text.
func (r *rig) event(change ...string) string {
	at := func(age time.Duration) string { return r.now.Add(-age).Format(time.RFC3339Nano) }
	return strings.NewReplacer(change...).Replace(fmt.Sprintf(`{"EventId":%q,"CreatedAt":%q,"ContractVersion":1,"Payload":{"PropertyObjectViewId":%[1]q,"PropertyObjectId":%[3]q,
		"SessionId":%[4]q,"AnonymousId":%[4]q,"UserId":%[4]q,"ViewSource":"Catalog","ViewedAt":%[5]q,"LastActivityAt":%[5]q,"DurationSeconds":42}}`,
		viewID, at(90*time.Second), objectID, personal, at(300*time.Second)))
}

// The local store survives a crash that the changelog record did not (E3): a redelivery that does not write leaves the next owner
// without a mark, and one that does not reach the sink loses the view.
func TestEveryRecordOfAViewWritesItsMarkAndReachesTheSink(t *testing.T) {
	r := newRig(t)
	first := r.record(r.event())
	r.Handle(r, first)
	require.Len(t, r.written, 1)
	mark, err := codecs.DecodeMark(r.written[0])
	require.NoError(t, err)
	require.Equal(t, codecs.Origin{Incarnation: 7, Partition: 3, Offset: 100}, mark.Origin)

	r.now = r.now.Add(time.Hour)
	r.Handle(r, first) // delivered again
	other := r.record(string(first.Value))
	other.Offset = 101 // the producer's repeat
	r.Handle(r, other)
	r.HandleLoop(r, &record.Record{ID: record.ID{Topic: "loop", Partition: 3, Offset: 5}, Value: codecs.EncodeRecord(other)})

	require.Equal(t, [][]byte{r.written[0], r.written[0], r.written[0], r.written[0]}, r.written, "the same state, each time")
	require.Equal(t, []error{nil, nil, nil, nil}, r.settled)
	require.Len(t, r.tasks, 4)
	for i, want := range []struct {
		kind   codecs.MarkKind
		origin codecs.Origin
	}{
		{codecs.MarkNone, mark.Origin}, {codecs.MarkOwn, mark.Origin},
		{codecs.MarkForeign, codecs.Origin{Incarnation: 7, Partition: 3, Offset: 101}},
		{codecs.MarkForeign, codecs.Origin{Incarnation: 7, Loop: true, Partition: 3, Offset: 5}},
	} {
		task := r.tasks[i]
		require.Equal(t, want.kind, task.Kind, i)
		require.Equal(t, want.origin, task.Origin, i)
		require.True(t, mark.At.Equal(task.MarkAt), i)
		require.Equal(t, r.tasks[0].View, task.View, "in full")
	}
	require.Same(t, first, r.tasks[1].Record)
	require.Equal(t, other.ID, r.tasks[3].Record.ID, "a dead letter is made of the original")
}

// Specification 002, Logs: dead-lettered carries the ids and what else is known, and no personal data.
func TestADeadLetterNamesItsView(t *testing.T) {
	r := newRig(t)
	r.Handle(r, r.record(r.event(`"ViewedAt"`, `"NotViewedAt"`)))
	r.Handle(r, r.record("no JSON"))
	require.Len(t, r.letters, 2)
	require.Equal(t, []slog.Attr{slog.String("property_object_view_id", viewID), slog.String("property_object_id", objectID),
		slog.String("view_source", "Catalog"), slog.Int64("duration_seconds", 42)}, r.letters[0].Attrs)
	require.Empty(t, r.letters[1].Attrs)
	require.Empty(t, r.written)
}

// D39: the lag is that of CreatedAt, or of LastActivityAt where that is missing.
func TestLagOfAView(t *testing.T) {
	for name, tt := range map[string]struct {
		change []string
		want   float64
	}{
		"CreatedAt":      {nil, 90},
		"LastActivityAt": {[]string{`"CreatedAt"`, `"NoCreatedAt"`}, 300},
		"unreadable":     {[]string{`"CreatedAt":"`, `"CreatedAt":"?`}, 300},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.Handle(r, r.record(r.event(tt.change...)))
			require.InDelta(t, tt.want, r.Metrics.Lag.Seconds()[3], 0.001)
		})
	}
}

// A view that the sink could not take comes again, and says nothing about the lag.
func TestAViewThatTheSinkDoesNotTakeComesAgain(t *testing.T) {
	r := newRig(t)
	r.refuse = errors.New("the session ended")
	r.Handle(r, r.record(r.event()))
	require.Equal(t, []error{r.refuse}, r.settled)
	require.Zero(t, r.Metrics.Lag.Seconds()[3])
}

// A faulty record whose letter could not be taken comes again: released as done it would have disappeared.
func TestAFaultyRecordWhoseLetterIsNotTakenComesAgain(t *testing.T) {
	r := newRig(t)
	r.refuse = errors.New("the session ended")
	r.Handle(r, r.record("{"))
	require.Equal(t, []error{r.refuse}, r.settled)
}

func TestWhatIsOddAboutAViewIsCountedAndWarnedOf(t *testing.T) {
	for name, tt := range map[string]struct {
		event   string
		change  []string
		prepare func(*rig, *record.Record)
		counter func(*telemetry.Popularity) prometheus.Counter
		says    string
	}{
		"another version": {event: "contract-mismatch", change: []string{`"ContractVersion":1`, `"ContractVersion":2`},
			counter: func(m *telemetry.Popularity) prometheus.Counter { return m.ContractMismatch }, says: `"contract_version":2`},
		"no version": {event: "contract-mismatch", change: []string{`"ContractVersion":1,`, ``},
			counter: func(m *telemetry.Popularity) prometheus.Counter { return m.ContractMismatch }, says: `"contract_version":0`},
		"unknown source": {event: "unknown-view-source", change: []string{`"Catalog"`, `"Somewhere"`},
			counter: func(m *telemetry.Popularity) prometheus.Counter { return m.UnknownViewSource }, says: viewID},
		"negative duration": {event: "negative-duration", change: []string{`42}`, `-42}`},
			counter: func(m *telemetry.Popularity) prometheus.Counter { return m.NegativeDuration }, says: `"duration_seconds":-42`},
		"damaged mark": {event: "state-unreadable", prepare: func(r *rig, _ *record.Record) { r.table = []byte("damaged") }, says: viewID},
		"another key": {event: "rekeyed", prepare: func(_ *rig, rec *record.Record) { rec.Key = []byte(strings.ToUpper(viewID)) },
			counter: func(m *telemetry.Popularity) prometheus.Counter { return m.Rekeyed }, says: "its Kafka key is not the PropertyObjectViewId"},
		"another partition": {event: "rekeyed", prepare: func(_ *rig, rec *record.Record) { rec.Partition = 1 },
			counter: func(m *telemetry.Popularity) prometheus.Counter { return m.KeyPartitionDiffer }, says: "set popularity.hasher (crc32)"},
	} {
		t.Run(name, func(t *testing.T) {
			sound := newRig(t)
			sound.Handle(sound, sound.record(sound.event()))
			r := newRig(t)
			rec := r.record(r.event(tt.change...))
			if tt.prepare != nil {
				tt.prepare(r, rec)
			}
			r.Handle(r, rec)
			line := `"event":"` + tt.event + `"`
			require.NotContains(t, sound.log.String(), line)
			require.Equal(t, 1, strings.Count(r.log.String(), line))
			require.Contains(t, r.log.String(), tt.says)
			require.NotContains(t, r.log.String(), personal)
			if tt.counter != nil {
				require.Zero(t, testutil.ToFloat64(tt.counter(sound.Metrics)))
				require.Equal(t, 1, int(testutil.ToFloat64(tt.counter(r.Metrics))))
			}
			if tt.event == "rekeyed" {
				require.Equal(t, 1, int(testutil.ToFloat64(r.Metrics.Rekeyed)))
				require.Equal(t, []string{viewID}, r.looped)
				require.Empty(t, r.tasks)
				require.Empty(t, r.written, "its state belongs to another partition")
				return
			}
			require.Len(t, r.tasks, 1, "processed all the same")
			require.Equal(t, uuid.MustParse(viewID), r.tasks[0].View.ViewID)
			require.Equal(t, codecs.MarkNone, r.tasks[0].Kind)
			require.Len(t, r.written, 1)
		})
	}
}
