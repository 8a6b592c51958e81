package rebuild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// The steps, in their order.
const (
	stepCheck   = "check"
	stepClose   = "close"
	stepLeave   = "leave"
	stepEpoch   = "epoch"
	stepOffsets = "offsets"
	stepReset   = "reset"
	stepCatchUp = "catch-up"
	stepLoop    = "loop"
	stepFinish  = "finish"
)

// method is what differs between the kinds of operations.
type method interface {
	consumer() config.Consumer
	// check looks before anything is touched; it returns a RefusedError when the operation must not be carried out.
	check(ctx context.Context, w *work) error
	// fence raises the epoch, in the step's transaction; the group is empty.
	fence(ctx context.Context, w *work, tx pgx.Tx) error
	// offsets does Kafka's side; the group is empty and the projection closed.
	offsets(ctx context.Context, w *work) error
	// reset does PostgreSQL's side and reopens the projection, in the step's transaction.
	reset(ctx context.Context, w *work, tx pgx.Tx) error
	// finish does what is left, in the transaction that ends the operation.
	finish(ctx context.Context, tx pgx.Tx) error
}

func (w *work) method() (method, error) {
	switch {
	case w.op.Kind == KindRebuild && w.op.Projection == postgres.PromotionBoost && w.op.Source == FromTopic:
		return promotionTopic{}, nil
	case w.op.Kind == KindRebuild && w.op.Projection == postgres.PromotionBoost && w.op.Source == FromTable:
		return promotionTable{}, nil
	case w.op.Kind == KindRebuild && w.op.Projection == postgres.Popularity && w.op.Source == FromMarks:
		return popularityMarks{}, nil
	case w.op.Kind == KindRebuild && w.op.Projection == postgres.Popularity && w.op.Source == FromTopic:
		return popularityTopic{}, nil
	case w.op.Kind == KindReplay && w.op.Projection == postgres.PriceHistory:
		return priceReplay{}, nil
	}
	return nil, refuse("this version of the program knows no %s of %s from %s", w.op.Kind, w.op.Projection, w.op.Source)
}

// run does one step after the other. It returns nil when the operation has ended, whether well or not.
func (w *work) run(ctx context.Context) error {
	wait := backoff.New(w.cfg.Backoff)
	for {
		step := w.op.Step
		ended, err := w.step(ctx)
		var refused *RefusedError
		var crashed *crashError
		switch {
		case errors.As(err, &crashed):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, postgres.ErrLeaseLost):
			return err
		case errors.As(err, &refused):
			if err = w.fail(ctx, refused.Reason); err == nil {
				return nil
			}
		}
		if err != nil {
			pause := wait.Next()
			w.mu.Lock()
			w.op.Error = err.Error()
			w.mu.Unlock()
			w.log.LogAttrs(ctx, slog.LevelWarn, "a step of an operation is tried again", slog.String("event", "operation-waits"),
				slog.String("step", step), slog.Any("error", err), slog.Duration("retry_in", pause))
			backoff.Sleep(ctx, pause)
			continue
		}
		wait.Reset()
		if ended {
			w.log.LogAttrs(ctx, slog.LevelInfo, "an operation has succeeded", slog.String("event", "operation-succeeded"), slog.Any("result", w.data.Result))
			return nil
		}
		w.log.LogAttrs(ctx, slog.LevelInfo, "a step of an operation is done", slog.String("event", "operation-step"), slog.String("step", step))
	}
}

