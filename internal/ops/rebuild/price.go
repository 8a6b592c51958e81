package rebuild

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// priceReplay moves the price group back: its facts are inserted again and collapse with those that are there.
type priceReplay struct{}

func (priceReplay) consumer() config.Consumer { return config.PriceConsumer() }

func (m priceReplay) check(ctx context.Context, w *work) error {
	source, _, err := w.look(ctx, m.consumer())
	if err != nil {
		return err
	}
	if p := w.params.Partition; p != nil && *p >= source.Partitions {
		return refuse("topic %s has %d partitions, the first is 0: there is no partition %d", source.Name, source.Partitions, *p)
	}
	return nil
}

// fence works out the offsets now that the group is empty: what it has committed stays what it is. There is no epoch to raise.
func (m priceReplay) fence(ctx context.Context, w *work, tx pgx.Tx) error {
	c := m.consumer()
	p, err := postgres.ReadProjection(ctx, tx, w.op.Projection)
	if err != nil {
		return err
	}
	w.data.Epoch = p.Epoch
	w.data.Offsets, err = ReplayOffsets(ctx, w.cfg.Admin, c.Group, c.Topic, w.op.Source, w.params)
	if err != nil {
		return err
	}
	positions, err := w.cfg.Admin.GroupPositions(ctx, c.Group, c.Topic)
	if err != nil {
		return err
	}
	var moved, records int64
	for i, at := range positions[c.Topic] {
		if to := w.data.Offsets[i]; to >= 0 && to < at.Committed {
			moved++
			records += at.Committed - to
		}
	}
	w.result(map[string]int64{"partitions moved back": moved, "records come again": records})
	return nil
}

// ReplayOffsets are the offsets to which a replay moves a group, by partition; -1 where it stays. A replay only moves back: an
// offset above the committed one would skip records.
func ReplayOffsets(ctx context.Context, admin *stream.Admin, group, topic, source string, params Params) ([]int64, error) {
	positions, err := admin.GroupPositions(ctx, group, topic)
	if err != nil {
		return nil, err
	}
	wanted := func(p int32) (int64, bool) { return params.Offset, params.Partition == nil || *params.Partition == p }
	if source == FromTime {
		listed, err := admin.Kadm().ListOffsetsAfterMilli(ctx, params.Time.UnixMilli(), topic)
		if err == nil {
			err = listed.Error()
		}
		if err != nil {
			return nil, fmt.Errorf("list the offsets of %s at %s: %w", topic, params.Time.Format(time.RFC3339), err)
		}
		wanted = func(p int32) (int64, bool) {
			o, ok := listed.Lookup(topic, p)
			return o.Offset, ok
		}
	}
	out := make([]int64, len(positions[topic]))
	for p, at := range positions[topic] {
		out[p] = -1
		to, ok := wanted(int32(p)) //nolint:gosec // a partition number
		to = max(to, at.Start)
		if ok && at.Committed >= 0 && to < at.Committed {
			out[p] = to
		}
	}
	return out, nil
}

func (m priceReplay) offsets(ctx context.Context, w *work) error {
	c := m.consumer()
	return commit(ctx, w.cfg.Admin, c.Group, c.Topic, w.data.Offsets)
}

func (priceReplay) reset(ctx context.Context, w *work, tx pgx.Tx) error {
	return postgres.Reopen(ctx, tx, postgres.PriceHistory, w.data.Epoch)
}

func (priceReplay) finish(context.Context, pgx.Tx) error { return nil }

// ReplayWithoutDatabase moves the price group back where PostgreSQL, which would ask the instances to leave, is out of reach: it
// works only while the group has no member. It returns how many records come again.
func ReplayWithoutDatabase(ctx context.Context, admin *stream.Admin, source string, params Params) (records int64, err error) {
	c := priceReplay{}.consumer()
	who, err := members(ctx, admin, c.Group)
	if err != nil {
		return 0, err
	}
	if len(who) > 0 {
		return 0, refuse("group %s has %d members, and without PostgreSQL they cannot be asked to leave for a moment: stop the instances with the role price, or make PostgreSQL reachable", c.Group, len(who))
	}
	offsets, err := ReplayOffsets(ctx, admin, c.Group, c.Topic, source, params)
	if err != nil {
		return 0, err
	}
	positions, err := admin.GroupPositions(ctx, c.Group, c.Topic)
	if err != nil {
		return 0, err
	}
	for p, to := range offsets {
		if to >= 0 {
			records += positions[c.Topic][p].Committed - to
		}
	}
	return records, commit(ctx, admin, c.Group, c.Topic, offsets)
}
