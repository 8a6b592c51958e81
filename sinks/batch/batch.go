// Package batch is the one batcher between a processor and a database: it gathers values with their deferred commits,
// hands them to a Flush as whole batches, tries a failed batch again as it is until it is durable, and settles every
// item exactly once. Backpressure is a bounded buffer that blocks Submit, which pauses the partition (design, sections 2
// and 5).
package batch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pin-marketplace/vitrina/internal/backoff"
)

var (
	// ErrAbandoned settles an item that was given up before its effect was known to be durable: its session ended, or the
	// batcher stopped. The effect may have happened all the same; the record must come again.
	ErrAbandoned = errors.New("given up before its effect was durable; the record must come again")
	// ErrStopped is what Submit returns once the batcher has stopped. It wraps ErrAbandoned.
	ErrStopped = fmt.Errorf("the batcher has stopped: %w", ErrAbandoned)
	// ErrFatal marks a flush error that no further try can mend (a projection's epoch has changed): wrap it, and the whole
	// batch is settled with the error instead of being tried again.
	ErrFatal = errors.New("cannot be tried again")
)

// Item is one value on its way to a database together with its record's deferred commit.
type Item[T any] struct {
	Value T
	// Size is how many bytes the item keeps in memory, about: those of its raw record. Not below 0.
	Size int
	// Session ends when the partition is given up. Nil never ends. Contexts derived by WithValue alone count as one session.
	Session context.Context
	// Done is called exactly once if Submit returned nil, and never otherwise: nil = the effect is durable; any error
	// (ErrAbandoned, or the fatal one) = the record must come again. It is called from the batcher's goroutine, in the
	// order of submission within a batch, and must not block.
	Done func(error)
}

// Config bounds a batcher. All fields are required.
type Config struct {
	Name         string         // sink's name in logs
	MaxItems     int            // items of a batch at most
	MaxWait      time.Duration  // longest time the first item of a batch waits before the batch is flushed
	Buffer       int            // items waiting at most, those of the batch being flushed not counted; at least MaxItems
	BufferBytes  int            // Size of all items taken and not settled; one item may go beyond. A batch is full at half of it
	Backoff      backoff.Config // between the tries of a failed batch
	DrainTimeout time.Duration  // for the flush that is under way when the batcher stops or a session ends
}

// Validate returns what is wrong with the configuration, or nil.
func (c Config) Validate() error {
	switch {
	case c.MaxItems <= 0:
		return fmt.Errorf("batch %s: the batch size (%d) must be above 0", c.Name, c.MaxItems)
	case c.MaxWait <= 0:
		return fmt.Errorf("batch %s: the batch interval (%s) must be above 0", c.Name, c.MaxWait)
	case c.Buffer < c.MaxItems:
		return fmt.Errorf("batch %s: the buffer (%d) must hold at least one batch (%d), or no batch ever gets full", c.Name, c.Buffer, c.MaxItems)
	case c.BufferBytes <= 0:
		return fmt.Errorf("batch %s: the buffer's bytes (%d) must be above 0", c.Name, c.BufferBytes)
	case c.DrainTimeout <= 0:
		return fmt.Errorf("batch %s: the drain timeout (%s) must be above 0", c.Name, c.DrainTimeout)
	}
	if err := c.Backoff.Validate(); err != nil {
		return fmt.Errorf("batch %s: %w", c.Name, err)
	}
	return nil
}

// Metrics are hooks, called from the batcher's goroutine; nil ones are left out.
type Metrics struct {
	Retry   func()                                // one more try of a batch after a failed one
	Flushed func(items int, took time.Duration)   // a batch is durable; took is the last try's time
	Failed  func(err error, items int, tries int) // a try of a batch failed
	Over    func()                                // no item of the batch is left, whatever became of them: what its tries said is past
}

// Flush applies the whole batch; nil means that every item is durable (or dead-lettered and acknowledged). An error is an
// outage: the same frozen batch, less the items whose session has ended, comes again after the backoff. It is called by
// one goroutine at a time per batcher, must return soon after ctx ends, and must neither change nor keep values.
type Flush[T any] func(ctx context.Context, values []T) error

