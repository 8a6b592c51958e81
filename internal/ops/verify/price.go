package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
)

// factKey is what ClickHouse tells facts apart by.
type factKey struct {
	object uuid.UUID
	at     int64
	id     string
}

func keyOf(f *codecs.Fact) factKey { return factKey{f.PropertyObjectID, f.EventTime.Unix(), f.FactID} }

const factBatch = 2000

// price looks for the fact of every valid event that the topic still holds and the group has finished.
func (v *Verifier) price(ctx context.Context) (*look, error) {
	if v.Facts == nil {
		return nil, &RefusedError{"clickhouse.dsn is not set: there is nothing to compare with"}
	}
	l := newLook()
	c := config.PriceConsumer()
	done, err := v.committed(ctx, c)
	if err != nil {
		return nil, err
	}
	batch := make(map[factKey]*codecs.Fact)
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		defer clear(batch)
		return v.compareFacts(ctx, batch, l)
	}
	err = v.readTopic(ctx, c.Topic, func(rec *kgo.Record) error {
		if rec.Offset >= done.offsets[false][rec.Partition].Committed {
			l.inFlight++
			return nil
		}
		l.checked["events"]++
		price, fault := codecs.DecodePrice(stream.Record(rec), v.Clock())
		if fault != nil {
			l.checked["invalid events"]++
			return nil //nolint:nilerr // an invalid event has no fact: its dead letter says why
		}
		batch[keyOf(&price.Fact)] = &price.Fact
		if len(batch) < factBatch {
			return nil
		}
		return flush()
	}, nil)
	if err != nil {
		return nil, err
	}
	return l, flush()
}

func (v *Verifier) compareFacts(ctx context.Context, batch map[factKey]*codecs.Fact, l *look) (err error) {
	objects, ids := make([]uuid.UUID, 0, len(batch)), make([]string, 0, len(batch))
	var from, to time.Time
	for _, f := range batch {
		objects, ids = append(objects, f.PropertyObjectID), append(ids, f.FactID)
		if from.IsZero() || f.EventTime.Before(from) {
			from = f.EventTime
		}
		if f.EventTime.After(to) {
			to = f.EventTime
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	rows, err := v.Facts.Query(ctx, "SELECT PropertyObjectId, EventTime, FactId FROM "+v.Facts.Table()+
		" WHERE PropertyObjectId IN (@objects) AND FactId IN (@ids) AND EventTime BETWEEN @from AND @to GROUP BY PropertyObjectId, EventTime, FactId",
		ch.Named("objects", objects), ch.Named("ids", ids), ch.DateNamed("from", from, ch.Seconds), ch.DateNamed("to", to, ch.Seconds))
	if err != nil {
		return clickhouse.Explain(err, "look for facts")
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	there := make(map[factKey]struct{}, len(batch))
	for rows.Next() {
		var k factKey
		var at time.Time
		if err := rows.Scan(&k.object, &at, &k.id); err != nil {
			return clickhouse.Explain(err, "look for facts")
		}
		k.at = at.Unix()
		there[k] = struct{}{}
	}
	if err := rows.Err(); err != nil {
		return clickhouse.Explain(err, "look for facts")
	}
	for k, f := range batch {
		l.checked["facts"]++
		if _, ok := there[k]; !ok {
			l.differ(Difference{What: "fact", ID: f.FactID, Expected: fmt.Sprintf("object %s at %s: %s", f.PropertyObjectID, f.EventTime.Format(time.RFC3339), f.NewPrice.StringFixed(2)), Actual: "none", fact: f,
				Cause: "ClickHouse was restored from a backup or rows were deleted (a TTL?); or the event was dead-lettered (`vitrina dlq list --consumer price`), as one that lay in the future then"})
		}
	}
	return nil
}

// repairFacts writes what is missing; repeated facts collapse.
func (v *Verifier) repairFacts(ctx context.Context, found map[string]Difference) error {
	inserter := clickhouse.NewInserter(v.Facts)
	var facts []*codecs.Fact
	for _, d := range found {
		if d.fact != nil {
			facts = append(facts, d.fact)
		}
	}
	for len(facts) > 0 {
		n := min(len(facts), 10_000)
		if _, err := inserter.Write(ctx, facts[:n], v.Clock); err != nil {
			return err
		}
		facts = facts[n:]
	}
	return nil
}
