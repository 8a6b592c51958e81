package batch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// step is one move of a random script.
type step struct {
	Kind    string // submit, end, ok, fail, fatal, hang, free, advance, stop
	Session int
	Count   int
	By      time.Duration
}

var steps = rapid.Custom(func(t *rapid.T) step {
	kind := rapid.SampledFrom([]string{"submit", "submit", "submit", "submit", "end", "ok", "fail", "fatal", "hang", "free", "advance", "advance", "stop"}).Draw(t, "kind")
	s := step{Kind: kind, Session: rapid.IntRange(0, 2).Draw(t, "session")}
	switch kind {
	case "submit":
		s.Count = rapid.IntRange(1, 9).Draw(t, "count")
	case "advance":
		s.By = time.Duration(rapid.Int64Range(0, int64(8*time.Second)).Draw(t, "by"))
	}
	return s
})

// play runs a script against a batcher and returns the first broken promise.
type play struct {
	cfg  Config
	b    *Batcher[int]
	mu   sync.Mutex
	errs []error

	mode     error // what a flush returns
	hang     bool
	free     chan struct{}
	inFlight []int
	last     []int        // values of the last failed try that was not settled
	durable  map[int]bool // in a flush that returned nil
	order    []int        // of durable values
	accepted map[int]int  // value -> session generation
	settled  map[int]error
	ended    map[int]time.Time // session generation -> end
	failing  bool              // the last flush failed: an outage is known
	stopped  time.Time
}

func (p *play) broken(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(format, args...))
}

