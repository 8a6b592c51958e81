package batch

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pin-marketplace/vitrina/internal/backoff"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tests run in synctest bubbles: time is virtual and stands still while anything can run, so nothing here waits for
// the real clock and every interleaving of timers is exact.

func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

var errAway = errors.New("the database is away")

// db is a Flush whose behaviour a test sets.
type db struct {
	mu     sync.Mutex
	calls  [][]int
	at     []time.Time
	inside int
	fail   error
	hang   bool
	deaf   bool    // ignores the cancellation until freed
	ended  [][]int // the values of each flush as they were when it returned
	free   chan struct{}
}

func newDB() *db { return &db{free: make(chan struct{})} }

func (d *db) flush(ctx context.Context, values []int) error {
	d.mu.Lock()
	d.inside++
	overlap := d.inside > 1
	d.calls = append(d.calls, append([]int(nil), values...))
	d.at = append(d.at, time.Now())
	hang, deaf, free := d.hang, d.deaf, d.free
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.inside--
		d.ended = append(d.ended, append([]int(nil), values...))
		d.mu.Unlock()
	}()
	if overlap {
		return errors.New("two flushes at a time")
	}
	if hang {
		done := ctx.Done()
		if deaf {
			done = nil
		}
		select {
		case <-done:
			return ctx.Err()
		case <-free:
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fail
}

func (d *db) set(fail error, hang bool) { d.mu.Lock(); d.fail, d.hang = fail, hang; d.mu.Unlock() }

func (d *db) release() {
	d.mu.Lock()
	close(d.free)
	d.free, d.hang = make(chan struct{}), false
	d.mu.Unlock()
}

func (d *db) seen() [][]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([][]int(nil), d.calls...)
}

// ledger notes what Done was called with, in order.
type ledger struct {
	mu    sync.Mutex
	order []int
	errs  map[int][]error
}

func newLedger() *ledger { return &ledger{errs: map[int][]error{}} }

func (l *ledger) done(i int) func(error) {
	return func(err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.order = append(l.order, i)
		l.errs[i] = append(l.errs[i], err)
	}
}

func (l *ledger) settled() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]int(nil), l.order...)
}

func (l *ledger) of(i int) []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]error(nil), l.errs[i]...)
}

func config() Config {
	return Config{Name: "test", MaxItems: 3, MaxWait: 5 * time.Second, Buffer: 6, BufferBytes: 1 << 20, DrainTimeout: 5 * time.Second,
		Backoff: backoff.Config{Min: time.Second, Max: time.Minute}}
}

type rig struct {
	*Batcher[int]
	db     *db
	ledger *ledger
	stop   context.CancelFunc
	result chan error
	log    *bytes.Buffer
}

func start(t *testing.T, cfg Config, m Metrics) *rig {
	t.Helper()
	r := &rig{db: newDB(), ledger: newLedger(), result: make(chan error, 1), log: &bytes.Buffer{}}
	b, err := New(cfg, r.db.flush, slog.New(slog.NewJSONHandler(r.log, nil)), m)
	require.NoError(t, err)
	r.Batcher = b
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() { r.result <- b.Run(ctx) }()
	synctest.Wait()
	return r
}

func (r *rig) submit(t *testing.T, session context.Context, values ...int) {
	t.Helper()
	for _, v := range values {
		require.NoError(t, r.Submit(t.Context(), Item[int]{Value: v, Session: session, Done: r.ledger.done(v)}))
	}
	synctest.Wait()
}

func (r *rig) finish(t *testing.T) {
	t.Helper()
	r.stop()
	require.NoError(t, <-r.result)
}

func TestABatchIsFlushedWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		began := time.Now()
		r.submit(t, nil, 1, 2)
		require.Empty(t, r.db.seen())
		r.submit(t, nil, 3, 4)
		require.Equal(t, [][]int{{1, 2, 3}}, r.db.seen())
		require.Equal(t, []int{1, 2, 3}, r.ledger.settled())
		require.Equal(t, began, time.Now(), "a full batch waits for nothing")
		r.finish(t)
		require.Equal(t, [][]int{{1, 2, 3}, {4}}, r.db.seen(), "a stop flushes what waits")
		require.Equal(t, []error{nil}, r.ledger.of(4))
	})
}

func TestABatchIsFlushedAtTheIntervalFromItsFirstItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		advance(4 * time.Second) // an empty batch has no age
		r.submit(t, nil, 1)
		advance(4 * time.Second)
		r.submit(t, nil, 2) // must not postpone it
		advance(999 * time.Millisecond)
		require.Empty(t, r.db.seen())
		advance(time.Millisecond)
		require.Equal(t, [][]int{{1, 2}}, r.db.seen())
		r.finish(t)
	})
}

func TestTheNextBatchesIntervalCountsFromItsOwnFirstItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		r.db.set(nil, true)
		r.submit(t, nil, 1, 2, 3)
		advance(time.Second)
		r.submit(t, nil, 4) // comes while the first batch is being flushed
		advance(time.Second)
		r.db.release()
		advance(2999 * time.Millisecond)
		require.Equal(t, [][]int{{1, 2, 3}}, r.db.seen())
		advance(time.Millisecond + 1)
		require.Equal(t, [][]int{{1, 2, 3}}, r.db.seen(), "4 has waited for 4 s only")
		advance(time.Second)
		require.Equal(t, [][]int{{1, 2, 3}, {4}}, r.db.seen())
		r.finish(t)
	})
}

func TestAFailedBatchComesAgainFrozenWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		retries := 0
		r := start(t, config(), Metrics{Retry: func() { retries++ }})
		r.db.set(errAway, false)
		r.submit(t, nil, 1, 2, 3, 4, 5)
		advance(10 * time.Minute)
		calls := len(r.db.seen())
		require.Greater(t, calls, 10, "1 s to 60 s: about 14 tries in ten minutes")
		require.Less(t, calls, 20)
		for _, c := range r.db.seen() {
			require.Equal(t, []int{1, 2, 3}, c, "later items never join a frozen batch")
		}
		for i := 1; i < len(r.db.at); i++ {
			gap := r.db.at[i].Sub(r.db.at[i-1])
			low, high := min(time.Second<<(i-1), time.Minute), min(time.Second<<(i-1), time.Minute)
			require.GreaterOrEqual(t, gap, low*8/10-time.Millisecond, "try %d", i)
			require.LessOrEqual(t, gap, high*12/10+time.Millisecond, "try %d", i)
		}
		require.Empty(t, r.ledger.settled())
		r.db.set(nil, false)
		advance(80 * time.Second)
		require.Equal(t, []int{1, 2, 3, 4, 5}, r.ledger.settled())
		require.GreaterOrEqual(t, retries, calls-1)
		r.finish(t)
	})
}

func TestAnOutageIsOneLineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.Backoff.Max = 2 * time.Second
		r := start(t, cfg, Metrics{})
		r.db.set(errAway, false)
		r.submit(t, nil, 1, 2, 3)
		advance(10*time.Minute + time.Second)
		r.db.set(nil, false)
		advance(5 * time.Second)
		r.finish(t)
		failed := strings.Count(r.log.String(), `"event":"failed"`)
		require.GreaterOrEqual(t, failed, 10)
		require.LessOrEqual(t, failed, 11)
		require.Equal(t, 1, strings.Count(r.log.String(), `"event":"recovered"`))
		require.Contains(t, r.log.String(), "the database is away")
	})
}

func TestBackpressureBlocksAndTheBufferIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		r.db.set(nil, true)
		blocked := make(chan error, 1)
		go func() {
			for v := range 20 {
				if err := r.Submit(t.Context(), Item[int]{Value: v, Done: r.ledger.done(v)}); err != nil {
					blocked <- err
					return
				}
			}
			blocked <- nil
		}()
		advance(time.Hour)
		require.Equal(t, 6, r.Waiting(), "the buffer, beside the three being flushed")
		require.Len(t, r.db.seen(), 1)
		r.db.release()
		synctest.Wait()
		require.NoError(t, <-blocked)
		advance(5 * time.Second)
		require.Len(t, r.ledger.settled(), 20)
		for i, v := range r.ledger.settled() {
			require.Equal(t, i, v)
		}
		r.finish(t)
	})
}

func TestABlockedSubmitEndsWithItsContextItsSessionOrTheBatcher(t *testing.T) {
	for _, by := range []string{"context", "session", "stop"} {
		t.Run(by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, config(), Metrics{})
				r.db.set(nil, true)
				r.submit(t, nil, 1, 2, 3, 4, 5, 6, 7, 8, 9)
				ctx, endCtx := context.WithCancelCause(t.Context())
				session, endSession := context.WithCancelCause(t.Context())
				defer endCtx(nil)
				defer endSession(nil)
				result := make(chan error, 1)
				go func() { result <- r.Submit(ctx, Item[int]{Value: 10, Session: session, Done: r.ledger.done(10)}) }()
				advance(time.Minute)
				require.Empty(t, result)
				switch why := errors.New("given up"); by {
				case "context":
					endCtx(why)
					require.ErrorIs(t, <-result, why)
				case "session":
					endSession(why)
					require.ErrorIs(t, <-result, why)
				case "stop":
					began := time.Now()
					r.stop()
					err := <-result
					require.Equal(t, began, time.Now(), "not only when the flush under way has ended")
					require.ErrorIs(t, err, ErrStopped)
					require.ErrorIs(t, err, ErrAbandoned)
				}
				r.db.release()
				r.finish(t)
				require.Empty(t, r.ledger.of(10), "Done belongs to accepted items alone")
				require.Len(t, r.ledger.settled(), 9)
			})
		})
	}
}

func TestSubmitRefusesAnEndedSessionAndAStoppedBatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		ended, end := context.WithCancel(t.Context())
		end()
		require.ErrorIs(t, r.Submit(t.Context(), Item[int]{Session: ended, Done: r.ledger.done(0)}), context.Canceled)
		r.finish(t)
		require.ErrorIs(t, r.Submit(t.Context(), Item[int]{Done: r.ledger.done(0)}), ErrStopped)
		require.Empty(t, r.ledger.settled())
		require.ErrorContains(t, r.Run(t.Context()), "runs once")
	})
}

func TestConfigErrorsSayWhatToDo(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"batch size (0)":             func(c *Config) { c.MaxItems = 0 },
		"interval (0s)":              func(c *Config) { c.MaxWait = 0 },
		"must hold at least one":     func(c *Config) { c.Buffer = 2 },
		"buffer's bytes (0)":         func(c *Config) { c.BufferBytes = 0 },
		"drain timeout (0s)":         func(c *Config) { c.DrainTimeout = 0 },
		"backoff.min (0s) must be a": func(c *Config) { c.Backoff.Min = 0 },
	} {
		cfg := config()
		change(&cfg)
		_, err := New(cfg, newDB().flush, slog.New(slog.DiscardHandler), Metrics{})
		require.ErrorContains(t, err, name)
	}
}
