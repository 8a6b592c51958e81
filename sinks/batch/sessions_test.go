package batch

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheEndOfASessionFlushesWhatWaitsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		a, endA := context.WithCancel(t.Context())
		b, endB := context.WithCancel(t.Context())
		defer endB()
		began := time.Now()
		r.submit(t, a, 1)
		r.submit(t, b, 2)
		endA()
		synctest.Wait()
		require.Equal(t, [][]int{{1, 2}}, r.db.seen())
		require.Equal(t, []error{nil}, r.ledger.of(1), "it was durable before the partition went")
		require.Equal(t, began, time.Now())
		r.submit(t, b, 3)
		advance(4 * time.Second)
		require.Len(t, r.db.seen(), 1, "the hurry is over")
		r.finish(t)
	})
}

func TestInAnOutageEndedSessionsAreReleasedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		r.db.set(errAway, false)
		a, endA := context.WithCancel(t.Context())
		b, endB := context.WithCancel(t.Context())
		defer endB()
		r.submit(t, a, 1, 2)
		r.submit(t, b, 3)    // the frozen batch is a, a, b
		r.submit(t, a, 4, 5) // these wait
		r.submit(t, b, 6)
		advance(time.Minute)
		began := time.Now()
		endA()
		synctest.Wait()
		require.Equal(t, began, time.Now())
		require.ElementsMatch(t, []int{1, 2, 4, 5}, r.ledger.settled())
		for _, v := range r.ledger.settled() {
			require.ErrorIs(t, r.ledger.of(v)[0], ErrAbandoned)
		}
		r.db.set(nil, false)
		advance(2 * time.Minute)
		calls := r.db.seen()
		require.Equal(t, []int{3}, calls[len(calls)-2])
		require.Equal(t, []int{6}, calls[len(calls)-1])
		require.Equal(t, []error{nil}, r.ledger.of(6))
		r.finish(t)
	})
}

// The room that an ended session leaves is another partition's: if nobody told it, it would wait for ever, since nothing is left to
// flush that would.
func TestTheRoomOfAnEndedSessionIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		r.db.set(errAway, false)
		a, endA := context.WithCancel(t.Context())
		r.submit(t, a, 1, 2, 3, 4, 5, 6, 7, 8, 9) // a frozen batch and a full buffer
		other := make(chan error, 1)
		go func() { other <- r.Submit(t.Context(), Item[int]{Value: 10, Done: r.ledger.done(10)}) }()
		advance(time.Minute)
		require.Empty(t, other)
		endA()
		synctest.Wait()
		require.Len(t, r.ledger.settled(), 9)
		require.Len(t, other, 1, "there is room")
		require.NoError(t, <-other)
		r.db.set(nil, false)
		advance(5 * time.Second)
		require.Equal(t, []error{nil}, r.ledger.of(10))
		r.finish(t)
	})
}

func TestAFlushUnderWayKeepsTheValuesOfItemsThatAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		r.db.hang, r.db.deaf = true, true
		a, endA := context.WithCancel(t.Context())
		r.submit(t, a, 1)
		r.submit(t, nil, 2)
		r.submit(t, a, 3)
		endA()
		advance(5 * time.Second)
		require.Equal(t, []int{1, 3}, r.ledger.settled())
		r.db.release()
		synctest.Wait()
		require.Equal(t, [][]int{{1, 2, 3}}, r.db.ended, "it may read them until it returns")
		require.Equal(t, []error{nil}, r.ledger.of(2))
		r.finish(t)
	})
}

func TestABatchOfEndedSessionsIsDroppedAndTheNextGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		r.db.set(errAway, false)
		a, endA := context.WithCancel(t.Context())
		r.submit(t, a, 1, 2, 3)
		advance(3 * time.Minute)
		endA()
		synctest.Wait()
		require.Len(t, r.ledger.settled(), 3)
		tries := len(r.db.seen())
		advance(10 * time.Minute)
		require.Len(t, r.db.seen(), tries, "nothing is left to try")
		r.db.set(nil, false)
		r.submit(t, nil, 7, 8, 9)
		require.Equal(t, []error{nil}, r.ledger.of(9), "no backoff is left over for the next batch")
		r.finish(t)
	})
}

