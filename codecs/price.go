package codecs

import (
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// What the consumer itself writes into every fact.
const (
	changeSource     = "talent-sync"
	transformVersion = 1 // version of the mapping below: raise it when the mapping changes
	currencyRUB      = "RUB"

	// maxAhead is how far ahead of the clock a change may lie.
	maxAhead = time.Hour
)

const (
	priceObjectID = iota
	priceDeveloperID
	priceProjectID
	priceBuildingID
	priceLayoutGroupID
	priceLayoutID
	priceAreaTotal
	priceOldPrice
	priceNewPrice
	priceOldPerMeter
	priceNewPerMeter
	priceCurrencyID
	priceCurrency
	priceChangedAt
	priceSource
	priceVersion
)

func priceFieldName(i int) string {
	return [...]string{"PropertyObjectId", "DeveloperId", "ProjectId", "BuildingId", "LayoutGroupId", "LayoutId", "AreaTotal", "OldPrice",
		"NewPrice", "OldPricePerMeter", "NewPricePerMeter", "CurrencyId", "CurrencySnapshot", "ChangedAt", "Source", "Version", ""}[i]
}

func priceField(name []byte) int {
	switch string(name) {
	case "PropertyObjectId", "propertyObjectId":
		return priceObjectID
	case "DeveloperId", "developerId":
		return priceDeveloperID
	case "ProjectId", "projectId":
		return priceProjectID
	case "BuildingId", "buildingId":
		return priceBuildingID
	case "LayoutGroupId", "layoutGroupId":
		return priceLayoutGroupID
	case "LayoutId", "layoutId":
		return priceLayoutID
	case "AreaTotal", "areaTotal":
		return priceAreaTotal
	case "OldPrice", "oldPrice":
		return priceOldPrice
	case "NewPrice", "newPrice":
		return priceNewPrice
	case "OldPricePerMeter", "oldPricePerMeter":
		return priceOldPerMeter
	case "NewPricePerMeter", "newPricePerMeter":
		return priceNewPerMeter
	case "CurrencyId", "currencyId":
		return priceCurrencyID
	case "CurrencySnapshot", "currencySnapshot":
		return priceCurrency
	case "ChangedAt", "changedAt":
		return priceChangedAt
	case "Source", "source":
		return priceSource
	case "Version", "version":
		return priceVersion
	}
	return -1
}

// The fields of CurrencySnapshot. Only IsoCode is read; the others are known so that a repeated one is seen.
const (
	currencyIsoCode = iota
	currencyID
	currencyName
	currencySign
)

func currencyFieldName(i int) string {
	return [...]string{"IsoCode", "CurrencyId", "Name", "Sign", ""}[i]
}

func currencyField(name []byte) int {
	switch string(name) {
	case "IsoCode", "isoCode":
		return currencyIsoCode
	case "CurrencyId", "currencyId":
		return currencyID
	case "Name", "name":
		return currencyName
	case "Sign", "sign":
		return currencySign
	}
	return -1
}

// DecodePrice reads a record of pin.chessboard.property-object-price-changed.v1 and maps it to its fact (specification 004; decisions
// D12 to D14, D18 to D26). now is what ChangedAt is held against. Safe for concurrent use; the result shares no memory with the
// record.
func DecodePrice(rec *record.Record, now time.Time) (*Price, *Fault) {
	m := message{fields: fields{nameOf: priceFieldName}}
	if fault := m.scan(rec.Value, priceField); fault != nil {
		return nil, fault
	}
	p := &Price{}
	found := m.meta(rec, &p.Meta)
	f := &m.fields
	f.checkRepeated()
	f.requireEventID(&p.Meta, found)
	p.read(f, now)
	if f.fault != nil {
		return nil, f.fault
	}
	p.FactID = p.MessageID.String()
	p.SourceEventID = p.FactID
	return p, nil
}

// DecodeBackfillPrice reads one bare payload, which has no EventId, by the same rules as DecodePrice. Its fact is identified by
// backfill:{PropertyObjectId}:{ChangedAt:O}, so that a backfill run twice leaves one fact and none meets one of a live event.
func DecodeBackfillPrice(payload []byte, now time.Time) (*Price, *Fault) {
	m := message{fields: fields{nameOf: priceFieldName}}
	if fault := m.scan(payload, priceField); fault != nil {
		return nil, fault
	}
	f := &m.fields
	f.checkRepeated()
	p := &Price{}
	p.read(f, now)
	if f.fault != nil {
		return nil, f.fault
	}
	p.FactID = fmt.Sprintf("backfill:%s:%s", p.PropertyObjectID, RoundTripTime(p.ChangedAt))
	p.SourceEventID = p.FactID
	return p, nil
}

// RoundTripTime formats as .NET's DateTimeOffset.ToString("O"): seven fractional digits, the rest cut, and a numeric offset.
func RoundTripTime(t time.Time) string {
	return t.Truncate(100 * time.Nanosecond).Format("2006-01-02T15:04:05.0000000-07:00")
}

// read validates the payload and maps it, in the order of the specification's table.
func (p *Price) read(f *fields, now time.Time) {
	f.id(priceObjectID).put(&p.PropertyObjectID)
	f.id(priceDeveloperID).put(&p.DeveloperID)
	f.id(priceProjectID).put(&p.ProjectID)
	p.BuildingID = f.positive(priceBuildingID)
	p.LayoutGroupID = f.positive(priceLayoutGroupID)
	p.LayoutID = f.positive(priceLayoutID)
	p.readAmounts(f)
	p.CurrencyID = int16(f.integer(priceCurrencyID, math.MinInt16, math.MaxInt16, "a 16-bit integer"))
	if f.requireKind(priceCurrency, kindObject, "an object") {
		p.readCurrency(f)
	}
	p.readChangedAt(f, now)
	if f.present(priceSource) {
		p.Source = cleanText(f.string(priceSource))
	}
	if f.present(priceVersion) {
		p.Version = uint32(f.integer(priceVersion, 0, math.MaxUint32, "an unsigned 32-bit integer"))
	}
	p.Fact.TenantID = p.DeveloperID.String()
	p.TenantMismatch = otherTenant(p.Meta.TenantID, p.DeveloperID)
	p.ChangeSource = changeSource
	p.TransformVersion = transformVersion
}

// readAmounts reads area and prices. They are judged as their columns will hold them, rounded (D13); a price per metre that the
// event does not give comes from the exact values of the event (D25).
func (p *Price) readAmounts(f *fields) {
	area := f.decimal(priceAreaTotal)
	p.AreaTotal = area.Round(2)
	if f.fault == nil && !p.AreaTotal.IsPositive() {
		f.reject(priceAreaTotal, "above 0 when rounded to two decimals")
	}
	if f.fault == nil && !holds(p.AreaTotal, 10) {
		f.overflow(priceAreaTotal, "the column Decimal(10,2)")
	}

	var oldPrice decimal.Decimal
	hasOld := f.present(priceOldPrice)
	if hasOld {
		oldPrice = f.decimal(priceOldPrice)
		p.OldPrice = decimal.NewNullDecimal(f.money(priceOldPrice, oldPrice))
	}
	newPrice := f.decimal(priceNewPrice)
	p.NewPrice = f.money(priceNewPrice, newPrice)
	if f.fault == nil && p.NewPrice.IsNegative() {
		f.reject(priceNewPrice, "0 or more")
	}
	switch {
	case f.present(priceOldPerMeter):
		p.OldPricePerMeter = decimal.NewNullDecimal(f.money(priceOldPerMeter, f.decimal(priceOldPerMeter)))
	case hasOld:
		p.OldPricePerMeter = decimal.NewNullDecimal(f.perMeter(priceOldPerMeter, oldPrice, area))
	}
	if f.present(priceNewPerMeter) {
		p.NewPricePerMeter = f.money(priceNewPerMeter, f.decimal(priceNewPerMeter))
	} else {
		p.NewPricePerMeter = f.perMeter(priceNewPerMeter, newPrice, area)
	}
}

// perMeter computes a price per metre; i is the field that it stands in for.
func (f *fields) perMeter(i int, price, area decimal.Decimal) decimal.Decimal {
	if f.fault != nil {
		return decimal.Decimal{}
	}
	d := price.DivRound(area, 2)
	if !holds(d, 18) {
		f.fail(CodeValueOutOfRange, i, "is not given, and the price divided by AreaTotal is beyond the column Decimal(18,2)")
	}
	return d
}

func (p *Price) readCurrency(f *fields) {
	v := f.spans[priceCurrency]
	s := scanner{data: f.data[:v.end]}
	currency := fields{data: f.data, nameOf: currencyFieldName, list: "CurrencySnapshot", index: notIndexed}
	s.members(s.enter(v.start), &currency, currencyField)
	currency.checkRepeated()
	p.CurrencyIsoCode = string(currency.string(currencyIsoCode))
	p.NonRUB = p.CurrencyIsoCode != currencyRUB
	f.fault = currency.fault
}

func (p *Price) readChangedAt(f *fields, now time.Time) {
	t, offset := f.time(priceChangedAt)
	if f.fault != nil {
		return
	}
	switch seconds := t.Unix(); {
	case t.IsZero():
		f.reject(priceChangedAt, "set (0001-01-01 is the default of DateTimeOffset)")
	case seconds < 0 || seconds > math.MaxUint32:
		f.overflow(priceChangedAt, "the column DateTime (1970 to 2106)")
	case t.After(now.Add(maxAhead)):
		f.reject(priceChangedAt, "at most one hour ahead of the clock")
	}
	p.EventTime = t.Truncate(time.Second) // cut, not rounded (D26); from 1970 on both count from the same second
	p.ChangedAt = t
	if offset != 0 {
		p.ChangedAt = t.In(time.FixedZone("", offset))
	}
}

// otherTenant compares the tenant of the metadata with the payload's. Without one in the metadata there is nothing to compare.
func otherTenant(metadata string, developer uuid.UUID) bool {
	if metadata == "" {
		return false
	}
	id, ok := parseGUID([]byte(metadata))
	return !ok || id != developer
}
