package postgres

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

var viewDelays = []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute}

// viewsEnv is a ledger in a database of its own, with one sink and one worker of the present epoch, a dead-letter topic in memory
// and a group whose offsets the test sets.
type viewsEnv struct {
	tb       testing.TB
	pool     *pgxpool.Pool
	log      *lockedBuffer
	events   *telemetry.EventLog
	letters  *viewLetters
	progress *fakeProgress
	counts   *hookCounts
	sink     *ViewsSink
	worker   *RetryWorker
}

func newViewsEnv(t testing.TB) *viewsEnv { return newViewsEnvOn(t, migrated(t)) }

func newViewsEnvOn(t testing.TB, pool *pgxpool.Pool) *viewsEnv {
	t.Helper()
	e := &viewsEnv{tb: t, pool: pool, log: new(lockedBuffer), letters: new(viewLetters), progress: new(fakeProgress), counts: &hookCounts{values: map[string]int{}}}
	e.events = telemetry.NewEventLog(slog.New(slog.NewJSONHandler(e.log, nil)), 0, time.Now)
	e.restart()
	return e
}

// restart makes sink and worker anew for the epoch as it is.
func (e *viewsEnv) restart() {
	e.tb.Helper()
	p, err := ReadProjection(e.tb.Context(), e.pool, Popularity)
	require.NoError(e.tb, err)
	e.sink, err = NewViewsSink(e.pool, ViewsConfig{Epoch: p.Epoch, SourceTopic: "views", LoopTopic: "loop", FirstTry: viewDelays[0]}, e.letters, e.counts.metrics(), e.events)
	require.NoError(e.tb, err)
	e.worker = e.newWorker(p.Epoch)
}

func (e *viewsEnv) newWorker(epoch int64) *RetryWorker {
	w, err := NewRetryWorker(e.pool, RetryConfig{Epoch: epoch, Delays: viewDelays, Poll: 5 * time.Millisecond, Backoff: backoff.Config{Min: time.Millisecond, Max: 5 * time.Millisecond}},
		e.letters, e.counts.metrics(), RetryHooks{}, e.events, slog.New(slog.NewJSONHandler(e.log, nil)), time.Now)
	require.NoError(e.tb, err)
	return w
}

func (e *viewsEnv) newPruner(window time.Duration) *Pruner {
	p, err := NewPruner(e.pool, PruneConfig{Epoch: e.sink.cfg.Epoch, Window: window, Margin: 5 * time.Minute, Pages: 1, Pause: time.Nanosecond}, e.progress,
		slog.New(slog.DiscardHandler), time.Now)
	require.NoError(e.tb, err)
	return p
}

// named makes a stable id from a name.
func named(name string) uuid.UUID {
	sum := sha256.Sum256([]byte(name))
	return uuid.UUID(sum[:16])
}

func (e *viewsEnv) object(name, project, status string) {
	e.tb.Helper()
	exec(e.tb, e.pool, `INSERT INTO catalog.property_object_cards (id, project_id, status) VALUES ($1, $2, $3)
		ON CONFLICT (id) DO UPDATE SET status = excluded.status, project_id = excluded.project_id`, named(name), named(project), status)
}

func (e *viewsEnv) project(name, status string) {
	e.tb.Helper()
	exec(e.tb, e.pool, `INSERT INTO catalog.project_cards (id, status) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET status = excluded.status`, named(name), status)
}

// at is the origin of a record of the source topic.
func at(partition int32, offset int64) codecs.Origin {
	return codecs.Origin{Incarnation: 1, Partition: partition, Offset: offset}
}

// view makes an item without mark.
func view(name, object string, origin codecs.Origin) ViewItem {
	topic := "views"
	if origin.Loop {
		topic = "loop"
	}
	return ViewItem{
		ViewID: named(name), ObjectID: named(object), Origin: origin, Kind: codecs.MarkNone, ViewSource: "Catalog", DurationSeconds: 42,
		Record: &record.Record{ID: record.ID{Topic: topic, Partition: origin.Partition, Offset: origin.Offset}, Key: []byte(name), Value: []byte(`{"view":"` + name + `"}`)},
	}
}

// marked gives an item a mark by another record.
func marked(item ViewItem, markedAt time.Time) ViewItem {
	item.Kind, item.MarkAt = codecs.MarkForeign, markedAt
	return item
}

func (e *viewsEnv) flush(items ...ViewItem) error { return e.sink.Flush(e.tb.Context(), items) }

func (e *viewsEnv) views(t require.TestingT, table, name string) int64 {
	var n int64
	require.NoError(t, e.pool.QueryRow(e.tb.Context(), `SELECT popularity_views FROM catalog.`+table+` WHERE id = $1`, named(name)).Scan(&n))
	return n
}

func (e *viewsEnv) objectViews(t require.TestingT, name string) int64 {
	return e.views(t, "property_object_cards", name)
}

func (e *viewsEnv) projectViews(t require.TestingT, name string) int64 {
	return e.views(t, "project_cards", name)
}