// step does the step that the row names and records it. The record goes into the step's own transaction where it has one;
// the others may be done twice.
func (w *work) step(ctx context.Context) (ended bool, err error) {
	m, err := w.method()
	if err != nil {
		return false, err
	}
	if err := w.allowed(ctx, m); err != nil {
		return false, err
	}
	switch w.op.Step {
	case stepCheck:
		w.show(0, 0, "looks at the topics and the group")
		return false, w.do(ctx, stepClose, func() error { return m.check(ctx, w) })
	case stepClose:
		return false, w.transact(ctx, stepLeave, func(tx pgx.Tx) error {
			return postgres.CloseProjection(ctx, tx, w.op.Projection, fmt.Sprintf("%s, operation %s", w.op.Kind, w.op.ID))
		})
	case stepLeave:
		return false, w.do(ctx, stepEpoch, func() error { return w.waitEmpty(ctx, m.consumer().Group) })
	case stepEpoch:
		return false, w.transact(ctx, stepOffsets, func(tx pgx.Tx) error { return m.fence(ctx, w, tx) })
	case stepOffsets:
		w.show(0, 0, "sets the group's offsets and topics")
		return false, w.do(ctx, stepReset, func() error { return w.alone(ctx, m) })
	case stepReset:
		w.show(0, 0, "resets the projection")
		return false, w.transact(ctx, stepCatchUp, func(tx pgx.Tx) error { return w.reset(ctx, m, tx) })
	case stepCatchUp:
		return false, w.do(ctx, stepLoop, func() error { return w.catchUp(ctx, m.consumer()) })
	case stepLoop:
		return false, w.do(ctx, stepFinish, func() error { return w.catchUpLoop(ctx, m.consumer()) })
	case stepFinish:
		return true, w.finish(ctx, m)
	}
	return false, refuse("this version of the program knows no step %q", w.op.Step)
}

// beforeReset says whether a step comes before the commit that changes the projection.
func beforeReset(step string) bool {
	return step != stepCatchUp && step != stepLoop && step != stepFinish
}

// allowed is asked again before each step: things change while an operation waits.
func (w *work) allowed(ctx context.Context, m method) error {
	if w.op.Projection == postgres.PromotionBoost && beforeReset(w.op.Step) && !w.cfg.PromotionsEnabled() {
		return errFlagOff()
	}
	if w.op.Step == stepCheck || w.op.Step == stepFinish {
		return nil
	}
	topics, err := w.cfg.Admin.Topics(ctx, m.consumer().Topic)
	if err != nil {
		return err
	}
	if topics[m.consumer().Topic].ID != w.data.SourceID {
		return refuse("topic %s was deleted or created anew while the %s ran: run it again, it takes the topic as it then is", m.consumer().Topic, w.op.Kind)
	}
	return nil
}

// do does a step that may be done twice, and records it.
func (w *work) do(ctx context.Context, next string, work func() error) error {
	if err := work(); err != nil {
		return err
	}
	if err := w.at(w.op.Step + " done"); err != nil {
		return err
	}
	return w.note(ctx, next)
}

// note records the step, or with the step itself as next only what it has noted so far.
func (w *work) note(ctx context.Context, next string) error {
	if err := w.encode(); err != nil {
		return err
	}
	if err := postgres.AdvanceOperation(ctx, w.cfg.Pool, &w.op, w.holder, next); err != nil {
		return err
	}
	return w.recorded(next)
}

// transact does a step and records it in one transaction.
func (w *work) transact(ctx context.Context, next string, do func(pgx.Tx) error) error {
	err := postgres.Transact(ctx, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, w.cfg.Pool, func(tx pgx.Tx) error {
			// Kafka is read inside some of these transactions, and a rival may hold a card for a while.
			for _, statement := range []string{`SET LOCAL idle_in_transaction_session_timeout = '60s'`, `SET LOCAL lock_timeout = '30s'`} {
				if _, err := tx.Exec(ctx, statement); err != nil {
					return fmt.Errorf("preparing the transaction of step %s: %w", w.op.Step, err)
				}
			}
			if err := do(tx); err != nil {
				return err
			}
			if err := w.encode(); err != nil {
				return err
			}
			if err := w.at(w.op.Step + " done"); err != nil {
				return err
			}
			return postgres.AdvanceOperation(ctx, tx, &w.op, w.holder, next)
		})
	}, nil)
	if err != nil {
		return fmt.Errorf("step %s: %w", w.op.Step, err)
	}
	return w.recorded(next)
}

func (w *work) recorded(next string) error {
	w.mu.Lock()
	changed := w.op.Step != next
	w.op.Step, w.op.Done, w.op.Total, w.op.Error = next, 0, 0, ""
	w.mu.Unlock()
	if !changed {
		return nil
	}
	return w.at(next + " next")
}

// at is where tests let the process die.
func (w *work) at(point string) error {
	if w.crash == nil {
		return nil
	}
	if err := w.crash(point); err != nil {
		return &crashError{err}
	}
	return nil
}

