package dlq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/time/rate"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

// Request chooses letters: by IDs, by Filter, or All of them.
type Request struct {
	Consumer config.Consumer
	IDs      []string
	Filter   Filter
	All      bool
	DryRun   bool
	Again    bool            // letters too that were put back, dropped or parked before, whatever their returns
	Rate     int             // records a second; 0: the setting
	UpTo     map[int32]int64 // ends of an earlier, unfinished run; nil: the present ones
	Until    time.Time       // stop after it, between two batches; zero: work to the end
	By       string          // for the records
	Reason   string          // of a drop
	Progress func(Report)    // after each batch; nil: not
}

// Result is what became of one letter.
type Result struct {
	ID      string `json:"id"`
	Result  string `json:"result"` // replayed, dropped, parked, skipped, refused
	Target  string `json:"target,omitempty"`
	Returns int    `json:"returns,omitempty"`
	Why     string `json:"why,omitempty"`
}

// Report is what a run did, or in a dry run would do.
type Report struct {
	Consumer string          `json:"consumer"`
	Topic    string          `json:"topic"`
	DryRun   bool            `json:"dryRun"`
	Replayed int             `json:"replayed"`
	Dropped  int             `json:"dropped"`
	Parked   int             `json:"parked"`  // came back too often
	Skipped  int             `json:"skipped"` // handled before
	Refused  int             `json:"refused"` // cannot be put back
	Complete bool            `json:"complete"`
	UpTo     map[int32]int64 `json:"upTo"`    // where the run ends: send it along to go on with an unfinished one
	Results  []Result        `json:"results"` // the first ones
}

const (
	maxResults = 1000
	maxBatch   = 500
)

func (r *Report) add(x Result) {
	switch x.Result {
	case StateReplayed:
		r.Replayed++
	case StateDropped:
		r.Dropped++
	case StateParked:
		r.Parked++
	case "skipped":
		r.Skipped++
	default:
		r.Refused++
	}
	if len(r.Results) < maxResults {
		r.Results = append(r.Results, x)
	}
}

// NothingError says that a request chooses no letters at all.
type NothingError struct{}

func (NothingError) Error() string {
	return "nothing is asked for: choose letters by ids, by a filter, or all of them"
}

// InvalidError is a request that cannot be understood.
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return e.Reason }

func (r *Request) validate() error {
	if err := r.Filter.Validate(); err != nil {
		return &InvalidError{err.Error()}
	}
	chosen := 0
	for _, way := range []bool{len(r.IDs) > 0, !r.Filter.Empty(), r.All} {
		if way {
			chosen++
		}
	}
	switch {
	case chosen == 0:
		return NothingError{}
	case chosen > 1:
		return &InvalidError{"ids, a filter and all exclude each other: choose one"}
	case len(r.IDs) > maxResults:
		return &InvalidError{fmt.Sprintf("%d ids are too many at once, %d is the most: choose by a filter", len(r.IDs), maxResults)}
	case r.Rate < 0:
		return &InvalidError{"the rate must be 1 or more records a second"}
	}
	for _, id := range r.IDs {
		if _, _, err := ParseID(id); err != nil {
			return &InvalidError{err.Error()}
		}
	}
	return nil
}

