package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// Topics of the specification, written here again on purpose: the model takes nothing from the program.
const (
	topicPromotion  = "pin.promotion.purchase-changed.v1"
	topicPopularity = "pin.user-activity.property-object-view-ended.v1"
	topicPrice      = "pin.chessboard.property-object-price-changed.v1"
)

// The kinds of cards and targets.
const (
	Project        = "Project"
	PropertyObject = "PropertyObject"
)

// MarshalText writes Kind/ID, also as a JSON key.
func (r Ref) MarshalText() ([]byte, error) { return []byte(r.Kind + "/" + r.ID), nil }

// UnmarshalText reads what MarshalText writes.
func (r *Ref) UnmarshalText(text []byte) error {
	kind, id, ok := strings.Cut(string(text), "/")
	if !ok {
		return fmt.Errorf("%q is not Kind/ID", text)
	}
	r.Kind, r.ID = kind, id
	return nil
}

// The statuses of a card.
const (
	Published = "Published"
	Hidden    = "Hidden"
	Delisted  = "Delisted"
)

// The states of a view.
const (
	counted         = "counted"
	dead            = "dead"
	skippedDelisted = "skipped-delisted"
)

// Ref names a card or a target. ID is canonical: lower case with hyphens.
type Ref struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
}

// Card is a row of catalog.project_cards or catalog.property_object_cards as it is inserted.
type Card struct {
	Kind            string `json:"kind"`
	ID              string `json:"id"`
	ProjectID       string `json:"projectId,omitempty"` // object cards only
	Status          string `json:"status"`
	PromotionBoost  int    `json:"promotionBoost"`
	PopularityViews int64  `json:"popularityViews"`
}

// Ref names the card.
func (c Card) Ref() Ref { return Ref{Kind: c.Kind, ID: c.ID} }

// CardState is what a card must show in the end.
type CardState struct {
	PromotionBoost  int   `json:"promotionBoost"`
	PopularityViews int64 `json:"popularityViews"`
}

// Purchase is the replica of one purchase.
type Purchase struct {
	Version     int64        `json:"version"`
	Status      string       `json:"status"`
	BoostWeight int          `json:"boostWeight"`
	Targets     map[Ref]bool `json:"targets"` // every target it ever named; false: dropped since
}

// Fact is a row of the price history, every column as text: decimals with two digits, times RFC 3339 UTC, ids canonical,
// NULL as the empty text.
type Fact struct {
	FactID           string `json:"factId"`
	PropertyObjectID string `json:"propertyObjectId"`
	DeveloperID      string `json:"developerId"`
	ProjectID        string `json:"projectId"`
	BuildingID       string `json:"buildingId"`
	LayoutGroupID    string `json:"layoutGroupId"`
	LayoutID         string `json:"layoutId"`
	AreaTotal        string `json:"areaTotal"`
	OldPrice         string `json:"oldPrice"`
	NewPrice         string `json:"newPrice"`
	OldPricePerMeter string `json:"oldPricePerMeter"`
	NewPricePerMeter string `json:"newPricePerMeter"`
	CurrencyID       string `json:"currencyId"`
	CurrencyIsoCode  string `json:"currencyIsoCode"`
	EventTime        string `json:"eventTime"`
}

// DeadLetter is a record that must lie in the dead-letter topic of its consumer.
type DeadLetter struct {
	Index int    `json:"index"` // of the record, counted over all records given to Apply, from 0
	Topic string `json:"topic"` // its source topic
	Code  string `json:"code"`
	Field string `json:"field,omitempty"`
}

// Expected is the final state.
type Expected struct {
	Cards       map[Ref]CardState   `json:"cards"`
	Targets     map[Ref]int         `json:"targets"` // active sum of each target that any purchase ever named
	Purchases   map[string]Purchase `json:"purchases"`
	Views       map[string]string   `json:"views"` // view -> counted, dead or skipped-delisted
	Facts       map[string]Fact     `json:"facts"`
	DeadLetters []DeadLetter        `json:"deadLetters"`
	Mismatches  map[string]int      `json:"mismatches"` // by topic: processed records whose ContractVersion is missing or not 1
	Records     map[string]int      `json:"records"`    // by topic: records given to Apply
}