func (w *work) encode() error {
	data, err := json.Marshal(w.data)
	if err != nil {
		return fmt.Errorf("encoding what the operation has noted: %w", err)
	}
	w.op.Data = data
	return nil
}

// reset makes sure that the projection is still closed under this operation's epoch.
func (w *work) reset(ctx context.Context, m method, tx pgx.Tx) error {
	p, err := postgres.LockProjection(ctx, tx, w.op.Projection)
	if err != nil {
		return err
	}
	if p.Open || p.Epoch != w.data.Epoch {
		return fmt.Errorf("projection %s has epoch %d, open %t, where this operation left epoch %d, closed: %w", w.op.Projection, p.Epoch, p.Open, w.data.Epoch, postgres.ErrLeaseLost)
	}
	return m.reset(ctx, w, tx)
}

func (w *work) finish(ctx context.Context, m method) error {
	w.show(0, 0, "%s", w.outcome())
	if err := w.encode(); err != nil {
		return err
	}
	return postgres.Transact(ctx, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, w.cfg.Pool, func(tx pgx.Tx) error {
			if err := m.finish(ctx, tx); err != nil {
				return err
			}
			return postgres.FinishOperation(ctx, tx, &w.op, w.holder, "")
		})
	}, nil)
}

// outcome says in one line what the reset did.
func (w *work) outcome() string {
	var parts []string
	for name, n := range w.data.Result {
		parts = append(parts, fmt.Sprintf("%s %s", n, name))
	}
	if len(parts) == 0 {
		return "done"
	}
	slices.Sort(parts)
	return "done: " + strings.Join(parts, ", ")
}

func (w *work) result(values map[string]int64) {
	w.data.Result = make(map[string]json.Number, len(values))
	for name, n := range values {
		w.data.Result[name] = json.Number(fmt.Sprint(n))
	}
}

// fail ends the operation as refused and, when the projection is closed but not yet reset, opens it again as it was.
func (w *work) fail(ctx context.Context, reason string) error {
	if err := w.encode(); err != nil {
		return err
	}
	err := pgx.BeginFunc(ctx, w.cfg.Pool, func(tx pgx.Tx) error {
		if s := w.op.Step; s != stepCheck && s != stepClose && beforeReset(s) {
			p, err := postgres.LockProjection(ctx, tx, w.op.Projection)
			if err != nil {
				return err
			}
			if err := postgres.Reopen(ctx, tx, w.op.Projection, p.Epoch); err != nil {
				return err
			}
		}
		return postgres.FinishOperation(ctx, tx, &w.op, w.holder, reason)
	})
	if err != nil {
		return fmt.Errorf("ending the operation as failed: %w", err)
	}
	w.log.LogAttrs(ctx, slog.LevelError, "an operation has failed", slog.String("event", "operation-failed"), slog.String("step", w.op.Step), slog.String("error", reason))
	return nil
}

// look is what every check begins with: the source as it is, and its ends.
func (w *work) look(ctx context.Context, c config.Consumer) (stream.Topic, []stream.Positions, error) {
	topics, err := w.cfg.Admin.Topics(ctx, c.Topic)
	if err != nil {
		return stream.Topic{}, nil, err
	}
	source, ok := topics[c.Topic]
	if !ok {
		return source, nil, refuse("topic %s does not exist: it belongs to the producing service; check kafka.brokers and this client's rights", c.Topic)
	}
	positions, err := w.cfg.Admin.GroupPositions(ctx, c.Group, c.Topic)
	if err != nil {
		return source, nil, err
	}
	w.data.SourceID, w.data.Ends = source.ID, ends(positions[c.Topic])
	return source, positions[c.Topic], nil
}

// ensureTopics creates the group's own topics where they are missing.
func (w *work) ensureTopics(ctx context.Context, c config.Consumer) error {
	findings, err := w.cfg.Admin.Plan(ctx, w.cfg.Topics, stream.GroupTopics{Group: c.Group, Source: c.Topic, Table: true, Loop: true})
	if err != nil {
		return err
	}
	findings = slices.DeleteFunc(findings, func(f stream.Finding) bool { return f.Create == 0 })
	_, err = w.cfg.Admin.Apply(ctx, findings)
	return err
}
