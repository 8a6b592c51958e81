package batch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func (r *rig) heldBytes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// Bounded in items alone, a buffer of 20,000 held 900 MB of large records while the database was away.
func TestAnOutageHoldsNoMoreBytesThanTheBufferHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.MaxItems, cfg.Buffer, cfg.BufferBytes = 1000, 1000, 100
		r := start(t, cfg, Metrics{})
		r.db.set(errAway, false)
		lost, lose := context.WithCancelCause(t.Context())
		taken, refused := 0, make(chan error, 1)
		go func() {
			for v := 0; ; v++ {
				if err := r.Submit(t.Context(), Item[int]{Value: v, Size: 9, Session: lost, Done: r.ledger.done(v)}); err != nil {
					refused <- err
					return
				}
				taken++
			}
		}()
		advance(10 * time.Minute)
		require.Equal(t, 12, taken, "the twelfth goes over the bound")
		require.Equal(t, 12*9, r.heldBytes(), "what is being flushed counts too")

		// What ended sessions leave, others may have.
		blocked := make(chan error, 1)
		go func() { blocked <- r.Submit(t.Context(), Item[int]{Value: 100, Size: 500, Done: r.ledger.done(100)}) }()
		synctest.Wait()
		require.Empty(t, blocked)
		why := errors.New("another instance has the partition")
		lose(why)
		require.ErrorIs(t, <-refused, why)
		require.NoError(t, <-blocked, "an empty buffer takes an item of any size")
		r.db.set(nil, false)
		advance(2 * time.Minute)
		require.Equal(t, []error{nil}, r.ledger.of(100))
		require.Zero(t, r.heldBytes())
		r.finish(t)
	})
}

// A batch of large records would be more for the database than a batch of many.
func TestABatchIsFullAtHalfOfTheBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.MaxItems, cfg.Buffer, cfg.BufferBytes = 1000, 1000, 100
		r := start(t, cfg, Metrics{})
		r.db.set(nil, true)
		began := time.Now()
		submit := func(values ...int) {
			for _, v := range values {
				require.NoError(t, r.Submit(t.Context(), Item[int]{Value: v, Size: 25, Done: r.ledger.done(v)}))
			}
			synctest.Wait()
		}
		submit(1)
		require.Empty(t, r.db.seen())
		submit(2)
		require.Equal(t, [][]int{{1, 2}}, r.db.seen())
		submit(3, 4) // grow meanwhile
		r.db.release()
		synctest.Wait()
		require.Equal(t, [][]int{{1, 2}, {3, 4}}, r.db.seen())
		require.Equal(t, began, time.Now(), "a full batch waits for nothing")
		r.finish(t)
	})
}
