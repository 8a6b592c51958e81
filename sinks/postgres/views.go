package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

// ViewItem is one view on its way to the ledger.
type ViewItem struct {
	ViewID, ObjectID uuid.UUID
	Origin           codecs.Origin // of the record as delivered
	Kind             codecs.MarkKind
	MarkAt           time.Time      // of the mark that was found; read for MarkForeign only
	Record           *record.Record // the original record: what a dead letter is made of
	ViewSource       string         // a configured name or Unknown; for the metric
	DurationSeconds  int64          // for the log

	Counted bool // set by Flush: this record's view is counted, now and by it
}

// The statements that count a view, as traces name them.
const (
	CountObject  = "UPDATE catalog.property_object_cards"
	CountProject = "UPDATE catalog.project_cards"
)

// markedAt is the form in which apply_views compares the mark with what the ledger has pruned.
func (i *ViewItem) markedAt() int64 {
	switch i.Kind {
	case codecs.MarkForeign:
		return i.MarkAt.Unix()
	case codecs.MarkEarlier:
		return math.MinInt64
	default:
		return math.MaxInt64
	}
}

// ViewsConfig bounds a ViewsSink. Zero fields take the default named beside them.
type ViewsConfig struct {
	Epoch       int64         // of projection Popularity when the sink was made (ReadProjection). Required.
	SourceTopic string        // names of the topics behind Origin, for people. Required.
	LoopTopic   string        // Required.
	FirstTry    time.Duration // wait before a view without card is tried again; the first of popularity.retry_delays. Required.
	Timeout     time.Duration // ends one transaction from this side: 30 s
}

// ViewsMetrics are hooks of the sink and of the retry worker; nil ones are left out. They may be called by several goroutines at once.
type ViewsMetrics struct {
	Counted        func(source string, views int) // counted on their object's card
	Duplicates     func(views int)                // known to the ledger, finished before, or an old mark's
	Delisted       func(views int)                // of Delisted cards
	NotFound       func(views int)                // tries that found no card, first ones and repeated ones
	ProjectMissing func(views int)                // counted without project
	Retries        func(tries int)                // repeated tries: of transactions that collided, of views without card
}

// ViewsSink counts views exactly once each (design E4; section 12, rules 1 to 5). It is safe for concurrent use, also by several
// instances on one database.
type ViewsSink struct {
	pool    *pgxpool.Pool
	cfg     ViewsConfig
	letters Letters
	metrics ViewsMetrics
	log     viewLog
	lanes   laneCache
	plain   plainInserts
	rival   atomic.Bool // a transaction that is not ours keeps cards locked

	delisted delistedObjects
	batches  sync.Pool // of *viewBatch
}

// NewViewsSink returns a sink for one epoch of the projection. Under another one, or while a rebuild has it closed, every
// Flush fails with an error that wraps batch.ErrFatal: the sink must be made again.
func NewViewsSink(pool *pgxpool.Pool, cfg ViewsConfig, letters Letters, metrics ViewsMetrics, events *telemetry.EventLog) (*ViewsSink, error) {
	switch {
	case cfg.Epoch < 1:
		return nil, fmt.Errorf("views sink: the epoch (%d) must be that of projection %s", cfg.Epoch, Popularity)
	case cfg.SourceTopic == "" || cfg.LoopTopic == "":
		return nil, errors.New("views sink: the names of the source and the loop topic are required")
	case cfg.FirstTry <= 0:
		return nil, fmt.Errorf("views sink: the wait before a view without card is tried again (%s) must be above 0", cfg.FirstTry)
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 30*time.Second)
	return &ViewsSink{
		pool: pool, cfg: cfg, letters: letters, metrics: metrics, log: newViewLog(events),
		lanes: newLaneCache(cfg.SourceTopic, cfg.LoopTopic),
	}, nil
}

