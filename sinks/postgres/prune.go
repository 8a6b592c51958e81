package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/sinks/batch"
)

// LaneProgress is how far the group has come in one partition.
type LaneProgress struct {
	Lane
	Committed int64 // the group's committed offset; the partition's first offset where nothing is committed yet
	End       int64 // the offset after the last record that can be delivered (not after a trailing transaction marker)
}

// Progress reads the offsets of all partitions of the source and the loop topic, in their present incarnation. It must read all
// committed offsets before the first end.
type Progress interface {
	ViewProgress(ctx context.Context) ([]LaneProgress, error)
}

// PruneConfig bounds a Pruner. Zero fields take the default named beside them.
type PruneConfig struct {
	Epoch    int64          // of projection Popularity when the pruner was made. Required.
	Window   time.Duration  // how long counted and skipped rows are kept: 7 days
	Margin   time.Duration  // how far apart the clocks of instances and database may be: 5 minutes
	Interval time.Duration  // between two passes of all instances together: 10 minutes
	Pages    int            // pages of the ledger in one transaction: 64, some 6,000 rows
	Pause    time.Duration  // between two such transactions: 20 ms
	Backoff  backoff.Config // while PostgreSQL or Kafka is away: 1 s to 60 s
	Timeout  time.Duration  // ends one transaction from this side: 30 s
}

// PruneReport says what a pass did.
type PruneReport struct {
	Before time.Time // rows older than this could go; zero when none could
	Rows   int64     // rows deleted
	Pages  int64     // pages read
	Took   time.Duration
}

// Pruner keeps the ledger bounded (design E4). Any number of instances may run at once: one of them makes each pass.
type Pruner struct {
	pool     *pgxpool.Pool
	cfg      PruneConfig
	progress Progress
	logger   *slog.Logger
	clock    func() time.Time
}

// NewPruner returns a pruner for one epoch of the projection; see NewViewsSink.
func NewPruner(pool *pgxpool.Pool, cfg PruneConfig, progress Progress, logger *slog.Logger, clock func() time.Time) (*Pruner, error) {
	if cfg.Epoch < 1 {
		return nil, fmt.Errorf("pruner: the epoch (%d) must be that of projection %s", cfg.Epoch, Popularity)
	}
	if cfg.Window < 0 || cfg.Margin < 0 {
		return nil, fmt.Errorf("pruner: the ledger's window (%s) and its margin (%s) must not be below 0", cfg.Window, cfg.Margin)
	}
	cfg.Window = cmp.Or(cfg.Window, 7*24*time.Hour)
	cfg.Margin = cmp.Or(cfg.Margin, 5*time.Minute)
	cfg.Interval = cmp.Or(cfg.Interval, 10*time.Minute)
	cfg.Pages = cmp.Or(cfg.Pages, 64)
	cfg.Pause = cmp.Or(cfg.Pause, 20*time.Millisecond)
	cfg.Backoff = cmp.Or(cfg.Backoff, backoff.Default())
	cfg.Timeout = cmp.Or(cfg.Timeout, 30*time.Second)
	return &Pruner{pool: pool, cfg: cfg, progress: progress, logger: logger, clock: clock}, nil
}

// Run prunes until ctx ends, and then returns nil. An outage is waited for with backoff; the only error is one that wraps
// batch.ErrFatal: the projection has another epoch or is closed, the pruner must be made again.
func (p *Pruner) Run(ctx context.Context) error {
	wait := backoff.New(p.cfg.Backoff)
	for ctx.Err() == nil {
		rest, err := p.untilDue(ctx)
		if err == nil && rest <= 0 {
			_, err = p.Prune(ctx)
			rest = p.cfg.Interval
		}
		if errors.Is(err, batch.ErrFatal) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			rest = wait.Next()
			p.logger.LogAttrs(ctx, slog.LevelWarn, "pruning the ledger of views waits", slog.String("event", "pruning-waits"),
				slog.Any("error", err), slog.Duration("retry_in", rest))
		} else {
			wait.Reset()
		}
		backoff.Sleep(ctx, rest)
	}
	return nil
}

