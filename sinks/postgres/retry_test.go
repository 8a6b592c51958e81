package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

func TestALateViewCountsWhenItsCardComes(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	require.NoError(t, e.flush(view("1", "o", at(0, 0)), view("2", "o", at(0, 1)), view("3", "gone", at(0, 2)), view("4", "orphan", at(0, 3))))
	e.object("o", "p", "Hidden")
	e.object("gone", "p", "Delisted")
	e.object("orphan", "nowhere", "Published")
	n, _, err := e.worker.Retry(t.Context())
	require.NoError(t, err)
	require.Zero(t, n, "not due")
	e.shift(30 * time.Second)
	n, counted, err := e.worker.Retry(t.Context())
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Equal(t, 3, counted)
	require.EqualValues(t, 2, e.objectViews(t, "o"))
	require.EqualValues(t, 2, e.projectViews(t, "p"))
	require.Equal(t, StateCounted, e.state(t, "1"))
	require.Equal(t, StateSkippedDelisted, e.state(t, "3"))
	require.Contains(t, e.line("skipped-delisted", "3"), `"project_id":"`+named("p").String()+`"`)
	require.Equal(t, 3, e.counts.get("counted Catalog"))
	require.Equal(t, 1, e.counts.get("project missing"))
	require.Equal(t, 1, e.counts.get("delisted"))
	require.NoError(t, e.flush(view("1", "o", at(0, 0)), marked(view("2", "o", at(1, 1)), time.Now())))
	require.EqualValues(t, 2, e.objectViews(t, "o"), "neither again nor by another record")
	late, err := ReadLateViews(t.Context(), e.pool)
	require.NoError(t, err)
	require.Equal(t, LateViews{}, late)
}

func TestADeadViewsLetterIsTheRecordAsItCame(t *testing.T) {
	e := newViewsEnv(t)
	item := view("1", "o", codecs.Origin{Incarnation: 3, Loop: true, Partition: 4, Offset: 99})
	item.Record = &record.Record{
		ID: record.ID{Topic: "views", Partition: 2, Offset: 17}, Value: []byte(`{"a":1}`), Timestamp: time.Unix(1700000000, 5).UTC(),
		Headers: []record.Header{{Key: "x", Value: []byte("1")}, {Key: "x"}},
	}
	require.NoError(t, e.flush(item))
	e.retryAll(t, "1")
	require.Equal(t, StateDead, e.state(t, "1"))
	n, err := e.worker.WriteLetters(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	letter := e.letters.written[0]
	require.Equal(t, item.Record, letter.Record)
	require.Equal(t, codecs.CodePropertyObjectNotFound, letter.Code)
	require.Equal(t, letterAttrs(named("1"), named("o"), "Catalog", 42), letter.Attrs, "specification 002, Logs")
	require.Equal(t, 1+len(viewDelays), letter.Attempts)
	require.Regexp(t, fmt.Sprintf(`^view %s: property object %s has no card after 4 tries in 00:03:3\d$`, named("1"), named("o")), letter.Reason)
	n, err = e.worker.WriteLetters(t.Context())
	require.NoError(t, err)
	require.Zero(t, n, "noted as sent")

	v, found, err := ReadView(t.Context(), e.pool, named("1"))
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "loop", v.Topic)
	require.True(t, v.Loop)
	require.EqualValues(t, 4, v.Partition)
	require.EqualValues(t, 99, v.Offset)
	require.Equal(t, named("o"), v.ObjectID)
	require.Equal(t, string(codecs.CodePropertyObjectNotFound), v.Late.Code)
	require.False(t, v.Late.LetterDue)
}

func TestACrashRepeatsALetterAndLosesNone(t *testing.T) {
	e := newViewsEnv(t)
	e.die(t, "1", "o")

	e.letters.fail = errors.New("Kafka is away")
	_, err := e.worker.WriteLetters(t.Context())
	require.ErrorContains(t, err, "Kafka is away")
	require.Empty(t, e.letters.keys())
	_, err = e.worker.WriteLetters(t.Context())
	require.NoError(t, err, "leased: nobody writes it twice while one may still be at it")
	e.letters.fail = nil
	e.shift(2 * time.Minute)

	// The letter is written, the instance dies before it is noted.
	ctx, crash := context.WithCancel(t.Context())
	defer crash()
	worker := *e.worker
	worker.letters = lettersThen{e.letters, crash}
	_, err = worker.WriteLetters(ctx)
	require.Error(t, err)
	require.Equal(t, []string{"1"}, e.letters.keys())
	e.shift(2 * time.Minute)
	_, err = e.worker.WriteLetters(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"1", "1"}, e.letters.keys())
	late, err := ReadLateViews(t.Context(), e.pool)
	require.NoError(t, err)
	require.Equal(t, LateViews{Dead: 1}, late)
}