func (p *play) flush(ctx context.Context, values []int) error {
	p.mu.Lock()
	if p.inFlight != nil {
		p.broken("two flushes at a time")
	}
	if len(values) == 0 || len(values) > p.cfg.MaxItems {
		p.broken("a batch of %d", len(values))
	}
	p.checkFrozen(values)
	p.inFlight = slices.Clone(values)
	hang, free := p.hang, p.free
	p.mu.Unlock()
	if hang {
		select {
		case <-ctx.Done():
			p.mu.Lock()
			p.inFlight, p.last = nil, slices.Clone(values)
			p.mu.Unlock()
			return ctx.Err()
		case <-free:
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(values, p.inFlight) {
		p.broken("values changed under the flush: %v, were %v", values, p.inFlight)
	}
	p.inFlight, p.last = nil, nil
	p.failing = p.mode != nil
	if p.mode == nil {
		for _, v := range values {
			p.durable[v] = true
		}
		p.order = append(p.order, values...)
	} else if !errors.Is(p.mode, ErrFatal) {
		p.last = slices.Clone(values)
	}
	return p.mode
}

// checkFrozen: a try after a failed one has exactly the failed one's values less those settled meanwhile.
func (p *play) checkFrozen(values []int) {
	var want []int
	for _, v := range p.last {
		if _, ok := p.settled[v]; !ok {
			want = append(want, v)
		}
	}
	if len(want) > 0 && !slices.Equal(want, values) {
		p.broken("the frozen batch %v came again as %v", want, values)
	}
}

func (p *play) done(v int) func(error) {
	return func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if _, twice := p.settled[v]; twice {
			p.broken("Done of %d twice", v)
		}
		if err == nil && !p.durable[v] {
			p.broken("Done(nil) of %d, which is not durable", v)
		}
		if err != nil && p.durable[v] {
			_, over := p.ended[p.accepted[v]]
			if !over && p.stopped.IsZero() {
				p.broken("Done(%v) of %d although it is durable and its session lives", err, v)
			}
		}
		if err != nil && !errors.Is(err, ErrFatal) && !errors.Is(err, ErrAbandoned) {
			p.broken("Done of %d with %v", v, err)
		}
		if _, over := p.ended[p.accepted[v]]; errors.Is(err, ErrAbandoned) && !over && p.stopped.IsZero() {
			p.broken("%d abandoned although its session lives", v)
		}
		p.settled[v] = err
	}
}

// The sizes of items in a script: some are larger than half of a small buffer.
const largest = 9

func sizeOf(v int) int { return v * 7 % (largest + 1) }

func (p *play) held() int {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	for _, c := range p.b.queue {
		bytes := 0
		for _, v := range c.values {
			bytes += sizeOf(v)
		}
		if c.bytes != bytes {
			p.broken("a batch of %d bytes counts %d", bytes, c.bytes)
		}
	}
	return p.b.held
}

// check is called when everything has come to rest.
func (p *play) check() {
	if n := p.held(); n >= p.cfg.BufferBytes+largest {
		p.broken("items of %d bytes are held in a buffer of %d", n, p.cfg.BufferBytes)
	}
	if n := p.b.Waiting(); n > p.cfg.Buffer {
		p.broken("%d items wait in a buffer of %d", n, p.cfg.Buffer)
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for v, session := range p.accepted {
		if _, ok := p.settled[v]; ok {
			continue
		}
		end, over := p.ended[session]
		if over && now.Sub(end) >= p.cfg.DrainTimeout {
			p.broken("%d is held %s after its session's end", v, now.Sub(end))
		}
		if over && p.failing && p.inFlight == nil {
			p.broken("%d is held in an outage after its session's end", v)
		}
	}
}

func (p *play) run(t *testing.T, script []step) error {
	b, err := New(p.cfg, p.flush, slog.New(slog.DiscardHandler), Metrics{})
	if err != nil {
		return err
	}
	p.b, p.free = b, make(chan struct{}) // a channel of this bubble
	ctx, stop := context.WithCancel(t.Context())
	finished := make(chan struct{})
	var finishedAt time.Time
	go func() {
		defer close(finished)
		defer func() { finishedAt = time.Now() }()
		if err := b.Run(ctx); err != nil {
			p.mu.Lock()
			p.broken("Run: %v", err)
			p.mu.Unlock()
		}
	}()
	generation := 0
	type live struct {
		gen int
		ctx context.Context
		end context.CancelFunc
		in  chan int
	}
	var feeders sync.WaitGroup
	// Each session has one goroutine that submits in order, as a partition has.
	open := func() *live {
		generation++
		l := &live{gen: generation, in: make(chan int, 10000)}
		l.ctx, l.end = context.WithCancel(t.Context())
		feeders.Go(func() {
			for v := range l.in {
				p.mu.Lock()
				p.accepted[v] = l.gen
				p.mu.Unlock()
				if err := b.Submit(l.ctx, Item[int]{Value: v, Size: sizeOf(v), Session: l.ctx, Done: p.done(v)}); err != nil {
					p.mu.Lock()
					if _, called := p.settled[v]; called {
						p.broken("Submit of %d failed, but Done was called", v)
					}
					delete(p.accepted, v)
					p.mu.Unlock()
				}
			}
		})
		return l
	}
	sessions := []*live{open(), open(), open()}
	next := 0
	for _, s := range script {
		switch s.Kind {
		case "submit":
			for range s.Count {
				next++
				sessions[s.Session].in <- next
			}
		case "end":
			old := sessions[s.Session]
			p.mu.Lock()
			p.ended[old.gen] = time.Now()
			p.mu.Unlock()
			old.end()
			close(old.in)
			sessions[s.Session] = open()
		case "ok", "fail", "fatal":
			p.mu.Lock()
			p.mode = map[string]error{"ok": nil, "fail": errAway, "fatal": fmt.Errorf("epoch: %w", ErrFatal)}[s.Kind]
			p.mu.Unlock()
		case "hang":
			p.mu.Lock()
			p.hang = true
			p.mu.Unlock()
		case "free":
			p.mu.Lock()
			close(p.free)
			p.hang, p.free = false, make(chan struct{})
			p.mu.Unlock()
		case "advance":
			<-time.After(s.By)
		case "stop":
			p.mu.Lock()
			if p.stopped.IsZero() {
				p.stopped = time.Now()
			}
			p.mu.Unlock()
			stop()
		}
		// Half of the moves follow each other without a rest, so that they race.
		if s.Session != 1 {
			synctest.Wait()
			p.check()
		}
	}
	p.mu.Lock()
	if p.stopped.IsZero() {
		p.stopped = time.Now()
	}
	p.mu.Unlock()
	stop()
	<-finished
	if late := finishedAt.Sub(p.stopped); late > p.cfg.DrainTimeout {
		p.broken("the stop took %s", late)
	}
	for _, l := range sessions {
		l.end()
		close(l.in)
	}
	feeders.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for v := range p.accepted {
		if _, ok := p.settled[v]; !ok {
			p.broken("Done of %d was never called", v)
		}
	}
	newest := map[int]int{}
	for _, v := range p.order {
		if s := p.accepted[v]; v <= newest[s] {
			p.broken("%d came after %d", v, newest[s])
		} else {
			newest[s] = v
		}
	}
	if n := b.Waiting(); n != 0 {
		p.broken("an empty buffer counts %d items", n)
	}
	if n := p.held(); n != 0 {
		p.broken("an empty buffer counts %d bytes", n)
	}
	if n := len(b.sessions.live); n > 0 {
		p.broken("%d sessions are still watched", n)
	}
	if len(p.errs) > 0 {
		return p.errs[0]
	}
	return nil
}

// TestEveryInterleavingSettlesEachItemOnce plays random scripts of submits, failing, hanging and fatal flushes, ends of
// sessions and stops.
func TestEveryInterleavingSettlesEachItemOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := config()
		cfg.MaxItems = rapid.IntRange(1, 5).Draw(rt, "max")
		cfg.Buffer = cfg.MaxItems + rapid.IntRange(0, 10).Draw(rt, "buffer")
		cfg.BufferBytes = rapid.IntRange(1, 60).Draw(rt, "bytes")
		script := rapid.SliceOfN(steps, 1, 60).Draw(rt, "script")
		p := &play{cfg: cfg, durable: map[int]bool{}, accepted: map[int]int{}, settled: map[int]error{}, ended: map[int]time.Time{}}
		var err error
		synctest.Test(t, func(t *testing.T) { err = p.run(t, script) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}