// Replay puts letters back on the topic they came from. An error comes with the report of what was done before it; the same
// request goes on from there. Errors: NothingError, InvalidError, NotFoundError, BusyError, outages.
func (s *Service) Replay(ctx context.Context, req Request) (Report, error) {
	if err := req.validate(); err != nil {
		return Report{}, err
	}
	perSecond := req.Rate
	if perSecond == 0 {
		perSecond = max(1, s.Rate)
	}
	batch := min(perSecond, maxBatch)
	limiter := rate.NewLimiter(rate.Limit(perSecond), batch)
	sources, err := s.Admin.Topics(ctx, req.Consumer.Topic)
	if err != nil {
		return Report{}, err
	}
	source, ok := sources[req.Consumer.Topic]
	if !ok {
		return Report{}, fmt.Errorf("topic %s, where the records came from, does not exist", req.Consumer.Topic)
	}
	client, err := kgo.NewClient(append(s.Kafka.KgoOpts(), append(deadletter.ClientOptions(), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RecordDeliveryTimeout(time.Minute), kgo.MetadataMinAge(100*time.Millisecond))...)...)
	if err != nil {
		return Report{}, fmt.Errorf("create a Kafka client: %w", err)
	}
	defer client.Close()
	return s.work(ctx, req, batch, func(ctx context.Context, t topic, letters []*Letter, report *Report) error {
		if !req.DryRun {
			if err := limiter.WaitN(ctx, len(letters)); err != nil {
				return fmt.Errorf("the replay was interrupted: %w", err)
			}
		}
		return s.putBack(ctx, client, req, t, source, letters, report)
	})
}

// Drop notes letters as dropped. They stay in the topic until its retention ends, and are hidden from lists.
func (s *Service) Drop(ctx context.Context, req Request) (Report, error) {
	if err := req.validate(); err != nil {
		return Report{}, err
	}
	req.Reason = strings.TrimSpace(req.Reason)
	if req.Reason == "" {
		return Report{}, &InvalidError{"a drop needs a reason, for those who look for the letter later"}
	}
	return s.work(ctx, req, maxBatch, func(ctx context.Context, t topic, letters []*Letter, report *Report) error {
		if !req.DryRun {
			if err := s.note(ctx, t, StateDropped, req.By, req.Reason, letters, func(l *Letter) int { return l.Returns }); err != nil {
				return err
			}
		}
		for _, l := range letters {
			report.add(Result{ID: l.ID, Result: StateDropped})
			if !req.DryRun {
				s.audit(ctx, "dead-letter-dropped", l, req, slog.String("why", req.Reason))
			}
		}
		return nil
	})
}

func (s *Service) audit(ctx context.Context, event string, l *Letter, req Request, more ...slog.Attr) {
	s.Logger.LogAttrs(ctx, slog.LevelInfo, "a dead letter was handled", append([]slog.Attr{slog.String("event", event), slog.String("consumer", l.Consumer),
		slog.String("letter", l.ID), slog.String("topic", l.Topic), slog.String("code", l.Code), slog.String("by", req.By)}, more...)...)
}

// work gives the chosen letters that are still to be handled to do, in batches, in the order of each partition.
func (s *Service) work(ctx context.Context, req Request, size int, do func(context.Context, topic, []*Letter, *Report) error) (Report, error) {
	report := Report{Consumer: req.Consumer.Role, Topic: req.Consumer.DLQ, DryRun: req.DryRun, UpTo: map[int32]int64{}, Results: []Result{}}
	if !req.DryRun {
		unlock, err := s.lock(ctx, req.Consumer.DLQ)
		if err != nil {
			return report, err
		}
		defer unlock()
	}
	t, err := s.look(ctx, req.Consumer.DLQ)
	if err != nil {
		return report, err
	}
	// The ends of now: what dies again is not met again in this run.
	for p, b := range t.bounds {
		if to, ok := req.UpTo[p]; req.UpTo != nil {
			if !ok {
				to = b.From
			}
			t.bounds[p] = stream.Range{From: b.From, To: max(b.From, min(b.To, to))}
		}
		report.UpTo[p] = t.bounds[p].To
	}
	if !req.DryRun {
		if err := s.prune(ctx, t); err != nil {
			return report, err
		}
	}
	w := &worker{service: s, req: req, topic: t, size: size, do: do, report: &report}
	if len(req.IDs) > 0 {
		err = w.chosen(ctx)
	} else {
		err = s.Admin.ReadRanges(ctx, t.name, t.bounds, func(rec *kgo.Record) (bool, error) {
			l := read(req.Consumer.Role, rec)
			if !req.Filter.matches(&l) {
				return true, nil
			}
			return w.take(ctx, &l)
		})
	}
	if err == nil {
		err = w.flush(ctx)
	}
	report.Complete = err == nil && !w.stopped
	return report, err
}

