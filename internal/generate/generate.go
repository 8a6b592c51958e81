package generate

import (
	"container/heap"
	"iter"
	"time"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/test/model"
)

const (
	topicPurchases = config.TopicPurchaseChanged
	topicViews     = config.TopicViewEnded
	topicPrices    = config.TopicPriceChanged
)

// Item is one thing that happens: a card that is inserted, or a record that is produced.
type Item struct {
	At        time.Time // when, in the time of the stream
	Card      *Card
	Record    *record.Record // its partition is not chosen yet
	Malformed string         // what is wrong with the record; empty: nothing, or Unknown to who reads it from a file
}

// Give hands an item to the model that says what must come of it.
func (i Item) Give(m *model.Model) {
	if i.Card != nil {
		m.Card(i.Card.Card)
		return
	}
	m.Apply(i.Record)
}

// Items generates everything in order: first the cards that are there from the start, then records and late cards. Each
// call generates the same again.
func Items(o Options) iter.Seq[Item] {
	return func(yield func(Item) bool) {
		g := newGenerator(o)
		for i := range g.city.projects {
			card := g.city.projectCard(i)
			if !yield(Item{At: o.Start, Card: &card}) {
				return
			}
		}
		for i := range g.city.objects {
			card := g.city.objectCard(i)
			if g.city.late[i] {
				g.postpone(0.1+0.8*g.s.Float64(), Item{Card: &card})
				continue
			}
			if !yield(Item{At: o.Start, Card: &card}) {
				return
			}
		}
		g.spreadMalformed()
		for {
			item, ok := g.next()
			if !ok || !yield(item) {
				return
			}
		}
	}
}

// feed is a stream on its way: done of count events made.
type feed struct {
	stream
	forms forms
	done  int
	count int
}

// progress is where the next event lies between 0, the start, and 1, the end.
func (f *feed) progress() float64 { return (float64(f.done) + 0.5) / float64(f.count) }

type generator struct {
	o     Options
	s     source
	city  *city
	feeds []*feed
	later laterHeap
	order uint64
}

func newGenerator(o Options) *generator {
	c := newCity(o)
	views, purchases, prices := newViewStream(o, c), newPurchaseStream(o, c), newPriceStream(o, c)
	return &generator{
		o: o, s: newSource(o.Seed, 5), city: c,
		feeds: []*feed{
			{stream: views, forms: views.forms, count: o.Views},
			{stream: purchases, forms: purchases.forms, count: o.Purchases},
			{stream: prices, forms: prices.forms, count: o.Prices},
		},
	}
}

// next is the next item: of the streams and what was postponed, whatever comes first.
func (g *generator) next() (Item, bool) {
	for {
		var first *feed
		for _, f := range g.feeds {
			if f.done < f.count && (first == nil || f.progress() < first.progress()) {
				first = f
			}
		}
		if len(g.later) > 0 && (first == nil || g.later[0].progress <= first.progress()) {
			postponed, _ := heap.Pop(&g.later).(later) // it holds nothing else
			item := postponed.item
			item.At = g.at(postponed.progress)
			if item.Record != nil {
				sent := *item.Record
				sent.Timestamp = item.At
				item.Record = &sent
			}
			return item, true
		}
		if first == nil {
			return Item{}, false
		}
		progress := first.progress()
		item := Item{At: g.at(progress), Record: first.forms.record(first.draft(g.at(progress)))}
		first.done++
		if g.s.chance(g.o.Duplicates) {
			g.postpone(min(1, progress+0.002+0.1*g.s.ExpFloat64()), item)
		}
		if g.s.chance(g.o.Reordered) {
			g.postpone(progress+0.01*g.s.Float64(), item)
			continue
		}
		return item, true
	}
}

func (g *generator) at(progress float64) time.Time {
	return g.o.Start.Add(time.Duration(min(1, progress) * float64(g.o.Span)))
}

// spreadMalformed places the malformed records among the others. They are made from streams of their own, so that with
// and without them the valid events are the same.
func (g *generator) spreadMalformed() {
	if g.o.Malformed == 0 {
		return
	}
	o := g.o
	o.Seed += 1_000_003
	o.WrongKeys = 0
	spare := newGenerator(o)
	kinds := [][]Malformed{malformedViews(), malformedPurchases(), malformedPrices()}
	for i, f := range spare.feeds {
		for _, kind := range kinds[i] {
			for range g.o.Malformed {
				progress := g.s.Float64()
				d := spoil(spare.s, f.draft(g.at(progress)), kind)
				g.postpone(progress, Item{Record: f.forms.record(d), Malformed: kind.Name})
			}
		}
	}
}

func (g *generator) postpone(progress float64, item Item) {
	g.order++
	heap.Push(&g.later, later{progress: progress, order: g.order, item: item})
}

// later is an item that waits for its turn.
type later struct {
	progress float64
	order    uint64
	item     Item
}

type laterHeap []later

func (h *laterHeap) Len() int { return len(*h) }

func (h *laterHeap) Less(i, j int) bool {
	a, b := (*h)[i], (*h)[j]
	if a.progress != b.progress {
		return a.progress < b.progress
	}
	return a.order < b.order
}

func (h *laterHeap) Swap(i, j int) { (*h)[i], (*h)[j] = (*h)[j], (*h)[i] }

// Push and Pop are part of heap.Interface.
func (h *laterHeap) Push(x any) {
	if item, ok := x.(later); ok {
		*h = append(*h, item)
	}
}

func (h *laterHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
