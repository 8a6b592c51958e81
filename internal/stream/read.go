package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// readSilence is how long the broker may send nothing before a reading is given up: callers hold rows and leases meanwhile.
const readSilence = 20 * time.Second

// Range is a part of a partition: the offsets from From on that lie below To.
type Range struct{ From, To int64 }

// Ranges are the records that a topic holds now, by partition. What belongs to a transaction that is not over lies behind them.
func (a *Admin) Ranges(ctx context.Context, topic string) (map[int32]Range, error) {
	starts, err := a.admin.ListStartOffsets(ctx, topic)
	if err = errors.Join(err, starts.Error()); err != nil {
		return nil, fmt.Errorf("list the start offsets of %s: %w", topic, err)
	}
	ends, err := a.admin.ListCommittedOffsets(ctx, topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return nil, fmt.Errorf("list the end offsets of %s: %w", topic, err)
	}
	out := make(map[int32]Range)
	ends.Each(func(o kadm.ListedOffset) {
		start, _ := starts.Lookup(o.Topic, o.Partition)
		out[o.Partition] = Range{start.Offset, max(start.Offset, o.Offset)}
	})
	return out, nil
}

// ReadRanges gives fn the records of some ranges of a topic that a consumer would be given, in order within each partition, until all
// ranges are read or fn wants no more. An end behind a transaction's marker is reached as well: markers are read and not given. A
// range that was deleted meanwhile ends at the first record behind it. fn's error is returned as it is.
func (a *Admin) ReadRanges(ctx context.Context, topic string, ranges map[int32]Range, fn func(*kgo.Record) (more bool, err error)) error {
	from := make(map[int32]kgo.Offset)
	open := make(map[int32]int64)
	for p, r := range ranges {
		if r.From < r.To {
			from[p], open[p] = kgo.NewOffset().At(r.From), r.To
		}
	}
	if len(open) == 0 {
		return nil
	}
	client, err := kgo.NewClient(slices.Concat(a.opts, []kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), // where from has been deleted
		kgo.FetchMaxWait(500 * time.Millisecond),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // the only sign that their offsets were passed
	})...)
	if err != nil {
		return fmt.Errorf("read topic %s: create a Kafka client: %w", topic, err)
	}
	defer client.Close()
	for len(open) > 0 {
		wait, cancel := context.WithTimeout(ctx, a.silence)
		fetches := client.PollRecords(wait, 5000)
		silent := wait.Err()
		cancel()
		switch err := fetches.Err(); {
		case ctx.Err() != nil:
			return fmt.Errorf("read topic %s: %w", topic, ctx.Err())
		case silent != nil:
			return fmt.Errorf("read topic %s: the broker sent nothing for %s", topic, a.silence)
		case err != nil:
			return fmt.Errorf("read topic %s: %w", topic, err)
		}
		for it := fetches.RecordIter(); !it.Done(); {
			rec := it.Next()
			end, reading := open[rec.Partition]
			if !reading {
				continue
			}
			if rec.Offset >= end-1 {
				delete(open, rec.Partition)
			}
			if rec.Offset >= end || rec.Attrs.IsControl() {
				continue
			}
			if more, err := fn(rec); err != nil || !more {
				return err
			}
		}
	}
	return nil
}
