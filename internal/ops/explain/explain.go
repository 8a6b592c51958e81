// Package explain judges one event offline, by the very codecs and rules of the consumers, and says what it would do and why: for
// producers' tests and for support. It reaches nothing and changes nothing.
package explain

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/processors/popularity"
	"github.com/pin-marketplace/vitrina/processors/promotion"
)

// Result is what the consumer would make of the event. It holds no value of UserId, AnonymousId or SessionId.
type Result struct {
	Consumer string   `json:"consumer"`
	Topic    string   `json:"topic"`
	Valid    bool     `json:"valid"`
	EventID  string   `json:"eventId,omitempty"`
	Code     string   `json:"code,omitempty"`   // why it is a dead letter
	Field    string   `json:"field,omitempty"`  // the field at fault
	Reason   string   `json:"reason,omitempty"` // one sentence
	Outcome  string   `json:"outcome"`          // of the first delivery: what is counted and logged
	Does     []string `json:"does"`             // in order
	Warnings []string `json:"warnings"`
	Event    any      `json:"event,omitempty"` // as decoded
}

// Options are what judging depends on besides the event.
type Options struct {
	Consumer    string // promotion, popularity or price
	ViewSources []string
	Now         time.Time
}

// Event judges one record: its key, value and headers. An unknown consumer is the only error.
func Event(rec *record.Record, o Options) (*Result, error) {
	c, ok := config.ConsumerOf(o.Consumer)
	if !ok {
		return nil, fmt.Errorf("there is no consumer %q: it is promotion, popularity or price", o.Consumer)
	}
	rec.Topic = c.Topic
	r := &Result{Consumer: c.Role, Topic: c.Topic, EventID: codecs.EventID(rec), Does: []string{}, Warnings: []string{}}
	var fault *codecs.Fault
	switch c.Role {
	case config.RolePromotion:
		fault = r.promotion(rec)
	case config.RolePopularity:
		fault = r.popularity(rec, o)
	default:
		fault = r.price(rec, o.Now)
	}
	if fault != nil {
		r.Code, r.Field, r.Reason = string(fault.Code), fault.Field, fault.Reason
		r.Outcome = "dead letter"
		r.do("the record goes to %s as it is, with x-dlq-error-code %s; the partition goes on behind it", c.DLQ, fault.Code)
		return r, nil //nolint:nilerr // a fault of the event is the answer, not a failure
	}
	r.Valid = true
	return r, nil
}

func (r *Result) do(format string, args ...any) {
	r.Does = append(r.Does, fmt.Sprintf(format, args...))
}
func (r *Result) warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

func (r *Result) mismatch(m codecs.Meta) {
	switch {
	case !m.ContractMismatch:
	case m.ContractVersion == 0:
		r.warn("ContractVersion is missing: counted as a mismatch, processed all the same (D1)")
	default:
		r.warn("ContractVersion is %d, not 1: counted as a mismatch, processed all the same (D1)", m.ContractVersion)
	}
}

type target struct {
	Kind string    `json:"kind"`
	ID   uuid.UUID `json:"id"`
}

type purchase struct {
	PurchaseID  uuid.UUID `json:"purchaseId"`
	Version     int64     `json:"version"`
	Status      string    `json:"status"`
	BoostWeight int32     `json:"boostWeight"`
	EndsAt      time.Time `json:"endsAt"`
	Targets     []target  `json:"targets"`
	Posts       int       `json:"posts"`
}

func (r *Result) promotion(rec *record.Record) *codecs.Fault {
	ev, fault := codecs.DecodePurchase(rec)
	if fault != nil {
		return fault
	}
	r.mismatch(ev.Meta)
	out := purchase{PurchaseID: ev.PurchaseID, Version: ev.Version, Status: string(ev.Status), BoostWeight: ev.BoostWeight, EndsAt: ev.EndsAt, Targets: []target{}, Posts: ev.PostTargets}
	for _, t := range ev.Targets {
		out.Targets = append(out.Targets, target{string(t.Kind), t.ID})
	}
	r.Event = out
	if ev.UnknownTargets > 0 {
		r.warn("%d targets of unknown kinds (%s) are ignored and counted (D5)", ev.UnknownTargets, strings.Join(ev.UnknownKinds, ", "))
	}
	r.key(rec, ev.PurchaseID, "PurchaseId", "D29")
	d := promotion.Decide(nil, ev, codecs.Origin{}, rec.ID)
	r.Outcome = d.Outcome.String()
	r.do("if version %d is older than the stored one, or EventId %s was seen for this purchase: skipped, nothing changes", ev.Version, ev.MessageID)
	if d.Outcome == promotion.PostOnly {
		r.do("it names no Project and no PropertyObject: an unknown purchase changes no card; a known one loses all its contributions (D3, D4)")
		return nil
	}
	r.do("otherwise it replaces the purchase's snapshot: targets of earlier versions that it no longer names become inactive (D3)")
	for _, t := range ev.Targets {
		card := "the card of object " + t.ID.String()
		if t.Kind == codecs.KindProject {
			card = "the card of project " + t.ID.String() + " and every Published object card of the project"
		}
		if ev.Status == codecs.StatusActive {
			r.do("contributes %d to %s (Delisted cards are frozen)", ev.BoostWeight, card)
		} else {
			r.do("contributes nothing to %s: status %s is kept inactive", card, ev.Status)
		}
	}
	return nil
}

