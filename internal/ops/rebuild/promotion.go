package rebuild

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// raise raises the epoch of a rebuild: it waits for the writers that are inside their transaction and stops all of them.
func raise(ctx context.Context, w *work, tx pgx.Tx) error {
	p, err := postgres.RaiseEpoch(ctx, tx, w.op.Projection, fmt.Sprintf("rebuild from %s, operation %s", w.op.Source, w.op.ID))
	w.data.Epoch = p.Epoch
	return err
}

// madeFrom tells whether the group's state was made from another incarnation of its source.
func (w *work) madeFrom(ctx context.Context, c config.Consumer, source stream.Topic) (changed bool, err error) {
	then, known, err := postgres.ReadIncarnation(ctx, w.cfg.Pool, c.Group)
	return known && then.SourceTopicID != source.ID, err
}

// promotionTopic plays the topic from its beginning onto an empty replica and an empty group table.
type promotionTopic struct{}

func (promotionTopic) consumer() config.Consumer { return config.PromotionConsumer() }

func (m promotionTopic) check(ctx context.Context, w *work) error {
	c := m.consumer()
	source, positions, err := w.look(ctx, c)
	if err != nil {
		return err
	}
	changed, err := w.madeFrom(ctx, c, source)
	if err != nil {
		return err
	}
	topics, err := w.cfg.Admin.Topics(ctx, c.TableTopic(), c.LoopTopic())
	if err != nil {
		return err
	}
	w.data.Drop = make(map[string]uuid.UUID, len(topics))
	for name, t := range topics {
		w.data.Drop[name] = t.ID
	}
	var shortened []string
	for p, at := range positions {
		if at.Start > 0 {
			shortened = append(shortened, fmt.Sprintf("partition %d begins at offset %d", p, at.Start))
		}
	}
	if !changed && len(shortened) == 0 || w.params.AcceptLoss {
		return nil
	}
	why := "was deleted and created again since the replica was made"
	if !changed {
		why = "does not begin with its first record any more: " + strings.Join(shortened, ", ")
	}
	w.show(0, 0, "looks for purchases that the topic does not hold any more")
	lost, err := lostPurchases(ctx, w, topics)
	if err != nil {
		return err
	}
	what := "every purchase of the replica has its newest event there, but targets that only older events named are not"
	if len(lost) > 0 {
		what = fmt.Sprintf("%d purchases of the replica would be lost or set back, for example %s", len(lost), strings.Join(first(lost, 10), ", "))
	}
	return refuse("topic %s %s; %s. Rebuild from the group table, which has all of them: vitrina rebuild promotion-boost --from table"+
		" (or accept the loss: --from topic --accept-loss)", c.Topic, why, what)
}

func first(list []string, n int) []string { return list[:min(n, len(list))] }

// lostPurchases lists the purchases of replica and group table whose newest version the topic does not hold.
func lostPurchases(ctx context.Context, w *work, topics map[string]stream.Topic) ([]string, error) {
	c := config.PromotionConsumer()
	held := make(map[uuid.UUID]int64)
	newest := func(id uuid.UUID, version int64) {
		if v, ok := held[id]; !ok || version > v {
			held[id] = version
		}
	}
	if err := postgres.PurchaseVersions(ctx, w.cfg.Pool, newest); err != nil {
		return nil, err
	}
	if _, ok := topics[c.TableTopic()]; ok {
		for s, err := range snapshots(ctx, w.cfg.Admin, c.TableTopic(), nil) {
			if err != nil {
				return nil, err
			}
			newest(s.PurchaseID, s.State.Version)
		}
	}
	for rec, err := range readTopic(ctx, w.cfg.Admin, c.Topic, func(done, total int64) { w.show(done, total, "") }) {
		if err != nil {
			return nil, err
		}
		p, fault := codecs.DecodePurchase(stream.Record(rec))
		if fault == nil && held[p.PurchaseID] <= p.Version {
			delete(held, p.PurchaseID)
		}
	}
	ids := slices.SortedFunc(maps.Keys(held), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id.String()
	}
	return out, nil
}

func (promotionTopic) fence(ctx context.Context, w *work, tx pgx.Tx) error { return raise(ctx, w, tx) }