// Model gathers records and cards. It is for one goroutine.
type Model struct {
	now       time.Time
	cards     map[Ref]Card
	purchases map[string]*purchase
	views     map[string]view
	facts     map[string]Fact
	letters   []DeadLetter
	mismatch  map[string]int
	records   map[string]int
	applied   int
}

type purchase struct {
	Purchase
	messages map[string]bool
}

type view struct {
	object string
	index  int
}

// New returns an empty model. now is the time against which "in the future" is meant.
func New(now time.Time) *Model {
	return &Model{
		now: now, cards: map[Ref]Card{}, purchases: map[string]*purchase{}, views: map[string]view{},
		facts: map[string]Fact{}, mismatch: map[string]int{}, records: map[string]int{},
	}
}

// Card notes a card; the last one of an id counts.
func (m *Model) Card(c Card) { m.cards[c.Ref()] = c }

// Apply processes one record. Its partition and offset do not matter.
func (m *Model) Apply(rec *record.Record) {
	index := m.applied
	m.applied++
	m.records[rec.Topic]++
	ev, fault := open(rec)
	if fault == nil {
		switch rec.Topic {
		case topicPromotion:
			fault = m.applyPurchase(ev)
		case topicPopularity:
			fault = m.applyView(ev, index)
		case topicPrice:
			fault = m.applyPrice(ev)
		}
	}
	if fault != nil {
		m.letters = append(m.letters, DeadLetter{Index: index, Topic: rec.Topic, Code: fault.code, Field: fault.field})
		return
	}
	if ev.contractVersion() != "1" {
		m.mismatch[rec.Topic]++
	}
}

// Expected returns the final state of everything given so far.
func (m *Model) Expected() *Expected {
	e := &Expected{
		Cards: map[Ref]CardState{}, Targets: map[Ref]int{}, Purchases: map[string]Purchase{}, Views: map[string]string{},
		Facts: maps.Clone(m.facts), DeadLetters: slices.Clone(m.letters), Mismatches: maps.Clone(m.mismatch), Records: maps.Clone(m.records),
	}
	named := map[Ref]bool{}
	for id, p := range m.purchases {
		if len(p.Targets) == 0 {
			continue // never anything but posts: no contribution
		}
		e.Purchases[id] = Purchase{Version: p.Version, Status: p.Status, BoostWeight: p.BoostWeight, Targets: maps.Clone(p.Targets)}
		for target, current := range p.Targets {
			named[target] = true
			e.Targets[target] += 0
			if current && p.Status == "Active" {
				e.Targets[target] += p.BoostWeight
			}
		}
	}
	for ref, card := range m.cards {
		e.Cards[ref] = CardState{PromotionBoost: boost(card, e.Targets, named), PopularityViews: card.PopularityViews}
	}
	m.countViews(e)
	slices.SortFunc(e.DeadLetters, func(a, b DeadLetter) int { return cmp.Compare(a.Index, b.Index) })
	return e
}

// boost is the PromotionBoost of a card, a function of the card and the contributions (D10, D11, D27).
func boost(c Card, sums map[Ref]int, named map[Ref]bool) int {
	switch {
	case c.Status == Delisted:
		return c.PromotionBoost
	case c.Status == Hidden && !named[c.Ref()]:
		return c.PromotionBoost
	case c.Kind == Project:
		return sums[c.Ref()]
	default:
		return sums[c.Ref()] + sums[Ref{Project, c.ProjectID}]
	}
}

// countViews adds one for each distinct view to its object and the object's project (D11, D28).
func (m *Model) countViews(e *Expected) {
	for id, v := range m.views {
		object := Ref{PropertyObject, v.object}
		card, ok := m.cards[object]
		switch {
		case !ok:
			e.Views[id] = dead
			e.DeadLetters = append(e.DeadLetters, DeadLetter{Index: v.index, Topic: topicPopularity, Code: notFound})
		case card.Status == Delisted:
			e.Views[id] = skippedDelisted
		default:
			e.Views[id] = counted
			add(e.Cards, object)
			if project, ok := m.cards[Ref{Project, card.ProjectID}]; ok && project.Status != Delisted {
				add(e.Cards, project.Ref())
			}
		}
	}
}

func add(cards map[Ref]CardState, ref Ref) {
	state := cards[ref]
	state.PopularityViews++
	cards[ref] = state
}
