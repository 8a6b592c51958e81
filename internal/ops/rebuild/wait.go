package rebuild

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/config"
)

// waitEmpty returns once the group has had no member for a while. An instance that asked before the projection was closed may
// still be on its way into the group; it asks again every second and leaves.
func (w *work) waitEmpty(ctx context.Context, group string) error {
	var since time.Time
	for {
		who, err := members(ctx, w.cfg.Admin, group)
		if err != nil {
			return err
		}
		switch {
		case len(who) > 0:
			since = time.Time{}
			w.show(0, 0, "waits for %d members to leave group %s: %s", len(who), group, strings.Join(slices.Compact(who), ", "))
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= w.cfg.Settle:
			return nil
		}
		backoff.Sleep(ctx, w.cfg.Pause)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// alone does Kafka's side while the group is empty before and after.
func (w *work) alone(ctx context.Context, m method) error {
	group := m.consumer().Group
	if err := w.waitEmpty(ctx, group); err != nil {
		return err
	}
	if err := m.offsets(ctx, w); err != nil {
		return err
	}
	who, err := members(ctx, w.cfg.Admin, group)
	if err == nil && len(who) > 0 {
		err = fmt.Errorf("group %s got members while its offsets were set: %s", group, strings.Join(who, ", "))
	}
	return err
}

// catchUp waits until the group has finished what the source held at the check, and notes the end of the loop topic then: what
// was looped lies below it (section 12, rule 4).
func (w *work) catchUp(ctx context.Context, c config.Consumer) error {
	if err := w.caughtUp(ctx, c, c.Topic, w.data.Ends); err != nil {
		return err
	}
	topics, err := w.cfg.Admin.Topics(ctx, c.LoopTopic())
	if err != nil {
		return err
	}
	w.data.LoopEnds = nil
	if topics[c.LoopTopic()].Partitions == 0 {
		return nil
	}
	positions, err := w.cfg.Admin.GroupPositions(ctx, c.Group, c.LoopTopic())
	if err != nil {
		return err
	}
	w.data.LoopEnds = ends(positions[c.LoopTopic()])
	return nil
}

func (w *work) catchUpLoop(ctx context.Context, c config.Consumer) error {
	if len(w.data.LoopEnds) == 0 {
		return nil
	}
	return w.caughtUp(ctx, c, c.LoopTopic(), w.data.LoopEnds)
}

func (w *work) caughtUp(ctx context.Context, c config.Consumer, topic string, to []int64) error {
	total, before, lonely := int64(0), int64(-1), false
	for looks := 0; ; looks++ {
		done, left, err := w.toGo(ctx, c.Group, topic, to, before)
		if err != nil {
			return err
		}
		before = left
		if done {
			w.show(total, total, "group %s has caught up with %s", c.Group, topic)
			return nil
		}
		total = max(total, left)
		if looks%10 == 2 {
			who, err := members(ctx, w.cfg.Admin, c.Group)
			if err != nil {
				return err
			}
			lonely = len(who) == 0
		}
		if lonely {
			w.show(total-left, total, "waits for an instance that consumes %s: group %s has no member (vitrina run)", topic, c.Group)
		} else {
			w.show(total-left, total, "group %s has %d offsets of %s to go", c.Group, left, topic)
		}
		backoff.Sleep(ctx, w.cfg.Pause)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if looks%10 == 9 { // the topic may be created anew while this waits
			topics, err := w.cfg.Admin.Topics(ctx, c.Topic)
			if err != nil {
				return err
			}
			if topics[c.Topic].ID != w.data.SourceID {
				return refuse("topic %s was deleted or created anew while the group caught up: run the %s again", c.Topic, w.op.Kind)
			}
		}
	}
}

// toGo says how many offsets the group has still to go. Whether records are left there at all is asked only when nothing has moved
// since the look before: it reads from the topic.
func (w *work) toGo(ctx context.Context, group, topic string, to []int64, before int64) (done bool, left int64, err error) {
	positions, err := w.cfg.Admin.GroupPositions(ctx, group, topic)
	if err != nil {
		return false, 0, err
	}
	for p, end := range to {
		if p >= len(positions[topic]) {
			return false, 0, fmt.Errorf("topic %s has no partition %d any more", topic, p)
		}
		at := positions[topic][p]
		left += max(0, end-max(at.Start, at.Committed))
	}
	if left == 0 || left != before {
		return left == 0, left, nil
	}
	done, _, err = w.cfg.Admin.CaughtUp(ctx, group, map[string][]int64{topic: to})
	return done, left, err
}