// worker gathers letters into batches.
type worker struct {
	service *Service
	req     Request
	topic   topic
	size    int
	do      func(context.Context, topic, []*Letter, *Report) error
	report  *Report
	batch   []*Letter
	stopped bool
}

func (w *worker) chosen(ctx context.Context) error {
	letters, err := w.service.fetch(ctx, w.req.Consumer, w.topic, w.req.IDs)
	if err != nil {
		return err
	}
	list := slices.SortedFunc(maps.Values(letters), func(a, b *Letter) int {
		if a.Partition != b.Partition {
			return int(a.Partition) - int(b.Partition)
		}
		return int(min(1, max(-1, a.Offset-b.Offset)))
	})
	for _, l := range list {
		if more, err := w.take(ctx, l); err != nil || !more {
			return err
		}
	}
	return nil
}

func (w *worker) take(ctx context.Context, l *Letter) (bool, error) {
	w.batch = append(w.batch, l)
	if len(w.batch) < w.size {
		return true, nil
	}
	err := w.flush(ctx)
	if err == nil && !w.req.Until.IsZero() && w.service.Clock().After(w.req.Until) {
		w.stopped = true
		return false, nil
	}
	return err == nil, err
}

// flush works on the batch, less what was handled before.
func (w *worker) flush(ctx context.Context) error {
	batch := w.batch
	w.batch = nil
	if len(batch) == 0 || w.stopped {
		return nil
	}
	if err := w.service.states(ctx, w.topic, batch); err != nil {
		return err
	}
	todo := batch[:0]
	for _, l := range batch {
		switch {
		case w.req.Filter.State != "" && !w.req.Filter.admits(l.State):
		case l.State != StateWaiting && !w.req.Again:
			w.report.add(Result{ID: l.ID, Result: "skipped", Why: fmt.Sprintf("%s on %s by %s", l.State, l.Action.At.Format(time.RFC3339), l.Action.By)})
		default:
			todo = append(todo, l)
		}
	}
	if len(todo) > 0 {
		if err := w.do(ctx, w.topic, todo, w.report); err != nil {
			return err
		}
	}
	if w.req.Progress != nil {
		w.req.Progress(*w.report)
	}
	return nil
}