func TestAnUnreadableRecordHoldsUpNoOtherLetter(t *testing.T) {
	e := newViewsEnv(t)
	require.NoError(t, e.flush(view("1", "o", at(0, 0)), view("2", "o", at(0, 1))))
	e.retryAll(t, "1")
	exec(t, e.pool, `UPDATE vitrina.late_views SET record = '\xff' WHERE view_id = $1`, named("1"))
	_, err := e.worker.WriteLetters(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"2"}, e.letters.keys())
	late, err := ReadLateViews(t.Context(), e.pool)
	require.NoError(t, err)
	require.EqualValues(t, 1, late.LettersDue)
	require.Contains(t, e.log.String(), `"event":"letter-unreadable"`)
}

func TestWorkersOfSeveralInstancesShareTheWork(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	const views = 600
	var items []ViewItem
	for i := range views {
		items = append(items, view(fmt.Sprint("v", i), fmt.Sprint("o", i%20), at(0, int64(i))))
	}
	require.NoError(t, e.flush(items...))
	for i := range 10 { // the other half has no card
		e.object(fmt.Sprint("o", 2*i), "p", "Published")
	}
	for range viewDelays {
		e.shift(2 * time.Minute)
		g, ctx := errgroup.WithContext(t.Context())
		for range 3 {
			worker := e.newWorker(e.sink.cfg.Epoch)
			worker.cfg.Batch = 37
			g.Go(func() error {
				for {
					if n, _, err := worker.Retry(ctx); err != nil || n == 0 {
						return err
					}
				}
			})
		}
		require.NoError(t, g.Wait())
	}
	for { // a worker stops early when the views that it found due are another's
		if n, _, err := e.worker.Retry(t.Context()); n == 0 {
			require.NoError(t, err)
			break
		}
	}
	require.EqualValues(t, views/2, e.projectViews(t, "p"))
	require.EqualValues(t, views/20, e.objectViews(t, "o0"))
	g, ctx := errgroup.WithContext(t.Context())
	for range 3 {
		worker := e.newWorker(e.sink.cfg.Epoch)
		worker.cfg.Batch = 41
		g.Go(func() error {
			for {
				if n, err := worker.WriteLetters(ctx); err != nil || n == 0 {
					return err
				}
			}
		})
	}
	require.NoError(t, g.Wait())
	require.Len(t, e.letters.keys(), views/2, "each letter once")
}

func TestTheWorkerRunsUntilItIsStopped(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	e.object("o", "p", "Published")
	require.NoError(t, e.flush(view("1", "late", at(0, 0)), view("2", "o", at(0, 1))))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var once sync.Once
	numbers := make(chan LateViews, 1)
	e.worker.hooks.Late = func(l LateViews, _ time.Time) { once.Do(func() { numbers <- l }) }
	ended := make(chan error, 1)
	go func() { ended <- e.worker.Run(ctx) }()
	late := <-numbers
	require.EqualValues(t, 1, late.Pending)
	require.WithinDuration(t, time.Now(), late.OldestPending, time.Minute)

	e.letters.mu.Lock()
	e.letters.fail = errors.New("Kafka is away")
	e.letters.mu.Unlock()
	for range viewDelays {
		before := e.counts.get("retries")
		e.shift(2 * time.Minute)
		require.Eventually(t, func() bool { return e.counts.get("retries") > before }, 20*time.Second, 2*time.Millisecond)
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) { require.Equal(c, StateDead, e.state(c, "1")) }, 20*time.Second, 2*time.Millisecond)
	require.Eventually(t, func() bool { return strings.Contains(e.log.String(), `"event":"retry-waits"`) }, 20*time.Second, 2*time.Millisecond)
	due := func(t require.TestingT) (n int) {
		require.NoError(t, e.pool.QueryRow(e.tb.Context(), `SELECT count(*) FROM vitrina.late_views WHERE letter_due IS NOT NULL`).Scan(&n))
		return n
	}
	require.Equal(t, 1, due(t))
	e.letters.mu.Lock()
	e.letters.fail = nil
	e.letters.mu.Unlock()
	require.EventuallyWithT(t, func(c *assert.CollectT) { e.shift(2 * time.Minute); require.Zero(c, due(c)) }, 20*time.Second, 5*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}

// lettersThen calls then after each write.
type lettersThen struct {
	*viewLetters
	then func()
}

func (l lettersThen) Write(ctx context.Context, letters ...deadletter.Letter) error {
	err := l.viewLetters.Write(ctx, letters...)
	l.then()
	return err
}