// Batcher gathers items into batches. Submit may be called from any goroutine.
type Batcher[T any] struct {
	cfg     Config
	flush   Flush[T]
	logger  *slog.Logger
	metrics Metrics
	started atomic.Bool

	wake  chan struct{} // the queue has a new first item or a full batch
	ended chan struct{} // a session has ended

	mu       sync.Mutex
	queue    []*chunk[T] // batches waiting; only the last one still grows
	spare    spare[T]
	waiting  int           // items in the queue
	held     int           // Size of all items that are not settled
	hurry    *chunk[T]     // the queue up to here is due at once: a session has ended
	space    chan struct{} // closed when room appears or the batcher stops; nil while nobody waits for it
	closed   bool
	sessions sessions

	// Of the Run goroutine only.
	drainBy time.Time // when the drain after the end of Run's context ends; zero before
	report  reporter
}

// New returns a batcher that is not running yet: Submit fills its buffer, Run empties it.
func New[T any](cfg Config, flush Flush[T], logger *slog.Logger, m Metrics) (*Batcher[T], error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b := &Batcher[T]{
		cfg: cfg, flush: flush, logger: logger, metrics: m,
		wake: make(chan struct{}, 1), ended: make(chan struct{}, 1),
		report: reporter{name: cfg.Name, logger: logger},
	}
	b.sessions = newSessions(b.sessionEnded)
	return b, nil
}

// Waiting is the number of items in the buffer, those of the batch being flushed not counted.
func (b *Batcher[T]) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting
}

// Submit puts an item into the buffer and blocks while that is full, by items or by bytes. It returns nil when the batcher has taken charge of
// the item, or, without ever calling Done, the cause of the end of ctx or of the item's session, or ErrStopped. The order
// of one goroutine's items is kept.
func (b *Batcher[T]) Submit(ctx context.Context, item Item[T]) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if item.Session != nil && item.Session.Err() != nil {
			return context.Cause(item.Session) //nolint:contextcheck // the session is another lifetime than the call, on purpose
		}
		space, err := b.offer(item)
		if err != nil || space == nil {
			return err
		}
		select {
		case <-space:
		case <-ctx.Done():
		case <-doneOf(item.Session): //nolint:contextcheck // as above
		}
	}
}

// offer takes the item, or returns the channel that is closed when there may be room for it.
func (b *Batcher[T]) offer(item Item[T]) (<-chan struct{}, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, ErrStopped
	}
	if b.waiting >= b.cfg.Buffer || b.held >= b.cfg.BufferBytes {
		if b.space == nil {
			b.space = make(chan struct{})
		}
		space := b.space
		b.mu.Unlock()
		return space, nil
	}
	notable := b.push(item)
	b.mu.Unlock()
	if notable {
		signal(b.wake)
	}
	return nil, nil
}

// push appends to the queue and tells whether the runner has to look at it: a first item starts the clock, a full batch
// is due.
func (b *Batcher[T]) push(item Item[T]) bool {
	first := len(b.queue) == 0
	if first || b.full(b.queue[len(b.queue)-1]) {
		b.queue = append(b.queue, b.spare.chunk(time.Now()))
	}
	c := b.queue[len(b.queue)-1]
	c.values = append(c.values, item.Value)
	c.tails = append(c.tails, tail{done: item.Done, session: b.sessions.enter(item.Session), size: item.Size})
	c.bytes += item.Size
	b.held += item.Size
	b.waiting++
	return first || b.full(c)
}

// full says that a batch takes no more items. Half of the bytes are left to the next one, which grows while it is flushed.
func (b *Batcher[T]) full(c *chunk[T]) bool {
	return c.len() >= b.cfg.MaxItems || c.bytes >= b.cfg.BufferBytes/2
}

// sessionEnded makes everything that waits due at once, so that the partition's next owner finds as little as possible
// left to do.
func (b *Batcher[T]) sessionEnded() {
	b.mu.Lock()
	if len(b.queue) > 0 {
		b.hurry = b.queue[len(b.queue)-1]
	}
	b.mu.Unlock()
	signal(b.wake)
	signal(b.ended)
}

// makeRoom lets blocked Submits look again. Called with the lock held.
func (b *Batcher[T]) makeRoom() {
	if b.space != nil {
		close(b.space)
		b.space = nil
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func doneOf(ctx context.Context) <-chan struct{} {
	if ctx == nil {
		return nil
	}
	return ctx.Done()
}