func TestAHangingFlushHoldsAnEndedSessionNoLongerThanTheDrainTimeout(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf=%v", deaf), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, config(), Metrics{})
				r.db.hang, r.db.deaf = true, deaf
				a, endA := context.WithCancel(t.Context())
				b, endB := context.WithCancel(t.Context())
				r.submit(t, a, 1)
				r.submit(t, b, 2)
				r.submit(t, a, 3)
				r.submit(t, a, 4)
				endA()
				advance(5*time.Second - 1)
				require.Empty(t, r.ledger.settled(), "the flush may still succeed")
				advance(1)
				require.Equal(t, []int{1, 3, 4}, r.ledger.settled())
				endB()
				advance(5 * time.Second)
				require.Equal(t, []int{1, 3, 4, 2}, r.ledger.settled())
				if deaf {
					r.db.release()
				}
				r.db.set(nil, false)
				r.submit(t, nil, 5, 6, 7)
				require.Equal(t, []error{nil}, r.ledger.of(5), "the hanging flush was cancelled once nobody waited for it")
				r.finish(t)
			})
		})
	}
}

func TestAFlushThatSucceedsWithinTheDrainTimeoutCountsForAnEndedSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		r.db.set(nil, true)
		a, endA := context.WithCancel(t.Context())
		r.submit(t, a, 1, 2, 3)
		endA()
		advance(4 * time.Second)
		r.db.release()
		synctest.Wait()
		require.Equal(t, []error{nil}, r.ledger.of(1))
		r.finish(t)
	})
}

func TestAFatalErrorSettlesTheBatchWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := 0
		r := start(t, config(), Metrics{Over: func() { over++ }})
		epoch := fmt.Errorf("the projection's epoch is 8, this sink was started with 7: %w", ErrFatal)
		r.db.set(epoch, false)
		r.submit(t, nil, 1, 2, 3)
		require.Len(t, r.db.seen(), 1)
		for v := 1; v <= 3; v++ {
			require.Equal(t, []error{epoch}, r.ledger.of(v))
		}
		r.db.set(nil, false)
		r.submit(t, nil, 4, 5, 6)
		require.Equal(t, []error{nil}, r.ledger.of(4))
		r.finish(t)
		require.Equal(t, 2, over)
	})
}

func TestAStopTriesOnceMoreAndAbandonsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		r.db.set(errAway, false)
		r.submit(t, nil, 1, 2, 3, 4, 5, 6, 7)
		advance(time.Minute)
		before := len(r.db.seen())
		began := time.Now()
		r.finish(t)
		require.Equal(t, began, time.Now(), "a database that refuses at once holds nobody up")
		require.Equal(t, [][]int{{1, 2, 3}, {4, 5, 6}, {7}}, r.db.seen()[before:])
		for v := 1; v <= 7; v++ {
			require.Len(t, r.ledger.of(v), 1)
			require.ErrorIs(t, r.ledger.of(v)[0], ErrAbandoned)
		}
	})
}

func TestAStopIsOverAfterTheDrainTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		r.db.set(nil, true)
		r.submit(t, nil, 1, 2, 3, 4, 5, 6, 7)
		advance(time.Minute)
		began := time.Now()
		r.finish(t)
		require.Equal(t, 5*time.Second, time.Since(began))
		require.Len(t, r.db.seen(), 1)
		require.Len(t, r.ledger.settled(), 7)
	})
}

func TestSessionsLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		parent, end := context.WithCancel(t.Context())
		defer end()
		type key struct{}
		for v := range 300 {
			r.submit(t, context.WithValue(parent, key{}, v), v)
		}
		require.LessOrEqual(t, len(r.sessions.live), 1, "contexts of one session share one watch")
		for v := range 300 {
			one, endOne := context.WithCancel(parent)
			r.submit(t, one, 1000+v)
			advance(5 * time.Second)
			endOne()
		}
		require.Empty(t, r.sessions.live)
		r.finish(t)
		require.Len(t, r.ledger.settled(), 600)
	})
}

// counted is a context that counts the functions waiting for its end.
type counted struct {
	context.Context
	watching *int
}

// Value hides the standard context below, or AfterFunc would not be asked.
func (c counted) Value(any) any { return nil }

func (c counted) AfterFunc(f func()) func() bool {
	*c.watching++
	stop := context.AfterFunc(c.Context, f)
	return func() bool { *c.watching--; return stop() }
}

func TestAWatchEndsWithTheLastItemOfItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, config(), Metrics{})
		watching := 0
		session := counted{t.Context(), &watching}
		r.submit(t, session, 1, 2)
		require.Equal(t, 1, watching)
		r.submit(t, session, 3)
		require.Zero(t, watching, "a session that lives for days must not gather watches")
		r.finish(t)
	})
}
