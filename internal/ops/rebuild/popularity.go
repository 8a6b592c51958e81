package rebuild

import (
	"context"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// lanes are the group's committed offsets in source and loop topic, the first offset where nothing is committed.
func (w *work) lanes(ctx context.Context, c config.Consumer) ([]postgres.LaneOffset, error) {
	names := []string{c.Topic, c.LoopTopic()}
	topics, err := w.cfg.Admin.Topics(ctx, names...)
	if err != nil {
		return nil, err
	}
	if topics[c.Topic].ID != w.data.SourceID {
		return nil, refuse("topic %s was created anew while the rebuild ran: run it again", c.Topic)
	}
	positions, err := w.cfg.Admin.GroupPositions(ctx, c.Group, names...)
	if err != nil {
		return nil, err
	}
	var out []postgres.LaneOffset
	for _, name := range names {
		for p, at := range positions[name] {
			offset := at.Committed
			if offset < 0 {
				offset = at.Start
			}
			out = append(out, postgres.LaneOffset{
				Lane:   postgres.Lane{Incarnation: stream.Incarnation(topics[name].ID), Loop: name != c.Topic, Partition: int32(p), Topic: name}, //nolint:gosec // a partition number
				Offset: offset,
			})
		}
	}
	return out, nil
}

// The group table is the only long memory of views: neither rebuild of popularity writes to it.
const withoutTable = "rebuild from the topic: vitrina rebuild popularity --from topic"

// otherCount takes the number of partitions of the group table: what has to be done when the source has another one.
func otherCount(partitions int32) string {
	return fmt.Sprintf("the table is the only long memory of views and is never made anew, so have the topic's owner give it %d partitions again", partitions)
}

// popularityMarks sets the counters to what the group table's marks say, in one transaction.
type popularityMarks struct{}

func (popularityMarks) consumer() config.Consumer { return config.PopularityConsumer() }

func (m popularityMarks) check(ctx context.Context, w *work) error {
	return w.checkTable(ctx, m.consumer(), withoutTable, otherCount)
}

func (popularityMarks) fence(ctx context.Context, w *work, tx pgx.Tx) error { return raise(ctx, w, tx) }

func (m popularityMarks) offsets(ctx context.Context, w *work) error {
	return w.mendOffsets(ctx, m.consumer())
}

func (m popularityMarks) reset(ctx context.Context, w *work, tx pgx.Tx) error {
	c := m.consumer()
	committed, err := w.lanes(ctx, c)
	if err != nil {
		return err
	}
	var bad error // COPY reports an error of its rows as one of its own
	r, err := postgres.ResetPopularityFromMarks(ctx, tx, committed, w.marks(ctx, c, committed, &bad))
	if bad != nil {
		return bad
	}
	if err != nil {
		return err
	}
	w.result(map[string]int64{"marks read": r.Marks, "views that come again": r.Unfinished, "views pending": r.Pending, "views dead": r.Dead,
		"object counters changed": r.Objects, "project counters changed": r.Projects})
	if err := w.keepIncarnation(ctx, c, tx); err != nil {
		return err
	}
	return postgres.Reopen(ctx, tx, postgres.Popularity, w.data.Epoch)
}

func (popularityMarks) finish(context.Context, pgx.Tx) error { return nil }

// marks yields the marks of the popularity group's table; bad is why it ended early.
func (w *work) marks(ctx context.Context, c config.Consumer, committed []postgres.LaneOffset, bad *error) iter.Seq2[postgres.ViewMark, error] {
	source := stream.Incarnation(w.data.SourceID)
	gone := func(o codecs.Origin) bool {
		return !o.Loop && o.Incarnation == source && int(o.Partition) < len(w.data.Beyond) &&
			o.Offset < w.data.Beyond[o.Partition] && o.Offset >= committed[o.Partition].Offset
	}
	return func(yield func(postgres.ViewMark, error) bool) {
		for rec, err := range readTopic(ctx, w.cfg.Admin, c.TableTopic(), func(done, total int64) { w.show(done, total, "reads the marks of the group table") }) {
			var m postgres.ViewMark
			if err == nil && rec.Value == nil {
				continue
			}
			if err == nil {
				m.ViewID, err = tableKey(rec)
			}
			if err == nil {
				if m.Mark, err = codecs.DecodeMark(rec.Value); err != nil {
					err = damaged(rec, err)
				}
			}
			if err == nil && gone(m.Mark.Origin) {
				// It was finished, and the broker has lost its record since: it does not come again.
				m.Mark.Incarnation = 0
			}
			if err != nil {
				*bad = err
			}
			if !yield(m, err) || err != nil {
				return
			}
		}
	}
}

// popularityTopic counts the topic again from its beginning, with the marks intact.
type popularityTopic struct{}

func (popularityTopic) consumer() config.Consumer { return config.PopularityConsumer() }

func (m popularityTopic) check(ctx context.Context, w *work) error {
	c := m.consumer()
	source, positions, err := w.look(ctx, c)
	if err != nil {
		return err
	}
	topics, err := w.cfg.Admin.Topics(ctx, c.TableTopic())
	if err != nil {
		return err
	}
	if t, ok := topics[c.TableTopic()]; ok && t.Partitions != source.Partitions {
		return refuse("the group table %s has %d partitions and topic %s has %d: %s (docs/runbooks/partition-count-changed.md)",
			c.TableTopic(), t.Partitions, c.Topic, source.Partitions, otherCount(t.Partitions))
	}
	return w.checkOffsets(ctx, c, source, positions)
}

func (popularityTopic) fence(ctx context.Context, w *work, tx pgx.Tx) error { return raise(ctx, w, tx) }

// offsets moves the group to the first record of the source; in the loop topic it stays where it is.
func (m popularityTopic) offsets(ctx context.Context, w *work) error {
	c := m.consumer()
	if err := w.ensureTopics(ctx, c); err != nil {
		return err
	}
	positions, err := w.cfg.Admin.GroupPositions(ctx, c.Group, c.Topic)
	if err != nil {
		return err
	}
	starts := make([]int64, len(positions[c.Topic]))
	for p, at := range positions[c.Topic] {
		starts[p] = at.Start
	}
	return commit(ctx, w.cfg.Admin, c.Group, c.Topic, starts)
}

func (m popularityTopic) reset(ctx context.Context, w *work, tx pgx.Tx) error {
	c := m.consumer()
	starts, err := w.lanes(ctx, c)
	if err != nil {
		return err
	}
	r, err := postgres.ResetPopularityFromTopic(ctx, tx, starts)
	if err != nil {
		return err
	}
	w.result(map[string]int64{"views pending": r.Pending, "views dead": r.Dead, "object counters reset": r.Objects, "project counters reset": r.Projects})
	if err := w.keepIncarnation(ctx, c, tx); err != nil {
		return err
	}
	return postgres.Reopen(ctx, tx, postgres.Popularity, w.data.Epoch)
}

func (popularityTopic) finish(ctx context.Context, tx pgx.Tx) error {
	return postgres.FinishReplay(ctx, tx)
}
