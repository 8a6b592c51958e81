package generate

import (
	"context"
	"fmt"
	"iter"

	"golang.org/x/time/rate"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// RecordWriter takes records in order.
type RecordWriter interface {
	Write(ctx context.Context, rec *record.Record) error
	Flush(ctx context.Context) error
}

// CardWriter inserts cards.
type CardWriter interface {
	WriteCards(ctx context.Context, cards []Card) error
}

// Destination is where items go.
type Destination struct {
	Records RecordWriter
	Cards   CardWriter // nil: cards are left out
	Rate    float64    // records a second; 0: as fast as they are taken
	Observe func(Item) // called for each item that was handed over; nil: nothing
}

// Summary counts what was sent.
type Summary struct {
	Cards     int            `json:"cards"`
	Records   int            `json:"records"`
	Malformed int            `json:"malformed"`
	ByTopic   map[string]int `json:"byTopic"`
}

// cardBatch is how many cards are inserted at once.
const cardBatch = 1000

// WithoutErrors makes generated items what Send takes.
func WithoutErrors(items iter.Seq[Item]) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// Send hands every item over, in order, and waits until all are acknowledged. When ctx ends it returns what was sent
// until then, with the context's error.
func Send(ctx context.Context, items iter.Seq2[Item, error], to Destination) (Summary, error) {
	sum := Summary{ByTopic: map[string]int{}}
	limit := rate.NewLimiter(rate.Inf, 1)
	if to.Rate > 0 {
		limit = rate.NewLimiter(rate.Limit(to.Rate), max(1, int(to.Rate/20)))
	}
	var cards []Item
	insert := func() error {
		if len(cards) == 0 || to.Cards == nil {
			cards = nil
			return nil
		}
		batch := make([]Card, len(cards))
		for i, item := range cards {
			batch[i] = *item.Card
		}
		if err := to.Cards.WriteCards(ctx, batch); err != nil {
			return err
		}
		sum.Cards += len(cards)
		for _, item := range cards {
			to.observe(item)
		}
		cards = nil
		return nil
	}
	for item, err := range items {
		if err != nil {
			return sum, err
		}
		if item.Card != nil {
			if cards = append(cards, item); len(cards) == cardBatch {
				if err := insert(); err != nil {
					return sum, err
				}
			}
			continue
		}
		if err := insert(); err != nil {
			return sum, err
		}
		if err := limit.Wait(ctx); err != nil {
			return sum, fmt.Errorf("stopped after %d records: %w", sum.Records, context.Cause(ctx))
		}
		if err := to.Records.Write(ctx, item.Record); err != nil {
			return sum, err
		}
		sum.Records++
		sum.ByTopic[item.Record.Topic]++
		if item.Malformed != "" {
			sum.Malformed++
		}
		to.observe(item)
	}
	if err := insert(); err != nil {
		return sum, err
	}
	return sum, to.Records.Flush(ctx)
}

func (d Destination) observe(item Item) {
	if d.Observe != nil {
		d.Observe(item)
	}
}
