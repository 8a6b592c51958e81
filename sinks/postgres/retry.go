package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/batch"
)

// RetryConfig bounds a RetryWorker. Zero fields take the default named beside them.
type RetryConfig struct {
	Epoch int64 // of projection Popularity when the worker was made. Required.
	// Delays are the waits before each retry (popularity.retry_delays); when the last one has failed the view is dead. Required.
	Delays  []time.Duration
	Poll    time.Duration  // how often due views and letters are looked for: 1 s
	Batch   int            // views, or letters, of one transaction at most: 500
	Backoff backoff.Config // while PostgreSQL or Kafka is away: 1 s to 60 s
	Timeout time.Duration  // ends one transaction from this side: 30 s
	// Lease is how long a claimed letter is left to the worker that claimed it: 2 minutes. Within it the letter is written,
	// or given up and written again later.
	Lease   time.Duration
	Tracing *telemetry.Tracing // continues the traces in the views' records: off
}

// RetryHooks hear of the worker's own doings, beside the ViewsMetrics that it shares with the sink; nil ones are left out.
type RetryHooks struct {
	Late func(late LateViews, now time.Time) // after each pass that found nothing to do, at most once in lateEvery
}

// lateEvery bounds how often the worker asks for the numbers of late views.
const lateEvery = 15 * time.Second

// RetryWorker looks again for the cards of pending views when they are due, and writes the letters of dead ones. Any number
// of instances may run at once: each due view is handled by one of them.
type RetryWorker struct {
	pool    *pgxpool.Pool
	cfg     RetryConfig
	letters Letters
	metrics ViewsMetrics
	hooks   RetryHooks
	logger  *slog.Logger
	clock   func() time.Time
	log     viewLog
	diedLog *telemetry.Event
	rival   bool // a transaction that is not ours keeps cards locked; of the goroutine that retries
}

// NewRetryWorker returns a worker for one epoch of the projection; see NewViewsSink.
func NewRetryWorker(pool *pgxpool.Pool, cfg RetryConfig, letters Letters, metrics ViewsMetrics, hooks RetryHooks,
	events *telemetry.EventLog, logger *slog.Logger, clock func() time.Time) (*RetryWorker, error) {
	if cfg.Epoch < 1 {
		return nil, fmt.Errorf("retry worker: the epoch (%d) must be that of projection %s", cfg.Epoch, Popularity)
	}
	if len(cfg.Delays) == 0 || slices.Min(cfg.Delays) <= 0 {
		return nil, fmt.Errorf("popularity.retry_delays (%v) must name at least one wait, each above 0", cfg.Delays)
	}
	cfg.Poll = cmp.Or(cfg.Poll, time.Second)
	cfg.Batch = cmp.Or(cfg.Batch, 500)
	cfg.Backoff = cmp.Or(cfg.Backoff, backoff.Default())
	cfg.Timeout = cmp.Or(cfg.Timeout, 30*time.Second)
	cfg.Lease = cmp.Or(cfg.Lease, 2*time.Minute)
	if cfg.Tracing == nil {
		cfg.Tracing = telemetry.NoTracing()
	}
	return &RetryWorker{
		pool: pool, cfg: cfg, letters: letters, metrics: metrics, hooks: hooks, logger: logger, clock: clock,
		log: newViewLog(events), diedLog: events.Event("view-died", slog.LevelWarn),
	}, nil
}

// Run works until ctx ends, and then returns nil. An outage is waited for with backoff; the only error is one that wraps
// batch.ErrFatal: the projection has another epoch or is closed, the worker must be made again.
func (w *RetryWorker) Run(ctx context.Context) error {
	wait := backoff.New(w.cfg.Backoff)
	var asked time.Time
	for ctx.Err() == nil {
		more, err := w.pass(ctx)
		switch {
		case errors.Is(err, batch.ErrFatal):
			return err
		case err != nil && ctx.Err() == nil:
			w.failed(ctx, err, wait)
		case err == nil && !more:
			wait.Reset()
			asked = w.report(ctx, asked)
			backoff.Sleep(ctx, w.cfg.Poll)
		default:
			wait.Reset()
		}
	}
	return nil
}

// failed waits until the next try after an outage.
func (w *RetryWorker) failed(ctx context.Context, err error, wait *backoff.Backoff) {
	pause := wait.Next()
	w.logger.LogAttrs(ctx, slog.LevelWarn, "late views wait: PostgreSQL or the dead-letter topic is away", slog.String("event", "retry-waits"),
		slog.Any("error", err), slog.Duration("retry_in", pause))
	backoff.Sleep(ctx, pause)
}

