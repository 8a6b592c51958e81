package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/sinks/batch"
)

// Config is what a Writer needs to know. Topic and Clock are required; a zero elsewhere means the default.
type Config struct {
	Consumer     string // promotion, popularity or price: for logs
	Topic        string
	Backoff      backoff.Config   // between tries; default 1 s to 60 s
	AckTimeout   time.Duration    // when a try without acknowledgement is called an outage; default 20 s
	DrainTimeout time.Duration    // for letters under way when the writer stops or a session ends; default 5 s
	Clock        func() time.Time // for x-dlq-timestamp
}

const (
	lettersPerBatch  = 200
	lettersBuffered  = 400
	lettersBytes     = 64 << 20
	lettersOversized = 100 // letters that wait for their topic to allow their size
	gatherFor        = 5 * time.Millisecond
)

// Events writes the line of each letter; telemetry.EventLog bounds how many a second.
type Events interface {
	Log(ctx context.Context, level slog.Level, name, msg string, attrs ...slog.Attr)
}

// Metrics are hooks; nil ones are left out.
type Metrics struct {
	Written func(code codecs.Code) // a letter is acknowledged
	Retry   func()                 // one more try of a batch of letters
	// Failed says that a try of letters failed, Over that none of these is left to be tried. Those set aside for their size are tried
	// beside the others, so that neither kind tells anything about the other.
	Failed func(oversized bool, err error)
	Over   func(oversized bool)
}

// batches are the hooks of one of the two batchers.
func (m Metrics) batches(oversized bool) batch.Metrics {
	hooks := batch.Metrics{Retry: m.Retry}
	if m.Failed != nil {
		hooks.Failed = func(err error, _, _ int) { m.Failed(oversized, err) }
	}
	if m.Over != nil {
		hooks.Over = func() { m.Over(oversized) }
	}
	return hooks
}

// Writer writes the dead letters of one consumer. Submit and Write may be called from any goroutine while Run runs.
//
// A letter that the topic does not take for its size is set aside so that it holds up no other: the writer raises the topic's
// max.message.bytes (the topic belongs to this project), and where it may not, tries again for ever and says once a minute
// what to do. The letter is never shortened and never dropped: its record stays unfinished, so its partition's committed
// offset stays before it, while the partition goes on as far as the commit guard's window reaches.
type Writer struct {
	cfg       Config
	client    *kgo.Client
	events    Events
	logger    *slog.Logger
	metrics   Metrics
	letters   *batch.Batcher[*parcel]
	oversized *batch.Batcher[*parcel]
	// solo is held while a letter is written for its size alone: the client would put letters of both batchers into one
	// batch, and a small letter beside a large one would be taken for a large one.
	solo  chan struct{}
	topic incarnation
}

// ClientOptions are the options that the client given to New must be made with, beside brokers and security: acknowledged by
// all in-sync replicas, idempotent, a key's letters in one partition, strong compression (limits of topics count compressed
// bytes), and no limit of the client's own below the protocol's.
func ClientOptions() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerBatchCompression(kgo.ZstdCompression(), kgo.Lz4Compression(), kgo.SnappyCompression(), kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(maxRequestBytes),
	}
}

// maxRequestBytes stays below socket.request.max.bytes of a broker (100 MiB by default).
const maxRequestBytes = 90 << 20