// key warns about a Kafka key that is not the id of the payload; without a key there is nothing to compare offline.
func (r *Result) key(rec *record.Record, id uuid.UUID, field, rule string) {
	if rec.Key != nil && string(rec.Key) != id.String() {
		r.warn("the Kafka key is not %s in canonical form: the payload wins, the record takes the way through the loop topic (%s)", field, rule)
	}
}

type view struct {
	ViewID          uuid.UUID `json:"propertyObjectViewId"`
	ObjectID        uuid.UUID `json:"propertyObjectId"`
	Source          string    `json:"viewSource"`
	ViewedAt        time.Time `json:"viewedAt"`
	LastActivityAt  time.Time `json:"lastActivityAt"`
	DurationSeconds int64     `json:"durationSeconds"`
	HasUserID       bool      `json:"hasUserId"`
	HasAnonymousID  bool      `json:"hasAnonymousId"`
	HasSessionID    bool      `json:"hasSessionId"`
}

func (r *Result) popularity(rec *record.Record, o Options) *codecs.Fault {
	ev, fault := codecs.NewViewCodec(o.ViewSources).Decode(rec)
	if fault != nil {
		return fault
	}
	r.mismatch(ev.Meta)
	r.Event = view{ev.ViewID, ev.ObjectID, ev.Source, ev.ViewedAt, ev.LastActivityAt, ev.DurationSeconds, ev.HasUserID, ev.HasAnonymousID, ev.HasSessionID}
	if ev.SourceUnknown {
		r.warn("ViewSource is none of %s: counted as Unknown", strings.Join(o.ViewSources, ", "))
	}
	if ev.DurationSeconds < 0 {
		r.warn("DurationSeconds is negative: accepted")
	}
	r.key(rec, ev.ViewID, "PropertyObjectViewId", "D16")
	if d := popularity.Decide(nil, ev, codecs.Origin{}, o.Now); d.Kind == codecs.MarkNone {
		r.Outcome = "counted"
	}
	r.do("if view %s was counted before, by whatever record: a duplicate, nothing changes", ev.ViewID)
	r.do("otherwise adds 1 to popularity_views of object %s and of the project that its card names then (Delisted cards are frozen)", ev.ObjectID)
	r.do("if the catalog has no card of the object: tried again for popularity.retry_delays, then %s", codecs.CodePropertyObjectNotFound)
	return nil
}

type price struct {
	FactID           string    `json:"factId"`
	PropertyObjectID uuid.UUID `json:"propertyObjectId"`
	ProjectID        uuid.UUID `json:"projectId"`
	EventTime        time.Time `json:"eventTime"`
	AreaTotal        string    `json:"areaTotal"`
	OldPrice         *string   `json:"oldPrice"`
	NewPrice         string    `json:"newPrice"`
	OldPricePerMeter *string   `json:"oldPricePerMeter"`
	NewPricePerMeter string    `json:"newPricePerMeter"`
	Currency         string    `json:"currencyIsoCode"`
	CurrencyID       int16     `json:"currencyId"`
	Version          uint32    `json:"version"`
}

func (r *Result) price(rec *record.Record, now time.Time) *codecs.Fault {
	ev, fault := codecs.DecodePrice(rec, now)
	if fault != nil {
		return fault
	}
	r.mismatch(ev.Meta)
	f := ev.Fact
	out := price{FactID: f.FactID, PropertyObjectID: f.PropertyObjectID, ProjectID: f.ProjectID, EventTime: f.EventTime, AreaTotal: f.AreaTotal.StringFixed(2),
		NewPrice: f.NewPrice.StringFixed(2), NewPricePerMeter: f.NewPricePerMeter.StringFixed(2), Currency: f.CurrencyIsoCode, CurrencyID: f.CurrencyID, Version: ev.Version}
	if f.OldPrice.Valid {
		s := f.OldPrice.Decimal.StringFixed(2)
		out.OldPrice = &s
	}
	if f.OldPricePerMeter.Valid {
		s := f.OldPricePerMeter.Decimal.StringFixed(2)
		out.OldPricePerMeter = &s
	}
	r.Event, r.Outcome = out, "fact"
	if ev.NonRUB {
		r.warn("the currency is %s, not RUB: stored as it is", strconv.Quote(f.CurrencyIsoCode))
	}
	if ev.TenantMismatch {
		r.warn("the metadata name another tenant than DeveloperId: DeveloperId counts (ADR-0052)")
	}
	r.do("writes fact %s of object %s at %s: price %s, %s a metre", f.FactID, f.PropertyObjectID, f.EventTime.Format(time.RFC3339), out.NewPrice, out.NewPricePerMeter)
	r.do("a repeat of the EventId writes the same fact again; readers see it once")
	return nil
}