// report tells the numbers of late views when they were told long enough ago, and returns when they were told last.
func (w *RetryWorker) report(ctx context.Context, last time.Time) time.Time {
	now := w.clock()
	if w.hooks.Late == nil || now.Sub(last) < lateEvery {
		return last
	}
	late, err := ReadLateViews(ctx, w.pool)
	if err != nil {
		w.logger.LogAttrs(ctx, slog.LevelWarn, "the numbers of late views cannot be read", slog.String("event", "retry-waits"), slog.Any("error", err))
		return last
	}
	w.hooks.Late(late, now)
	return now
}

// pass retries one batch of views and writes one batch of letters. more says that there may be further ones due.
func (w *RetryWorker) pass(ctx context.Context) (more bool, err error) {
	retried, _, err := w.Retry(ctx)
	if err != nil {
		return false, err
	}
	letters, err := w.WriteLetters(ctx)
	return retried == w.cfg.Batch || letters == w.cfg.Batch, err
}

const dueViews = `SELECT view_id FROM vitrina.late_views WHERE next_try <= now() ORDER BY next_try LIMIT $1`

// Retry tries the views that are due longest, one batch at most, and says how many it took and how many of them it counted.
func (w *RetryWorker) Retry(ctx context.Context) (retried, counted int, err error) {
	rows, err := w.pool.Query(ctx, dueViews, w.cfg.Batch)
	if err != nil {
		return 0, 0, fmt.Errorf("looking for late views that are due: %w", err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	if err != nil {
		return 0, 0, fmt.Errorf("looking for late views that are due: %w", err)
	}
	if !w.rival {
		retried, counted, err = w.retryAll(ctx, due)
		if !lockTimedOut(err) {
			return retried, counted, err
		}
		w.rival = true
	}
	free, err := w.postpone(ctx, due)
	if err != nil {
		return retried, counted, fmt.Errorf("looking for the cards of late views that are locked: %w", err)
	}
	w.rival = len(free) < len(due)
	n, ok, err := w.retryAll(ctx, free)
	return retried + len(due) - len(free) + n, counted + ok, err
}

// postpone lets those of the due views wait once more whose cards another transaction keeps locked, and returns the others.
func (w *RetryWorker) postpone(ctx context.Context, due [][16]byte) ([][16]byte, error) {
	var postponed [][16]byte
	err := w.transact(ctx, func(ctx context.Context) error {
		return w.pool.QueryRow(ctx, `SELECT vitrina.postpone_views($1, $2, $3)`, w.cfg.Epoch, due, w.cfg.Delays[0]).Scan(&postponed)
	})
	return slices.DeleteFunc(due, func(id [16]byte) bool { return slices.Contains(postponed, id) }), err
}

// retryAll tries due views, puts aside those that the database refuses, and says how many it took and how many of them it counted.
func (w *RetryWorker) retryAll(ctx context.Context, due [][16]byte) (retried, counted int, err error) {
	var refused [][16]byte
	var causes []error
	err = bisectLetters(ctx, due, func(ctx context.Context, ids [][16]byte) (int, error) {
		n, ok, err := w.retry(ctx, ids)
		retried, counted = retried+n, counted+ok
		if err = asRaised(err); errors.As(err, new(*raisedError)) {
			ok++ // not to be taken for a database that refuses everything: many views of a guarded card would keep all others waiting
		}
		return ok, err
	}, func(id [16]byte, cause error) { refused, causes = append(refused, id), append(causes, cause) })
	for i, id := range refused {
		if err == nil {
			err = w.putAside(ctx, id, causes[i])
		}
	}
	if err != nil {
		return retried, counted, fmt.Errorf("retrying %d late views: %w", len(due), err)
	}
	return retried, counted, nil
}

const retryViews = `SELECT view_id, object_id, project_id, state::text, attempts, project_missing, view_source, duration_seconds
	FROM vitrina.retry_views($1, $2, $3)`

type retriedView struct {
	view, object, project [16]byte
	hasProject            bool
	state                 string
	attempts              int
	projectMissing        bool
	source                string
	seconds               int64
}

func (w *RetryWorker) retry(ctx context.Context, ids [][16]byte) (retried, counted int, err error) {
	producers, err := w.producers(ctx, ids)
	if err != nil {
		return 0, 0, err
	}
	ctx, span := w.cfg.Tracing.StartBatch(ctx, "count late views", len(ids), slices.Collect(maps.Values(producers)))
	var spans []trace.SpanContext // of the views that were counted
	defer func() { span.EndOf(ctx, spans, err, "postgresql", CountObject, CountProject) }()
	var views []retriedView
	err = w.transact(ctx, func(ctx context.Context) error {
		rows, err := w.pool.Query(ctx, retryViews, w.cfg.Epoch, ids, w.cfg.Delays)
		if err != nil {
			return err
		}
		views, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (v retriedView, err error) {
			var project *[16]byte
			err = row.Scan(&v.view, &v.object, &project, &v.state, &v.attempts, &v.projectMissing, &v.source, &v.seconds)
			if project != nil {
				v.project, v.hasProject = *project, true
			}
			return v, err
		})
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	var t viewTally
	for i := range views {
		v := &views[i]
		projectOf := func([16]byte) [16]byte { return v.project }
		switch v.state {
		case StateCounted:
			counted++
			if producer, traced := producers[v.view]; traced {
				spans = append(spans, producer)
			}
			t.count(v.source)
			w.log.incremented(ctx, w.log.now(), v.view, v.object, v.source, v.seconds, projectOf)
			if v.projectMissing {
				t.projectMissing++
				w.log.projectMissing(ctx, v.view, v.object, v.project, v.source)
			}
		case StateSkippedDelisted:
			t.delisted++
			w.log.delisted(ctx, v.view, v.object, v.source, v.seconds, projectOf)
		default:
			t.notFound++
			w.log.notFound(ctx, v.view, v.object, v.source, v.seconds, v.attempts+1)
			if v.state == StateDead {
				w.diedLog.Log(ctx, "no try is left, the view's dead letter is due", viewAttrs(v.view, v.object, v.source, v.seconds, slog.Int("tries", v.attempts+1))...)
			}
		}
	}
	w.metrics.add(&t)
	callIf(w.metrics.Retries, len(views))
	return len(views), counted, nil
}

// producers are the producers' spans in the views' records, none while tracing is off. They are read before the views are tried: the
// record of a counted view is deleted.
func (w *RetryWorker) producers(ctx context.Context, ids [][16]byte) (map[[16]byte]trace.SpanContext, error) {
	if !w.cfg.Tracing.Enabled() {
		return nil, nil //nolint:nilnil // a nil map holds no spans
	}
	spans := make(map[[16]byte]trace.SpanContext, len(ids))
	rows, err := w.pool.Query(ctx, `SELECT view_id, record FROM vitrina.late_views WHERE view_id = ANY ($1)`, ids)
	if err != nil {
		return nil, err
	}
	var id [16]byte
	var data []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &data}, func() error {
		// A record that cannot be read is the letters' to report.
		if rec, err := codecs.DecodeRecord(data); err == nil {
			if span := w.cfg.Tracing.Producer(ctx, rec); span.IsValid() {
				spans[id] = span
			}
		}
		return nil
	})
	return spans, err
}

// putAside lets a view wait once more that a trigger does not let be counted now, and makes dead one that the database refuses for good.
func (w *RetryWorker) putAside(ctx context.Context, id [16]byte, cause error) error {
	var raised *raisedError
	if !errors.As(cause, &raised) {
		return w.bury(ctx, id, cause)
	}
	err := w.transact(ctx, func(ctx context.Context) error {
		_, err := w.pool.Exec(ctx, `SELECT vitrina.postpone_view($1, $2, $3)`, w.cfg.Epoch, id, w.cfg.Delays[0])
		return err
	})
	if err != nil {
		return fmt.Errorf("letting view %s wait: %w", uuid.UUID(id), err)
	}
	w.log.raised(ctx, id, cause)
	return nil
}

// bury makes a view dead that the database refuses to count.
func (w *RetryWorker) bury(ctx context.Context, id [16]byte, cause error) error {
	reason := fmt.Sprintf("PostgreSQL refuses to count view %s for good: %s", uuid.UUID(id), Explain(cause))
	err := w.transact(ctx, func(ctx context.Context) error {
		_, err := w.pool.Exec(ctx, `SELECT vitrina.bury_view($1, $2, $3, $4)`, w.cfg.Epoch, id, string(codecs.CodeDatabaseRejected), reason)
		return err
	})
	if err != nil {
		return fmt.Errorf("storing view %s as dead: %w", uuid.UUID(id), err)
	}
	w.log.rejectedEvent.Log(ctx, reason, slog.String("property_object_view_id", uuid.UUID(id).String()))
	return nil
}

func (w *RetryWorker) transact(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.cfg.Timeout, fmt.Errorf("the transaction took longer than %s", w.cfg.Timeout))
	defer cancel()
	return Transact(ctx, do, func(error) { call(w.metrics.Retries, 1) })
}
