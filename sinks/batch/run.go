package batch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pin-marketplace/vitrina/internal/backoff"
)

// Run flushes until ctx ends. Then it takes no more items, lets the flush under way finish and tries what waits once
// more, all within the drain timeout, abandons the rest and returns nil with every item settled. It may be called once.
func (b *Batcher[T]) Run(ctx context.Context) error {
	if b.started.Swap(true) {
		return fmt.Errorf("batch %s: Run was called twice; a batcher runs once", b.cfg.Name)
	}
	for ctx.Err() == nil {
		if c, wait := b.due(time.Now()); c != nil {
			b.carry(ctx, c)
		} else {
			b.idle(ctx, wait)
		}
	}
	b.close()
	b.stopping(ctx)
	for c := b.pop(); c != nil; c = b.pop() {
		if time.Now().Before(b.drainBy) {
			b.carry(ctx, c)
		} else {
			b.settle(b.takeAll(c), ErrAbandoned)
		}
	}
	return nil
}

// idle waits until the queue may have something due; wait < 0: nothing is in it.
func (b *Batcher[T]) idle(ctx context.Context, wait time.Duration) {
	var due <-chan time.Time
	if wait >= 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-b.wake:
	case <-due:
	}
}

// due takes the first batch from the queue if it is full, old enough or hurried; else it says how long that takes.
func (b *Batcher[T]) due(now time.Time) (*chunk[T], time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		return nil, -1
	}
	head := b.queue[0]
	if wait := b.cfg.MaxWait - now.Sub(head.first); wait > 0 && b.hurry == nil && !b.full(head) {
		return nil, wait
	}
	return b.shift(), 0
}

// pop takes the first batch, due or not; nil when the queue is empty.
func (b *Batcher[T]) pop() *chunk[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		return nil
	}
	return b.shift()
}

// shift removes the head of the queue. Called with the lock held.
func (b *Batcher[T]) shift() *chunk[T] {
	head := b.queue[0]
	b.queue[0] = nil
	b.queue = b.queue[1:]
	b.waiting -= head.len()
	if b.hurry == head {
		b.hurry = nil
	}
	b.makeRoom()
	return head
}

// carry brings one batch through: it returns once each of its items is settled.
func (b *Batcher[T]) carry(ctx context.Context, c *chunk[T]) {
	if b.metrics.Over != nil {
		defer b.metrics.Over()
	}
	pause := backoff.New(b.cfg.Backoff)
	for {
		b.release(c, b.cfg.DrainTimeout)
		if c.len() == 0 {
			return
		}
		started := time.Now()
		err := b.try(ctx, c)
		switch {
		case c.len() == 0: // released while the flush was under way
			return
		case err == nil:
			took := time.Since(started)
			b.report.succeeded(c.len(), pause.Tries()+1)
			if b.metrics.Flushed != nil {
				b.metrics.Flushed(c.len(), took)
			}
			values := c.values
			tails := b.takeAll(c)
			b.settle(tails, nil)
			b.recycle(values, tails)
			return
		case errors.Is(err, ErrFatal):
			b.report.fatal(err, c.len())
			b.settle(b.takeAll(c), err)
			return
		}
		if b.metrics.Failed != nil {
			b.metrics.Failed(err, c.len(), pause.Tries()+1)
		}
		if b.stopping(ctx) { // that was the last try
			b.report.abandoned(err, c.len())
			b.settle(b.takeAll(c), ErrAbandoned)
			return
		}
		wait := pause.Next()
		b.report.failed(err, c.len(), pause.Tries(), wait)
		b.wait(ctx, c, wait)
		if c.len() > 0 && b.metrics.Retry != nil {
			b.metrics.Retry()
		}
	}
}