// untilDue is how long the next pass has to wait for the last one, whichever instance made it.
func (p *Pruner) untilDue(ctx context.Context) (time.Duration, error) {
	var rest time.Duration
	err := p.pool.QueryRow(ctx, `SELECT CASE WHEN isfinite(passed_at) THEN greatest(passed_at + $1::interval - clock_timestamp(), interval '0') ELSE interval '0' END
		FROM vitrina.views_ledger`, p.cfg.Interval).Scan(&rest)
	if err != nil {
		return 0, fmt.Errorf("asking when the ledger was pruned last: %w", err)
	}
	return rest, nil
}

// Prune makes one pass: it moves the horizons up to the committed offsets and deletes what is older than the window and not
// needed any more (migration 00203 says when). A row goes at the first pass after the window, but never before the third pass after it was
// counted, and the group has to come past what lay in its topics at the first two of those.
func (p *Pruner) Prune(ctx context.Context) (PruneReport, error) {
	var r PruneReport
	begun := p.clock()
	before, blocks, err := p.prepare(ctx)
	if err != nil {
		return r, err
	}
	if before != nil {
		r.Before = *before
		for from := int64(0); from < blocks; from += int64(p.cfg.Pages) {
			if from > 0 {
				backoff.Sleep(ctx, p.cfg.Pause)
			}
			n, err := p.prune(ctx, from)
			if err != nil {
				return r, err
			}
			r.Rows += n
			r.Pages = min(from+int64(p.cfg.Pages), blocks)
		}
	}
	r.Took = p.clock().Sub(begun)
	level := slog.LevelDebug
	if r.Rows > 0 {
		level = slog.LevelInfo
	}
	p.logger.LogAttrs(ctx, level, "the ledger of views was pruned", slog.String("event", "ledger-pruned"),
		slog.Int64("rows", r.Rows), slog.Int64("pages", r.Pages), slog.Time("before", r.Before), slog.Duration("took", r.Took))
	return r, nil
}

const preparePruning = `SELECT o_before, coalesce(o_blocks, 0) FROM vitrina.prepare_pruning($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

func (p *Pruner) prepare(ctx context.Context) (before *time.Time, blocks int64, err error) {
	var observedAt time.Time
	if err := p.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&observedAt); err != nil {
		return nil, 0, fmt.Errorf("reading the database's clock: %w", err)
	}
	progress, err := p.progress.ViewProgress(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("reading the committed offsets of the group: %w", err)
	}
	lanes := make([]Lane, len(progress))
	committed, ends := make([]int64, len(progress)), make([]int64, len(progress))
	for i, l := range progress {
		lanes[i], committed[i], ends[i] = l.Lane, l.Committed, l.End
	}
	c := columnsOf(lanes)
	err = p.transact(ctx, func(ctx context.Context) error {
		return p.pool.QueryRow(ctx, preparePruning, p.cfg.Epoch, c.incarnations, c.loops, c.partitions, c.topics,
			committed, ends, observedAt, p.cfg.Window, p.cfg.Margin).Scan(&before, &blocks)
	})
	if err != nil {
		return nil, 0, fmt.Errorf("moving the ledger's horizons: %w", err)
	}
	return before, blocks, nil
}

func (p *Pruner) prune(ctx context.Context, from int64) (rows int64, err error) {
	err = p.transact(ctx, func(ctx context.Context) error {
		return p.pool.QueryRow(ctx, `SELECT vitrina.prune_views($1, $2, $3)`, p.cfg.Epoch, from, from+int64(p.cfg.Pages)).Scan(&rows)
	})
	if err != nil {
		return 0, fmt.Errorf("pruning the ledger: %w", err)
	}
	return rows, nil
}

func (p *Pruner) transact(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout, fmt.Errorf("the transaction took longer than %s", p.cfg.Timeout))
	defer cancel()
	return Transact(ctx, do, nil)
}
