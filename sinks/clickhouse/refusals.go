package clickhouse

import (
	"context"
	"time"

	"github.com/pin-marketplace/vitrina/codecs"
)

// Refusal is a fact that the server refuses for its values.
type Refusal struct {
	Index int    // in the facts given to Write
	Why   string // the server's words
}

// Reason is the sentence of a dead letter or a report (DATABASE_REJECTED).
func (r Refusal) Reason() string { return "ClickHouse refuses this fact for good: " + r.Why }

// refusesAll is how many facts have to be refused, with none taken, for the table to be at fault and not the facts: a wrong
// constraint must not send a topic to the dead letters. Fewer are dead-lettered: a few bad events alone in their batch must not
// stop the topic either.
const refusesAll = 16

// Write inserts facts with the clock's time as IngestionTime. Where the server refuses a fact for its values, Write finds out
// which by halves, writes the others and returns the refusals. An error is an outage: write all of them again.
func (in *Inserter) Write(ctx context.Context, facts []*codecs.Fact, clock func() time.Time) ([]Refusal, error) {
	type part struct{ from, to int }
	var refused []Refusal
	taken := 0
	for todo := []part{{0, len(facts)}}; len(todo) > 0; {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		err := in.Insert(ctx, facts[p.from:p.to], clock())
		if err == nil {
			taken += p.to - p.from
			continue
		}
		why, ok := rejected(err)
		if !ok {
			return nil, err
		}
		if p.to-p.from > 1 {
			middle := (p.from + p.to) / 2
			todo = append(todo, part{middle, p.to}, part{p.from, middle})
			continue
		}
		if refused = append(refused, Refusal{p.from, why}); taken == 0 && len(refused) >= refusesAll {
			return nil, &Outage{RefusesAll, "ClickHouse refuses one fact after another: check the constraints and materialized views of the facts table", err}
		}
	}
	return refused, nil
}