// New returns a writer that Run sets going. The client is made with ClientOptions and stays the caller's.
func New(cfg Config, client *kgo.Client, events Events, logger *slog.Logger, m Metrics) (*Writer, error) {
	if cfg.Topic == "" || cfg.Clock == nil {
		return nil, errors.New("dead letters: a topic and a clock are required")
	}
	if cfg.Backoff == (backoff.Config{}) {
		cfg.Backoff = backoff.Default()
	}
	if cfg.AckTimeout <= 0 {
		cfg.AckTimeout = 20 * time.Second
	}
	if cfg.DrainTimeout <= 0 {
		cfg.DrainTimeout = 5 * time.Second
	}
	w := &Writer{cfg: cfg, client: client, events: events, logger: logger, metrics: m, solo: make(chan struct{}, 1)}
	bc := batch.Config{Name: "dead letters " + cfg.Consumer, MaxItems: lettersPerBatch, MaxWait: gatherFor, Buffer: lettersBuffered, BufferBytes: lettersBytes,
		Backoff: cfg.Backoff, DrainTimeout: cfg.DrainTimeout}
	var err error
	if w.letters, err = batch.New(bc, w.flush, logger, m.batches(false)); err != nil {
		return nil, err
	}
	bc.Name, bc.MaxItems, bc.Buffer = "oversized dead letters "+cfg.Consumer, 1, lettersOversized
	if w.oversized, err = batch.New(bc, w.flushOversized, logger, m.batches(true)); err != nil {
		return nil, err
	}
	return w, nil
}

// Run writes letters until ctx ends, then what waits, within the drain timeout.
func (w *Writer) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { return w.letters.Run(ctx) })
	g.Go(func() error { return w.oversized.Run(ctx) })
	return g.Wait()
}

// Submit takes a letter and returns; done is called exactly once, with nil when every in-sync replica has the letter, or with
// an error that wraps batch.ErrAbandoned when the session ended or the writer stopped before that. It blocks while too many
// letters wait. An error means that the letter was not taken and done will not be called.
func (w *Writer) Submit(session context.Context, l Letter, done func(error)) error {
	p := &parcel{letter: l, session: session, done: done}
	return w.letters.Submit(session, batch.Item[*parcel]{Value: p, Size: l.Record.Size(), Session: session, Done: p.leaveMain})
}

// Write writes letters and returns when every in-sync replica has them all, or with an error when ctx ended or the writer
// stopped; some of them may then have been written, all must be written again.
func (w *Writer) Write(ctx context.Context, letters ...Letter) error {
	results := make(chan error, len(letters))
	taken := 0
	var failed error
	for _, l := range letters {
		if err := w.Submit(ctx, l, func(err error) { results <- err }); err != nil {
			failed = err
			break
		}
		taken++
	}
	for range taken {
		if err := <-results; err != nil {
			failed = err
		}
	}
	if failed != nil {
		return fmt.Errorf("write %d dead letters to %s: %w", len(letters), w.cfg.Topic, failed)
	}
	return nil
}

// parcel is a letter on its way. Its tries are the flushing goroutine's alone.
type parcel struct {
	letter  Letter
	session context.Context
	done    func(error)
	state   atomic.Int32 // inMain, then moved or finished
	try     *try
	written bool
}

const (
	inMain int32 = iota
	moved        // the oversized batcher has taken charge
	finished
)

// try is one hand-over to the Kafka client. The client may keep a record for as long as the brokers are away, whatever its
// context says, because it cannot know whether they have it; it must then be waited for, not produced again.
type try struct {
	ended chan struct{}
	err   error
}

// leaveMain is the main batcher's Done. A parcel that was moved is settled by the oversized batcher.
func (p *parcel) leaveMain(err error) {
	if p.state.CompareAndSwap(inMain, finished) {
		p.done(err)
	}
}

// flush writes what is not written yet and returns nil once each letter is acknowledged or set aside.
func (w *Writer) flush(ctx context.Context, parcels []*parcel) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.cfg.AckTimeout, errNoAck)
	defer cancel()
	if err := w.topic.learn(ctx, w.client, w.cfg.Topic); err != nil {
		return w.explain(err)
	}
	for _, p := range parcels {
		w.produce(ctx, p)
	}
	var failed error
	var large []*parcel
	for _, p := range parcels {
		switch err := w.await(ctx, p); {
		case err == nil:
		case TooLarge(err):
			large = append(large, p)
		default:
			failed = err
		}
	}
	// The client puts letters of one partition into one batch, and it is the batch that was too large: one by one most fit.
	for _, p := range large {
		switch err := w.writeAlone(ctx, p); {
		case err == nil:
		case TooLarge(err):
			w.setAside(ctx, p)
		default:
			failed = err
		}
	}
	w.topic.adopt(ctx, w.client, w.cfg.Topic, failed)
	return w.explain(failed)
}

