package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

// dueLetter is the letter of a dead view, leased to this worker.
type dueLetter struct {
	view         [16]byte
	generation   int32
	tries        int
	code, reason string
	record       []byte
	object       [16]byte
	source       string
	seconds      int64
}

// WriteLetters writes the letters that are due longest, one batch at most, and notes them as sent. The view is dead in a committed
// transaction before, and the note comes after the acknowledgement: a crash between repeats a letter and never loses one.
func (w *RetryWorker) WriteLetters(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, w.cfg.Lease*3/4, errors.New("the letters' lease is about to end; they are written again later"))
	defer cancel()
	var due []dueLetter
	err := w.transact(ctx, func(ctx context.Context) error {
		rows, err := w.pool.Query(ctx, `SELECT view_id, generation, tries, coalesce(code, ''), coalesce(reason, ''), record,
			object_id, view_source, duration_seconds FROM vitrina.claim_letters($1, $2, $3)`,
			w.cfg.Epoch, w.cfg.Batch, w.cfg.Lease)
		if err != nil {
			return err
		}
		due, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (l dueLetter, err error) {
			err = row.Scan(&l.view, &l.generation, &l.tries, &l.code, &l.reason, &l.record, &l.object, &l.source, &l.seconds)
			return l, err
		})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("claiming dead letters that are due: %w", err)
	}
	letters := make([]deadletter.Letter, 0, len(due))
	views, generations := make([][16]byte, 0, len(due)), make([]int32, 0, len(due))
	for _, l := range due {
		rec, err := codecs.DecodeRecord(l.record)
		if err != nil {
			// Only a change by hand can do this. The letter stays due, so that the oldest one keeps telling.
			w.logger.LogAttrs(ctx, slog.LevelError, "the record of a dead view cannot be read, its letter stays due; restore vitrina.late_views.record of this view",
				slog.String("event", "letter-unreadable"), slog.String("property_object_view_id", uuid.UUID(l.view).String()), slog.Any("error", err))
			continue
		}
		letters = append(letters, deadletter.Letter{Record: rec, Code: codecs.Code(l.code), Reason: l.reason, Attempts: l.tries,
			Attrs: letterAttrs(l.view, l.object, l.source, l.seconds)})
		views, generations = append(views, l.view), append(generations, l.generation)
	}
	if len(letters) == 0 {
		return len(due), nil
	}
	if err := w.letters.Write(ctx, letters...); err != nil {
		return 0, fmt.Errorf("writing %d dead letters of late views: %w", len(letters), err)
	}
	err = w.transact(ctx, func(ctx context.Context) error {
		_, err := w.pool.Exec(ctx, `SELECT vitrina.note_letters($1, $2)`, views, generations)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("noting %d dead letters as sent: %w", len(letters), err)
	}
	return len(due), nil
}
