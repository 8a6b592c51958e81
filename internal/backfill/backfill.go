// Package backfill loads price history from files into the facts table: CSV, JSON lines (both also gzipped) and Parquet. A row
// is a bare payload of the price event and is judged by the very rules of events; its fact is identified by
// backfill:{PropertyObjectId}:{ChangedAt:O}, so a backfill that is repeated, or interrupted and resumed, leaves readers no
// duplicate, and no row meets an event's fact (specification 004, "Идемпотентность и replay").
package backfill

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
)

// Sink writes facts; *clickhouse.Inserter is one.
type Sink interface {
	Write(ctx context.Context, facts []*codecs.Fact, clock func() time.Time) ([]clickhouse.Refusal, error)
}

// Config is what a run needs. StateDir, Target and Clock are required; a zero elsewhere means the default.
type Config struct {
	StateDir  string // checkpoints and reports of rejected rows lie in its subdirectory backfill
	Target    string // names server, database and table: a checkpoint of one target says nothing about another
	BatchRows int    // rows of one insert at most; default 50,000
	Backoff   backoff.Config
	Clock     func() time.Time
	DryRun    bool           // judge every row and report the rejected ones, write no fact and no checkpoint
	Again     bool           // forget what a former run has done with the same content
	Progress  func(Progress) // called after each batch and whenever the run begins to wait; nil: not
}

const defaultBatchRows = 50000

// Progress is where a run is.
type Progress struct {
	File      string
	Bytes     int64 // of the file as it lies on disk, read so far
	Size      int64
	Rows      int64 // judged so far, those of a former run included
	Written   int64
	Rejected  int64
	WaitingOn string // why the run waits for ClickHouse; empty while it works
}

// FileReport is what became of one file.
type FileReport struct {
	File           string        `json:"file"`
	SHA256         string        `json:"sha256"`
	Rows           int64         `json:"rows"`
	Written        int64         `json:"written"`
	Rejected       int64         `json:"rejected"`
	ResumedAt      int64         `json:"resumedAt,omitempty"`      // rows that a former run had done
	AlreadyDone    bool          `json:"alreadyDone,omitempty"`    // a former run had done them all
	RejectedReport string        `json:"rejectedReport,omitempty"` // JSON lines of Reject; empty when nothing was rejected
	IgnoredColumns []string      `json:"ignoredColumns,omitempty"` // columns that are no field of the contract
	Took           time.Duration `json:"tookNs"`
}

// Reject is one line of the report of rejected rows.
type Reject struct {
	File   string      `json:"file"`
	Line   int64       `json:"line"` // of a Parquet file: the row, from 1
	Code   codecs.Code `json:"code"`
	Field  string      `json:"field,omitempty"`
	Reason string      `json:"reason"`
}

// Run loads the files one after the other and returns the report of each file that it came to. It waits for ClickHouse as long as
// it takes; a run whose context ends, or that is killed, goes on where it was when it is run again with the same content.
func Run(ctx context.Context, cfg Config, sink Sink, logger *slog.Logger, files ...string) ([]FileReport, error) {
	if cfg.StateDir == "" || cfg.Target == "" || cfg.Clock == nil {
		return nil, errors.New("backfill: a state directory, a target and a clock are required")
	}
	if cfg.BatchRows <= 0 {
		cfg.BatchRows = defaultBatchRows
	}
	if cfg.Backoff == (backoff.Config{}) {
		cfg.Backoff = backoff.Default()
	}
	if cfg.Progress == nil {
		cfg.Progress = func(Progress) {}
	}
	var reports []FileReport
	for _, file := range files {
		r := &run{cfg: cfg, sink: sink, logger: logger}
		err := r.file(ctx, file)
		reports = append(reports, r.report)
		if err != nil {
			return reports, fmt.Errorf("backfill %s: %w", file, err)
		}
	}
	return reports, nil
}

// run is the work on one file.
type run struct {
	cfg        Config
	sink       Sink
	logger     *slog.Logger
	report     FileReport
	size       int64
	checkpoint *checkpoint // nil in a dry run
	rejects    *rejects
	lastWarned time.Time
}

// chunk is what one insert and one checkpoint cover.
type chunk struct {
	facts   []*codecs.Fact
	lines   []int64 // of the facts
	rejects []Reject
	rows    int64 // judged since the file's beginning
	bytes   int64
}