// try runs one flush. Meanwhile items whose session ended longer ago than the drain timeout are released; when that
// leaves nothing, or the drain after a stop is over, the flush is cancelled.
func (b *Batcher[T]) try(ctx context.Context, c *chunk[T]) error {
	flushCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	result := make(chan error, 1)
	go func(values []T) { result <- b.flush(flushCtx, values) }(c.values)

	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	stopped := ctx.Done()
	for {
		b.arm(timer)
		select {
		case err := <-result:
			return err
		case <-b.ended:
		case <-stopped:
			stopped = nil
			b.stopping(ctx)
			b.close()
		case <-timer.C:
		}
		b.release(c, b.cfg.DrainTimeout)
		if !b.drainBy.IsZero() && !time.Now().Before(b.drainBy) && c.len() > 0 {
			b.settle(b.takeAll(c), ErrAbandoned)
		}
		if c.len() == 0 {
			cancel()
			return <-result
		}
	}
}

// arm sets the timer to the next moment at which try has to act: the release of an ended session or the end of the drain.
func (b *Batcher[T]) arm(timer *time.Timer) {
	now := time.Now()
	b.mu.Lock()
	next, ok := b.sessions.nextRelease(now, b.cfg.DrainTimeout)
	b.mu.Unlock()
	if !b.drainBy.IsZero() && (!ok || b.drainBy.Before(next)) {
		next, ok = b.drainBy, true
	}
	if !ok {
		timer.Stop()
		return
	}
	timer.Reset(max(0, next.Sub(now)))
}

// wait passes the time until the next try of a failed batch. The database is away, so items of sessions that end are
// released at once, those in the queue too; it returns early when that leaves nothing of the batch or when ctx ends.
func (b *Batcher[T]) wait(ctx context.Context, c *chunk[T], d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		b.release(c, 0)
		if c.len() == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			b.release(c, 0)
			return
		case <-b.ended:
		}
	}
}

// release settles with ErrAbandoned what belongs to sessions that ended at least grace ago, in the batch and in the queue.
func (b *Batcher[T]) release(c *chunk[T], grace time.Duration) {
	now := time.Now()
	b.mu.Lock()
	if next, ok := b.sessions.nextRelease(now, grace); !ok || next.After(now) {
		b.mu.Unlock()
		return
	}
	expired := func(e *session) bool { return !e.endedAt.IsZero() && !e.endedAt.Add(grace).After(now) }
	given := c.without(expired)
	kept := b.queue[:0]
	for _, q := range b.queue {
		out := q.without(expired)
		given = append(given, out...)
		b.waiting -= len(out)
		if q.len() > 0 {
			kept = append(kept, q)
		} else if b.hurry == q {
			b.hurry = nil
			if len(kept) > 0 {
				b.hurry = kept[len(kept)-1]
			}
		}
	}
	clear(b.queue[len(kept):])
	b.queue = kept
	b.leave(given)
	b.mu.Unlock()
	b.settle(given, ErrAbandoned)
}

// takeAll empties the batch and counts its items out.
func (b *Batcher[T]) takeAll(c *chunk[T]) []tail {
	tails := c.take()
	b.mu.Lock()
	b.leave(tails)
	b.mu.Unlock()
	return tails
}

// recycle keeps the memory of a batch whose flush has returned and whose items are settled.
func (b *Batcher[T]) recycle(values []T, tails []tail) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spare.keep(values, tails)
}

// leave counts items out of their sessions and of the buffer's bytes. Called with the lock held.
func (b *Batcher[T]) leave(tails []tail) {
	for _, t := range tails {
		b.sessions.leave(t.session)
		b.held -= t.size
	}
	b.makeRoom()
}

// settle calls Done of items that are in no batch any more, which is what makes it once. Never with the lock held.
func (b *Batcher[T]) settle(tails []tail, err error) {
	for _, t := range tails {
		if t.done != nil {
			t.done(err)
		}
	}
}

// stopping tells whether ctx has ended and then fixes, once, when the drain is over.
func (b *Batcher[T]) stopping(ctx context.Context) bool {
	if ctx.Err() == nil {
		return false
	}
	if b.drainBy.IsZero() {
		b.drainBy = time.Now().Add(b.cfg.DrainTimeout)
	}
	return true
}

// close refuses further items and wakes blocked Submits.
func (b *Batcher[T]) close() {
	b.mu.Lock()
	b.closed = true
	b.makeRoom()
	b.mu.Unlock()
}