// offsets deletes the group's offsets, its table and its loop topic, and creates both topics anew.
func (m promotionTopic) offsets(ctx context.Context, w *work) error {
	c, admin := m.consumer(), w.cfg.Admin
	topics, err := admin.Topics(ctx, c.Topic, c.TableTopic(), c.LoopTopic())
	if err != nil {
		return err
	}
	if err := forgetOffsets(ctx, admin, c.Group, topics[c.Topic], topics[c.LoopTopic()]); err != nil {
		return err
	}
	for _, name := range []string{c.TableTopic(), c.LoopTopic()} {
		if t, ok := topics[name]; ok && t.ID == w.data.Drop[name] {
			if err := deleteTopic(ctx, w.cfg.Kafka, t.ID); err != nil {
				return err
			}
		}
	}
	if err := w.waitGone(ctx); err != nil {
		return err
	}
	if err := w.ensureTopics(ctx, c); err != nil {
		return err
	}
	// A process that did not know of the rebuild yet may have written by the topics' names.
	positions, err := admin.GroupPositions(ctx, c.Group, c.TableTopic(), c.LoopTopic(), c.Topic)
	if err != nil {
		return err
	}
	if topics, err = admin.Topics(ctx, c.TableTopic(), c.LoopTopic()); err != nil {
		return err
	}
	for name, list := range positions {
		for p, at := range list {
			switch {
			case at.Committed > 0:
				return fmt.Errorf("group %s committed offset %d of %s/%d while its state was reset", c.Group, at.Committed, name, p)
			case name != c.Topic && at.End > 0:
				w.data.Drop[name] = topics[name].ID
				return errors.Join(fmt.Errorf("something wrote to %s while it was reset: it is created anew", name), w.note(ctx, stepOffsets))
			}
		}
	}
	return nil
}