// writeAlone writes one letter in a batch of its own.
func (w *Writer) writeAlone(ctx context.Context, p *parcel) error {
	select {
	case w.solo <- struct{}{}:
		defer func() { <-w.solo }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	w.produce(ctx, p)
	return w.await(ctx, p)
}

// TooLarge tells whether a topic did not take a record for its size, or for that of the batch it was in.
func TooLarge(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

// setAside hands a letter over to the oversized batcher, which settles it.
func (w *Writer) setAside(ctx context.Context, p *parcel) {
	if !p.state.CompareAndSwap(inMain, moved) {
		return
	}
	p.written = true // as far as the main batcher is concerned
	next := &parcel{letter: p.letter, session: p.session, done: p.done}
	if err := w.oversized.Submit(context.WithoutCancel(ctx), batch.Item[*parcel]{Value: next, Size: p.letter.Record.Size(), Session: p.session, Done: p.done}); err != nil {
		p.done(fmt.Errorf("%w (%w)", batch.ErrAbandoned, err))
	}
}

// produce hands a letter to the client unless it is there already.
func (w *Writer) produce(ctx context.Context, p *parcel) {
	if p.written || p.try != nil {
		return
	}
	t := &try{ended: make(chan struct{})}
	p.try = t
	w.client.Produce(ctx, Encode(w.cfg.Topic, p.letter, w.cfg.Clock()), func(_ *kgo.Record, err error) {
		t.err = err
		close(t.ended)
	})
}

// await waits for the acknowledgement of a letter that was handed over.
func (w *Writer) await(ctx context.Context, p *parcel) error {
	if p.written {
		return nil
	}
	select {
	case <-p.try.ended:
	case <-ctx.Done():
		select {
		case <-p.try.ended:
		default:
			return context.Cause(ctx)
		}
	}
	err := p.try.err
	p.try = nil
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return context.Cause(ctx)
		}
		return err
	}
	p.written = true
	if w.metrics.Written != nil {
		w.metrics.Written(p.letter.Code)
	}
	w.events.Log(ctx, slog.LevelWarn, "dead-lettered", "a record was written to the dead-letter topic", append([]slog.Attr{
		slog.String("consumer", w.cfg.Consumer), slog.String("code", string(p.letter.Code)), slog.String("reason", p.letter.Reason),
		slog.String("topic", p.letter.Record.Topic), slog.Int64("partition", int64(p.letter.Record.Partition)),
		slog.Int64("offset", p.letter.Record.Offset), slog.Int("attempts", max(1, p.letter.Attempts))}, p.letter.Attrs...)...)
	return nil
}

// errNoAck is the cause of a try's end at the acknowledgement timeout.
var errNoAck = errors.New("no acknowledgement")

// explain turns an error of the client into a sentence that says what to do.
func (w *Writer) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoAck):
		return fmt.Errorf("the brokers have not acknowledged dead letters to %s within %s; check that they can be reached and that the topic has its min.insync.replicas", w.cfg.Topic, w.cfg.AckTimeout)
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("the dead-letter topic %s does not exist; create it with `vitrina topics apply`: %w", w.cfg.Topic, err)
	case errors.Is(err, kerr.UnknownTopicID):
		return fmt.Errorf("the dead-letter topic %s was deleted, or created again, in which case the next try goes to the new one; if it is missing, create it with `vitrina topics apply`: %w", w.cfg.Topic, err)
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return fmt.Errorf("the brokers do not allow this program to write to the dead-letter topic %s; grant it WRITE on the topic: %w", w.cfg.Topic, err)
	case errors.Is(err, kgo.ErrClientClosed):
		return fmt.Errorf("the Kafka client of the dead-letter topic %s was closed: %w: %w", w.cfg.Topic, batch.ErrFatal, batch.ErrAbandoned)
	}
	return fmt.Errorf("dead letters could not be written to %s: %w", w.cfg.Topic, err)
}
