package views

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lovoo/goka/storage"

	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/stream"
)

// patience is how long a copy may be behind its table without moving before it is not believed any more.
const patience = 15 * time.Second

// table is a Goka view of a group's whole table, and how far the view has come: Goka's view reconnects by itself and goes on
// answering with what it has meanwhile, so somebody must compare it with the broker.
type table struct {
	opts  stream.ViewOptions
	clock func() time.Time
	log   *slog.Logger
	view  atomic.Pointer[stream.View]

	mu   sync.Mutex
	read map[int32]*progress
}

// progress is how far one partition was read.
type progress struct {
	offset atomic.Int64 // of the last record read, -1 before the first

	// Of the last comparison with the broker, under the table's mutex.
	compared int64
	since    time.Time // since when it is behind without moving
}

func newTable(opts stream.ViewOptions, store func(dir string) storage.Builder, clock func() time.Time) *table {
	t := &table{clock: clock, log: opts.Logger, read: make(map[int32]*progress)}
	opts.Store = func(dir string) storage.Builder { return t.followed(store(dir)) }
	t.opts = opts
	return t
}

// Run keeps the copy until ctx ends. The view is made once; only a state directory that another process holds makes it be made
// again.
func (t *table) Run(ctx context.Context) error {
	wait := backoff.New(t.opts.Backoff)
	for ctx.Err() == nil {
		view, err := stream.NewView(t.opts)
		if err != nil {
			return fmt.Errorf("make the view of group %s: %w", t.opts.Group, err)
		}
		t.view.Store(view)
		if err := view.Run(ctx); err != nil && ctx.Err() == nil {
			t.log.LogAttrs(ctx, slog.LevelError, "a copy of a group table cannot be kept and is tried again",
				slog.String("event", "table-view-failed"), slog.String("group", t.opts.Group), slog.Any("error", err))
			_ = wait.Wait(ctx) // its end is seen by the loop
		}
	}
	return nil
}

// failure is why the copy cannot be kept now; nil while it is.
func (t *table) failure() error {
	view := t.view.Load()
	if view == nil {
		return nil
	}
	return view.Err()
}

// get reads a key; nil when there is none.
func (t *table) get(key string) ([]byte, error) {
	view := t.view.Load()
	if view == nil {
		return nil, &stream.NotHereError{Partition: -1}
	}
	value, err := view.Get(key)
	if err != nil {
		return nil, err
	}
	data, ok := value.([]byte)
	if !ok && value != nil {
		return nil, fmt.Errorf("the table of group %s has a value of type %T", t.opts.Group, value)
	}
	return data, nil
}

func (t *table) ready() bool {
	view := t.view.Load()
	return view != nil && view.Ready()
}

// behind compares the copy with the table's topic: how many offsets it has not read, out of how many, and whether it has stood
// still for longer than patience although it is behind.
func (t *table) behind(positions []stream.Positions) (lag, total int64, stuck bool) {
	now := t.clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, at := range positions {
		total += at.End - at.Start
		p := t.read[int32(i)] //nolint:gosec // a partition number
		if p == nil {
			lag += at.End - at.Start
			continue
		}
		offset := p.offset.Load()
		left := max(0, at.End-max(at.Start, offset+1))
		lag += left
		switch {
		case left == 0:
			p.since = time.Time{}
		case p.since.IsZero() || offset != p.compared:
			p.since = now
		}
		p.compared = offset
		stuck = stuck || left > 0 && now.Sub(p.since) > patience
	}
	return lag, total, stuck
}

// followed wraps a builder of stores so that each read is noticed.
func (t *table) followed(inner storage.Builder) storage.Builder {
	return func(topic string, partition int32) (storage.Storage, error) {
		st, err := inner(topic, partition)
		if err != nil {
			return nil, err
		}
		p := &progress{}
		p.offset.Store(-1)
		t.mu.Lock()
		t.read[partition] = p
		t.mu.Unlock()
		return &followedStore{Storage: st, progress: p}, nil
	}
}

type followedStore struct {
	storage.Storage
	progress *progress
}

// GetOffset is where the view begins to read.
func (f *followedStore) GetOffset(def int64) (int64, error) {
	offset, err := f.Storage.GetOffset(def)
	if err == nil && offset >= 0 {
		f.progress.offset.Store(offset)
	}
	return offset, err
}

// SetOffset follows each record.
func (f *followedStore) SetOffset(offset int64) error {
	if err := f.Storage.SetOffset(offset); err != nil {
		return err
	}
	f.progress.offset.Store(offset)
	return nil
}

// notHere says whether a table could not be asked about a key, as opposed to a failure.
func notHere(err error) bool {
	var here *stream.NotHereError
	return errors.As(err, &here)
}