// putBack produces one batch and then notes it.
func (s *Service) putBack(ctx context.Context, client *kgo.Client, req Request, t topic, source stream.Topic, letters []*Letter, report *Report) error {
	var send, parked []*Letter
	var records []*kgo.Record
	for _, l := range letters {
		switch {
		case l.Source.Topic != "" && l.Source.Topic != req.Consumer.Topic:
			report.add(Result{ID: l.ID, Result: "refused", Why: "it names " + strconv.Quote(l.Source.Topic) + " as its source, consumer " + req.Consumer.Role + " reads " + req.Consumer.Topic})
		case l.Returns >= s.MaxReturns && !req.Again:
			parked = append(parked, l)
		default:
			send = append(send, l)
			records = append(records, s.original(l, req.Consumer, source))
		}
	}
	var failed error
	var done []*Letter
	if !req.DryRun && len(records) > 0 {
		byRecord := make(map[*kgo.Record]*Letter, len(records))
		for i, r := range records {
			byRecord[r] = send[i]
		}
		for _, res := range produce(ctx, client, records) {
			l := byRecord[res.Record]
			switch {
			case res.Err == nil:
				done = append(done, l)
			case deadletter.TooLarge(res.Err), errors.Is(res.Err, kerr.InvalidRecord):
				report.add(Result{ID: l.ID, Result: "refused", Why: "the source topic does not take it: " + res.Err.Error()})
			default:
				failed = errors.Join(failed, fmt.Errorf("put letter %s back on %s: %w", l.ID, req.Consumer.Topic, res.Err))
			}
		}
		slices.SortFunc(done, func(a, b *Letter) int { return slices.Index(send, a) - slices.Index(send, b) })
	} else {
		done = send
	}
	if !req.DryRun {
		// Noted even if ctx has ended meanwhile: what is not noted comes again.
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		why := fmt.Sprintf("it has come back %d times (dead_letters.max_returns)", s.MaxReturns)
		err := errors.Join(s.note(bound, t, StateReplayed, req.By, req.Reason, done, func(l *Letter) int { return l.Returns + 1 }),
			s.note(bound, t, StateParked, req.By, why, parked, func(l *Letter) int { return l.Returns }))
		if err != nil {
			return errors.Join(failed, err)
		}
	}
	for _, l := range done {
		at := targetOf(l, source, s.hasher(req.Consumer))
		report.add(Result{ID: l.ID, Result: StateReplayed, Target: fmt.Sprintf("%s/%d", req.Consumer.Topic, at), Returns: l.Returns + 1})
		if !req.DryRun {
			s.audit(ctx, "dead-letter-replayed", l, req, slog.Int("returns", l.Returns+1), slog.Int("partition", int(at)))
		}
	}
	for _, l := range parked {
		report.add(Result{ID: l.ID, Result: StateParked, Returns: l.Returns, Why: fmt.Sprintf("it has come back %d times (dead_letters.max_returns)", l.Returns)})
		if !req.DryRun {
			s.audit(ctx, "dead-letter-parked", l, req, slog.Int("returns", l.Returns))
		}
	}
	return failed
}

// maxTogether is what is given to the client at once: it makes one batch of it, and a topic that takes each of the records need not take
// all of them in one batch.
const maxTogether = 900_000

// produce waits for the records' acknowledgements. What is too large together goes alone.
func produce(ctx context.Context, client *kgo.Client, records []*kgo.Record) (results kgo.ProduceResults) {
	for len(records) > 0 {
		n, size := 0, 0
		for n < len(records) && (n == 0 || size+len(records[n].Value) < maxTogether) {
			size += len(records[n].Value) + 200
			n++
		}
		part := client.ProduceSync(ctx, records[:n]...)
		for _, r := range part {
			if n > 1 && deadletter.TooLarge(r.Err) {
				alone := *r.Record
				r.Err = client.ProduceSync(ctx, &alone).FirstErr()
			}
			results = append(results, r)
		}
		records = records[n:]
	}
	return results
}

// original is the record as it was before it died, with the count of its returns.
func (s *Service) original(l *Letter, c config.Consumer, source stream.Topic) *kgo.Record {
	headers := make([]kgo.RecordHeader, 0, len(l.rec.Headers)+1)
	for _, h := range l.rec.Headers {
		if !deadletter.IsOwnHeader(h.Key) && !foreign(h.Key) && !strings.EqualFold(h.Key, HeaderReturns) {
			headers = append(headers, h)
		}
	}
	headers = append(headers, kgo.RecordHeader{Key: HeaderReturns, Value: []byte(strconv.Itoa(l.Returns + 1))})
	return &kgo.Record{Topic: c.Topic, Partition: targetOf(l, source, s.hasher(c)), Key: l.rec.Key, Value: l.rec.Value, Headers: headers}
}

func (s *Service) hasher(c config.Consumer) string {
	if h := s.Hashers[c.Role]; h != "" {
		return h
	}
	return string(stream.CRC32)
}

// targetOf is the partition a record goes back to: the one it came from, so that the order of its key holds, else the one its
// producer would choose.
func targetOf(l *Letter, source stream.Topic, hasher string) int32 {
	if p := l.Source.Partition; p != nil && *p < source.Partitions {
		return *p
	}
	if l.rec.Key == nil {
		return int32(l.Offset % int64(source.Partitions)) //nolint:gosec // below the partition count
	}
	return max(0, stream.PartitionOf(hasher, l.rec.Key, source.Partitions))
}