func (r *run) file(ctx context.Context, file string) (err error) {
	started := r.cfg.Clock()
	r.report.File = file
	defer func() { r.report.Took = r.cfg.Clock().Sub(started) }()
	if r.report.SHA256, r.size, err = hashFile(ctx, file); err != nil {
		return err
	}
	if err := r.openState(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.rejects.close()) }()
	if r.report.AlreadyDone {
		return nil
	}
	src, err := openSource(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.close()) }()
	r.report.IgnoredColumns = src.ignored()

	// The next chunk is read and judged while the last one is inserted. A full channel bounds memory to three chunks.
	chunks := make(chan *chunk, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(chunks)
		return r.read(ctx, src, chunks)
	})
	g.Go(func() error {
		for c := range chunks {
			if err := r.write(ctx, c); err != nil {
				return err
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	if r.checkpoint == nil {
		return nil
	}
	r.checkpoint.Done = true
	return r.checkpoint.save()
}

// openState finds what a former run has done with the same content.
func (r *run) openState() error {
	dir := filepath.Join(r.cfg.StateDir, "backfill")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make the directory of checkpoints: %w", err)
	}
	key := sha256.Sum256([]byte(r.report.SHA256 + "\n" + r.cfg.Target))
	base := filepath.Join(dir, hex.EncodeToString(key[:12]))
	var err error
	if r.cfg.DryRun {
		r.rejects, err = openRejects(base+".dry-run.rejected.jsonl", 0)
		return err
	}
	if r.checkpoint, err = loadCheckpoint(base+".json", r.report.SHA256, r.cfg.Target, r.cfg.Again); err != nil {
		return err
	}
	r.checkpoint.File = r.report.File
	r.report.Rows, r.report.Written, r.report.Rejected = r.checkpoint.Rows, r.checkpoint.Written, r.checkpoint.Rejected
	r.report.ResumedAt, r.report.AlreadyDone = r.checkpoint.Rows, r.checkpoint.Done
	if r.report.Rejected > 0 {
		r.report.RejectedReport = base + ".rejected.jsonl"
	}
	r.rejects, err = openRejects(base+".rejected.jsonl", r.checkpoint.RejectsBytes)
	return err
}

// read judges rows and gathers them into chunks, leaving out those that a former run has done.
func (r *run) read(ctx context.Context, src source, chunks chan<- *chunk) error {
	rows := int64(0)
	c := &chunk{}
	send := func() error {
		c.rows, c.bytes = rows, src.bytes()
		select {
		case chunks <- c:
			c = &chunk{}
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for {
		row, err := src.next()
		if errors.Is(err, io.EOF) {
			return send()
		}
		if err != nil {
			return fmt.Errorf("read line %d: %w", row.line, err)
		}
		if rows++; rows <= r.report.ResumedAt {
			if rows%1024 == 0 && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			continue
		}
		r.judge(row, c)
		if len(c.facts)+len(c.rejects) >= r.cfg.BatchRows {
			if err := send(); err != nil {
				return err
			}
		}
	}
}

// judge applies the rules of events to a row.
func (r *run) judge(row row, c *chunk) {
	fault := row.fault
	if fault == nil {
		var price *codecs.Price
		if price, fault = codecs.DecodeBackfillPrice(row.payload, r.cfg.Clock()); fault == nil {
			c.facts = append(c.facts, &price.Fact)
			c.lines = append(c.lines, row.line)
			return
		}
	}
	c.rejects = append(c.rejects, Reject{File: r.report.File, Line: row.line, Code: fault.Code, Field: fault.Field, Reason: fault.Reason})
}

// write inserts a chunk, however long ClickHouse takes to come back, and notes it as done.
func (r *run) write(ctx context.Context, c *chunk) error {
	written := len(c.facts)
	if !r.cfg.DryRun && len(c.facts) > 0 {
		refused, err := r.insert(ctx, c)
		if err != nil {
			return err
		}
		written -= len(refused)
		for _, f := range refused {
			c.rejects = append(c.rejects, Reject{File: r.report.File, Line: c.lines[f.Index], Code: codecs.CodeDatabaseRejected, Reason: f.Reason()})
		}
	}
	r.report.Rows, r.report.Written, r.report.Rejected = c.rows, r.report.Written+int64(written), r.report.Rejected+int64(len(c.rejects))
	if err := r.rejects.add(c.rejects); err != nil {
		return err
	}
	if len(c.rejects) > 0 {
		r.report.RejectedReport = r.rejects.path
	}
	if r.checkpoint != nil {
		r.checkpoint.Rows, r.checkpoint.Written, r.checkpoint.Rejected = r.report.Rows, r.report.Written, r.report.Rejected
		r.checkpoint.RejectsBytes = r.rejects.size
		if err := r.checkpoint.save(); err != nil {
			return err
		}
	}
	r.cfg.Progress(r.progress(c, ""))
	return nil
}

// insert tries until ClickHouse has acknowledged the chunk.
func (r *run) insert(ctx context.Context, c *chunk) ([]clickhouse.Refusal, error) {
	pause := backoff.New(r.cfg.Backoff)
	for {
		refused, err := r.sink.Write(ctx, c.facts, r.cfg.Clock)
		var outage *clickhouse.Outage
		if err == nil || !errors.As(err, &outage) {
			return refused, err
		}
		r.cfg.Progress(r.progress(c, err.Error()))
		if now := r.cfg.Clock(); now.Sub(r.lastWarned) >= time.Minute {
			r.lastWarned = now
			r.logger.Warn("the backfill waits for ClickHouse", "event", "failed", "file", r.report.File, "error", err.Error())
		}
		if err := pause.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

func (r *run) progress(c *chunk, waitingOn string) Progress {
	return Progress{File: r.report.File, Bytes: min(c.bytes, r.size), Size: r.size, Rows: r.report.Rows, Written: r.report.Written,
		Rejected: r.report.Rejected, WaitingOn: waitingOn}
}

// hashFile identifies the content: a checkpoint belongs to it, whatever the file is called.
func hashFile(ctx context.Context, name string) (sum string, size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		n, err := f.Read(buf)
		h.Write(buf[:n])
		size += int64(n)
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(h.Sum(nil)), size, nil
		}
		if err != nil {
			return "", 0, fmt.Errorf("read: %w", err)
		}
		if ctx.Err() != nil {
			return "", 0, context.Cause(ctx)
		}
	}
}