// Flush applies a batch; it is a batch.Flush. When it returns nil, each view is durably one of
//   - counted on its object's card and on the project that the card names, both in the transaction that made its ledger row;
//   - a duplicate, a view of a Delisted card, or pending, with its record, because its object has no card yet, a locked one, or one
//     whose counter a trigger of the catalog does not let be written;
//   - dead, with a DATABASE_REJECTED letter due, because the database refuses to count it for good. The retry worker writes the
//     letter; only where not even that row is taken does Flush write it.
//
// An error is an outage, and so is a database that refuses one view after another. The batch may come again whatever was applied of it: a view already in the ledger is a duplicate.
func (s *ViewsSink) Flush(ctx context.Context, values []ViewItem) error {
	if err := s.lanes.ensure(ctx, s.pool, values); err != nil {
		return fmt.Errorf("applying %d views: %w", len(values), err)
	}
	type rejection struct {
		item  ViewItem
		cause error
	}
	var rejected []rejection
	err := bisectLetters(ctx, values, func(ctx context.Context, part []ViewItem) (int, error) {
		taken, err := s.applyAround(ctx, part)
		return taken, asRaised(err)
	}, func(item ViewItem, cause error) { rejected = append(rejected, rejection{item, cause}) })
	for i := range rejected {
		if err == nil {
			err = s.putAside(ctx, &rejected[i].item, rejected[i].cause)
		}
	}
	if err != nil {
		return fmt.Errorf("applying %d views: %w", len(values), err)
	}
	return nil
}

// transact runs one transaction within the sink's timeout.
func (s *ViewsSink) transact(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.Timeout, fmt.Errorf("the transaction took longer than %s", s.cfg.Timeout))
	defer cancel()
	return Transact(ctx, do, func(error) { call(s.metrics.Retries, 1) })
}

// putAside makes a view pending that a trigger does not let be counted now, and dead one that the database refuses for good.
func (s *ViewsSink) putAside(ctx context.Context, item *ViewItem, cause error) error {
	var raised *raisedError
	if !errors.As(cause, &raised) {
		return s.bury(ctx, item, cause)
	}
	if _, err := s.settleAll(ctx, []*ViewItem{item}, true); err != nil {
		return fmt.Errorf("storing view %s as pending: %w", item.ViewID, err)
	}
	s.log.raised(ctx, item.ViewID, cause, slog.String("property_object_id", item.ObjectID.String()))
	return nil
}

const rejectView = `SELECT vitrina.reject_view($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`

// bury makes the ledger row of a view that the database refuses to count, so that its letter, put back later, counts (D17).
func (s *ViewsSink) bury(ctx context.Context, item *ViewItem, cause error) error {
	reason := fmt.Sprintf("PostgreSQL refuses to count view %s of property object %s for good: %s", item.ViewID, item.ObjectID, Explain(cause))
	var dead bool
	err := s.transact(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, rejectView, s.cfg.Epoch, s.lanes.of(item.Origin), item.Origin.Offset, [16]byte(item.ViewID), [16]byte(item.ObjectID),
			item.markedAt(), codecs.EncodeRecord(item.Record), item.ViewSource, item.DurationSeconds, string(codecs.CodeDatabaseRejected), reason).Scan(&dead)
	})
	switch {
	case err == nil && dead:
		s.log.rejected(ctx, item, reason)
		return nil
	case err == nil:
		call(s.metrics.Duplicates, 1)
		return nil
	case FaultOf(err) == Rejected:
		letter := deadletter.Letter{Record: item.Record, Code: codecs.CodeDatabaseRejected, Reason: reason, Attempts: 1,
			Attrs: letterAttrs(item.ViewID, item.ObjectID, item.ViewSource, item.DurationSeconds)}
		if err := s.letters.Write(ctx, letter); err != nil {
			return fmt.Errorf("writing the dead letter of view %s: %w", item.ViewID, err)
		}
		return nil
	default:
		return fmt.Errorf("storing view %s as dead: %w", item.ViewID, err)
	}
}
