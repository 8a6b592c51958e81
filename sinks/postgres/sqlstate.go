package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pin-marketplace/vitrina/sinks/batch"
)

// Fault is what an error of the database means for the batch that met it.
type Fault int

const (
	// Outage is a database that could not do it now (connection, timeout, resources, missing table): the batch comes again
	// after the backoff.
	Outage Fault = iota
	// Collision is a transaction that lost against another one (40001, 40P01): tried again at once.
	Collision
	// Rejected are data that are refused for good (SQLSTATE classes 22 and 23): retrying cannot help (design, section 12, rule 12).
	Rejected
	// Fenced is a projection that is closed or has another epoch (design E6).
	Fenced
	// Slow is a statement that the server's timeout ended: a smaller batch may do.
	Slow
)

// sqlstateFenced is raised by vitrina.require_epoch.
const sqlstateFenced = "VT001"

// FaultOf classifies an error; nil and errors that are not the server's are an Outage.
func FaultOf(err error) Fault {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return Outage
	}
	var raised *raisedError
	switch {
	case errors.As(err, &raised):
		return Rejected
	case pgErr.Code == sqlstateFenced:
		return Fenced
	case pgErr.Code == "40001", pgErr.Code == "40P01":
		return Collision
	case strings.HasPrefix(pgErr.Code, "22"), strings.HasPrefix(pgErr.Code, "23"):
		return Rejected
	case pgErr.Code == "57014":
		return Slow
	default:
		return Outage
	}
}

// raisedError is an exception that a trigger raises in its own words (P0001): about a card, and perhaps only for a while ("frozen by
// finance"). Like a rejection it splits a batch, or one such card would stop the partitions of all others; unlike one it is no reason for a
// dead letter: what meets it waits in the database.
type raisedError struct{ cause error }

func (e *raisedError) Error() string { return e.cause.Error() }
func (e *raisedError) Unwrap() error { return e.cause }

// asRaised marks such an exception for a caller that can let its values wait; to any other it is an Outage.
func asRaised(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "P0001" { // our own functions raise with a code
		return &raisedError{err}
	}
	return err
}

// lockTimedOut says that a statement waited too long for a lock of another transaction.
func lockTimedOut(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "55P03"
}

// Explain words a database error for logs and dead letters: message, detail-free (a detail may quote values of foreign
// tables), with SQLSTATE, table, column and constraint where the server named them.
func Explain(err error) string {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err.Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s (SQLSTATE %s", pgErr.Message, pgErr.Code)
	for _, part := range [][2]string{{"table", pgErr.TableName}, {"column", pgErr.ColumnName}, {"constraint", pgErr.ConstraintName}} {
		if part[1] != "" {
			fmt.Fprintf(&b, ", %s %s", part[0], part[1])
		}
	}
	b.WriteString(")")
	return b.String()
}

// collisionTries is how often a transaction that lost a deadlock is run at once before the loss counts as an outage.
const collisionTries = 5

// Transact runs one transaction (do must be exactly one, rolled back on error) and runs it again at once when it collided
// with another one, collisionTries times at most; collided, which may be nil, hears of each. An error about the epoch comes
// back wrapping batch.ErrFatal.
func Transact(ctx context.Context, do func(context.Context) error, collided func(error)) error {
	for try := 1; ; try++ {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		err := do(ctx)
		switch {
		case err == nil:
			return nil
		case FaultOf(err) == Fenced:
			return fmt.Errorf("%w: %w", batch.ErrFatal, err)
		case FaultOf(err) != Collision || try == collisionTries:
			return err
		}
		if collided != nil {
			collided(err)
		}
	}
}

// Bisect applies values in their order, each by exactly one successful call of apply or, when apply rejects it alone,
// handed to reject. Only Rejected and Slow faults split a batch (a replay that reaches millions of cards in one batch would time
// out for ever); any other error ends it, and what was applied before stays applied: apply must bear to be repeated.
func Bisect[T any](ctx context.Context, values []T, apply func(context.Context, []T) error, reject func(T, error)) error {
	if len(values) == 0 {
		return nil
	}
	err := apply(ctx, values)
	fault := FaultOf(err)
	if err == nil || fault != Rejected && fault != Slow || ctx.Err() != nil {
		return err
	}
	if len(values) == 1 {
		if fault == Slow {
			return err
		}
		reject(values[0], err)
		return nil
	}
	half := len(values) / 2
	if err := Bisect(ctx, values[:half], apply, reject); err != nil {
		return err
	}
	return Bisect(ctx, values[half:], apply, reject)
}

// refusesAll is how many records the database has to refuse, with none taken, for the catalog to be at fault and not the events:
// a wrong constraint or trigger must not send a topic to the dead letters. Fewer are dead-lettered: a few bad events alone in
// their batch must not stop the topic either.
const refusesAll = 16

// bisectLetters is Bisect for records that are dead-lettered when they are refused; apply also says how many of its values prove that
// the database takes some. Nothing may be dead-lettered before it has returned nil.
func bisectLetters[T any](ctx context.Context, values []T, apply func(context.Context, []T) (taken int, err error), reject func(T, error)) error {
	taken, refused := 0, 0
	var last error
	atFault := func() error {
		if taken > 0 || refused < refusesAll {
			return nil
		}
		return fmt.Errorf("PostgreSQL refuses one record after another; check the constraints and triggers of the card tables: %s", Explain(last))
	}
	err := Bisect(ctx, values, func(ctx context.Context, part []T) error {
		if err := atFault(); err != nil {
			return err
		}
		n, err := apply(ctx, part)
		taken += n
		return err
	}, func(v T, err error) {
		refused, last = refused+1, err
		reject(v, err)
	})
	if err != nil {
		return err
	}
	return atFault()
}