// waitGone returns when the topics to drop are gone, or have another id.
func (w *work) waitGone(ctx context.Context) error {
	for {
		topics, err := w.cfg.Admin.Topics(ctx, slices.Collect(maps.Keys(w.data.Drop))...)
		if err != nil {
			return err
		}
		left := 0
		for name, id := range w.data.Drop {
			if t, ok := topics[name]; ok && t.ID == id {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		backoff.Sleep(ctx, w.cfg.Pause)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (m promotionTopic) reset(ctx context.Context, w *work, tx pgx.Tx) error {
	r, err := postgres.ResetBoosts(ctx, tx)
	if err != nil {
		return err
	}
	w.result(map[string]int64{"purchases forgotten": r.Purchases, "contributions forgotten": r.Contributions, "cards reset": r.Cards})
	if err := postgres.ForgetIncarnation(ctx, tx, m.consumer().Group); err != nil {
		return err
	}
	return postgres.Reopen(ctx, tx, postgres.PromotionBoost, w.data.Epoch)
}

func (promotionTopic) finish(context.Context, pgx.Tx) error { return nil }

// promotionTable keeps the group table and hands its snapshots to PostgreSQL again.
type promotionTable struct{}

func (promotionTable) consumer() config.Consumer { return config.PromotionConsumer() }

func (m promotionTable) check(ctx context.Context, w *work) error {
	const fromTopic = "rebuild from the topic: vitrina rebuild promotion-boost --from topic"
	return w.checkTable(ctx, m.consumer(), fromTopic, func(int32) string { return fromTopic })
}

// checkTable makes sure that the table can be kept; missing and otherCount say what to do where there is none, or one with so many partitions
// where the source has others.
func (w *work) checkTable(ctx context.Context, c config.Consumer, missing string, otherCount func(partitions int32) string) error {
	source, positions, err := w.look(ctx, c)
	if err != nil {
		return err
	}
	topics, err := w.cfg.Admin.Topics(ctx, c.TableTopic())
	if err != nil {
		return err
	}
	table, ok := topics[c.TableTopic()]
	if !ok {
		return refuse("the group table %s does not exist, so nothing can be taken from it: %s", c.TableTopic(), missing)
	}
	if table.Partitions != source.Partitions {
		return refuse("the group table %s has %d partitions and topic %s has %d, so keys lie in other partitions than their states: %s (docs/runbooks/partition-count-changed.md)",
			c.TableTopic(), table.Partitions, c.Topic, source.Partitions, otherCount(table.Partitions))
	}
	return w.checkOffsets(ctx, c, source, positions)
}

// checkOffsets notes which of the group's offsets mean nothing any more: those of another incarnation of the source, and those
// above its end, whose records the broker has lost.
func (w *work) checkOffsets(ctx context.Context, c config.Consumer, source stream.Topic, positions []stream.Positions) (err error) {
	if w.data.Forget, err = w.madeFrom(ctx, c, source); err != nil {
		return err
	}
	w.data.Beyond = nil
	if w.data.Forget {
		return nil
	}
	for p, at := range positions {
		if at.Committed > at.End {
			if w.data.Beyond == nil {
				w.data.Beyond = make([]int64, len(positions))
			}
			w.data.Beyond[p] = at.Committed
		}
	}
	return nil
}

func (promotionTable) fence(ctx context.Context, w *work, tx pgx.Tx) error { return raise(ctx, w, tx) }

func (m promotionTable) offsets(ctx context.Context, w *work) error {
	return w.mendOffsets(ctx, m.consumer())
}

// mendOffsets makes the group go on in the source as it is now; the offsets that mean something are kept.
func (w *work) mendOffsets(ctx context.Context, c config.Consumer) error {
	if err := w.ensureTopics(ctx, c); err != nil {
		return err
	}
	if w.data.Forget {
		topics, err := w.cfg.Admin.Topics(ctx, c.Topic)
		if err != nil {
			return err
		}
		return forgetOffsets(ctx, w.cfg.Admin, c.Group, topics[c.Topic])
	}
	if len(w.data.Beyond) == 0 {
		return nil
	}
	positions, err := w.cfg.Admin.GroupPositions(ctx, c.Group, c.Topic)
	if err != nil {
		return err
	}
	to := make([]int64, len(positions[c.Topic]))
	for p, at := range positions[c.Topic] {
		to[p] = -1
		if at.Committed > at.End {
			to[p] = at.End
		}
	}
	return commit(ctx, w.cfg.Admin, c.Group, c.Topic, to)
}

func (m promotionTable) reset(ctx context.Context, w *work, tx pgx.Tx) error {
	c := m.consumer()
	if err := postgres.Reopen(ctx, tx, postgres.PromotionBoost, w.data.Epoch); err != nil {
		return err
	}
	r, err := postgres.ReplaceBoosts(ctx, tx, w.data.Epoch, snapshots(ctx, w.cfg.Admin, c.TableTopic(), func(done, total int64) {
		w.show(done, total, "reads the group table")
	}))
	if err != nil {
		return err
	}
	w.result(map[string]int64{"snapshots loaded": r.Snapshots, "purchases before": r.Purchases, "cards changed": r.Cards})
	return w.keepIncarnation(ctx, c, tx)
}

// keepIncarnation accepts the source as it was at the check; the hasher stays that of the table.
func (w *work) keepIncarnation(ctx context.Context, c config.Consumer, tx pgx.Tx) error {
	return postgres.ReplaceIncarnation(ctx, tx, c.Group, w.data.SourceID, int32(len(w.data.Ends))) //nolint:gosec // a partition count
}

func (promotionTable) finish(context.Context, pgx.Tx) error { return nil }

// snapshots yields the states of the promotion group's table; of several of one purchase the last holds.
func snapshots(ctx context.Context, admin *stream.Admin, table string, progress func(done, total int64)) iter.Seq2[postgres.Snapshot, error] {
	return func(yield func(postgres.Snapshot, error) bool) {
		for rec, err := range readTopic(ctx, admin, table, progress) {
			var s postgres.Snapshot
			if err == nil && rec.Value == nil {
				continue
			}
			if err == nil {
				s.PurchaseID, err = tableKey(rec)
			}
			if err == nil {
				if s.State, err = codecs.DecodePurchaseState(rec.Value); err != nil {
					err = damaged(rec, err)
				}
			}
			if !yield(s, err) || err != nil {
				return
			}
		}
	}
}

func tableKey(rec *kgo.Record) (uuid.UUID, error) {
	id, err := uuid.Parse(string(rec.Key))
	if err != nil {
		return id, damaged(rec, err)
	}
	return id, nil
}

// damaged ends the operation: reading again would find the same.
func damaged(rec *kgo.Record, err error) error {
	return refuse("the group table holds a record that is none of this program (%s/%d, offset %d: %v): nothing was changed; rebuild from the topic", rec.Topic, rec.Partition, rec.Offset, err)
}