// line is the last line of an event about a view.
func (e *viewsEnv) line(event, view string) string {
	e.tb.Helper()
	last := ""
	for line := range strings.Lines(e.log.String()) {
		if strings.Contains(line, `"event":"`+event+`"`) && strings.Contains(line, `"property_object_view_id":"`+named(view).String()+`"`) {
			last = line
		}
	}
	require.NotEmpty(e.tb, last, "no line %s about view %s", event, view)
	return last
}

// state is a view's state in the ledger, empty where it has no row.
func (e *viewsEnv) state(t require.TestingT, name string) string {
	v, found, err := ReadView(e.tb.Context(), e.pool, named(name))
	require.NoError(t, err)
	if !found {
		return ""
	}
	return v.State
}

// shift lets time pass: everything that the ledger has written moves into the past.
func (e *viewsEnv) shift(d time.Duration) {
	e.tb.Helper()
	exec(e.tb, e.pool, `WITH
		v AS (UPDATE vitrina.views SET at = at - $1::interval),
		l AS (UPDATE vitrina.late_views SET since = since - $1::interval, next_try = next_try - $1::interval, letter_due = letter_due - $1::interval),
		h AS (UPDATE vitrina.horizons SET seen_at = seen_at - $1::interval)
		UPDATE vitrina.views_ledger SET pruned_before = pruned_before - $1::interval, marks_before = marks_before - $1::interval, previous_at = previous_at - $1::interval,
			checkpoint_at = checkpoint_at - $1::interval, checkpoint_marks = checkpoint_marks - $1::interval, safe_before = safe_before - $1::interval,
			safe_marks = safe_marks - $1::interval, passed_at = passed_at - $1::interval`, d)
}

// retryAll lets each wait pass and retries, until the view is not pending any more.
func (e *viewsEnv) retryAll(t require.TestingT, name string) {
	for _, delay := range viewDelays {
		if e.state(t, name) != StatePending {
			return
		}
		e.shift(delay)
		_, _, err := e.worker.Retry(e.tb.Context())
		require.NoError(t, err)
	}
}

// viewLetters is the dead-letter topic.
type viewLetters struct {
	mu      sync.Mutex
	written []deadletter.Letter
	fail    error
	before  func() // called before letters are taken
}

func (b *viewLetters) Write(ctx context.Context, letters ...deadletter.Letter) error {
	if b.before != nil {
		b.before()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := errors.Join(b.fail, ctx.Err()); err != nil {
		return err
	}
	b.written = append(b.written, letters...)
	return nil
}

func (b *viewLetters) keys() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var keys []string
	for _, l := range b.written {
		keys = append(keys, string(l.Record.Key))
	}
	return keys
}

// fakeProgress is the group's offsets.
type fakeProgress struct {
	mu    sync.Mutex
	lanes []LaneProgress
	err   error
}

func (p *fakeProgress) ViewProgress(context.Context) ([]LaneProgress, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]LaneProgress(nil), p.lanes...), p.err
}

// set replaces the offsets: committed and end of partitions 0, 1, … of the source topic.
func (p *fakeProgress) set(offsets ...[2]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lanes = nil
	for i, o := range offsets {
		p.lanes = append(p.lanes, LaneProgress{Lane: Lane{Incarnation: 1, Partition: int32(i), Topic: "views"}, Committed: o[0], End: o[1]})
	}
}

// hookCounts sums what the hooks hear.
type hookCounts struct {
	mu     sync.Mutex
	values map[string]int
}

func (c *hookCounts) add(name string) func(int) {
	return func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.values[name] += n
	}
}

func (c *hookCounts) get(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.values[name]
}

func (c *hookCounts) metrics() ViewsMetrics {
	return ViewsMetrics{
		Counted:    func(source string, n int) { c.add("counted " + source)(n) },
		Duplicates: c.add("duplicates"), Delisted: c.add("delisted"), NotFound: c.add("not found"),
		ProjectMissing: c.add("project missing"), Retries: c.add("retries"),
	}
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// mutate rewrites a function of the schema: a rule taken out.
func mutate(t testing.TB, q Querier, function, old, replacement string) {
	t.Helper()
	source := scalar[string](t.Context(), t, q, `SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE n.nspname = 'vitrina' AND p.proname = $1`, function)
	require.Contains(t, source, old, "the rule is not where the test looks for it")
	exec(t, q, strings.ReplaceAll(source, old, replacement))
}

// outcome runs a scenario and returns what it complains of.
func outcome(scenario func(require.TestingT)) error {
	r := new(complaints)
	done := make(chan struct{})
	go func() {
		defer close(done)
		scenario(r)
	}()
	<-done
	return r.err
}

// complaints is a require.TestingT that ends its goroutine only.
type complaints struct{ err error }

func (c *complaints) Errorf(format string, args ...any) {
	c.err = errors.Join(c.err, fmt.Errorf(format, args...))
}

func (c *complaints) FailNow() { runtime.Goexit() }
