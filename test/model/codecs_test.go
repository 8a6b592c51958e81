package model_test

import (
	"testing"
	"time"

	"github.com/shopspring/decimal"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/test/model"
)

// Codecs and model were written apart, from the specification; on every generated record, good or malformed, they must
// agree about the code, and about every column of a fact.
func TestCodecsAgreeWithTheModel(t *testing.T) {
	o := generate.Defaults()
	o.Start = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	o.Views, o.Purchases, o.Prices, o.Malformed, o.Bare, o.WrongKeys = 3000, 3000, 3000, 4, 0.4, 0.1
	clock := o.Start.Add(o.Span)
	m := model.New(clock)
	var records []generate.Item
	for item := range generate.Items(o) {
		item.Give(m)
		if item.Record != nil {
			records = append(records, item)
		}
	}
	expected := m.Expected()
	want := make([]string, len(records))
	for _, letter := range expected.DeadLetters {
		want[letter.Index] = letter.Code
	}
	views := codecs.NewViewCodec([]string{"Catalog", "Search", "Selection"})
	for i, item := range records {
		got := decode(t, views, item.Record, clock, expected.Facts)
		require.Equal(t, want[i], got, "%s: %s\n%s\n%v", item.Record.Topic, item.Malformed, item.Record.Value, item.Record.Headers)
	}
}

func decode(t *testing.T, views *codecs.ViewCodec, rec *record.Record, now time.Time, facts map[string]model.Fact) string {
	t.Helper()
	var fault *codecs.Fault
	switch rec.Topic {
	case config.TopicPurchaseChanged:
		_, fault = codecs.DecodePurchase(rec)
	case config.TopicViewEnded:
		_, fault = views.Decode(rec)
	default:
		var price *codecs.Price
		if price, fault = codecs.DecodePrice(rec, now); fault == nil {
			require.Equal(t, facts[price.FactID], columns(price.Fact), "%s", rec.Value)
		}
	}
	if fault != nil {
		return string(fault.Code)
	}
	return ""
}

func columns(f codecs.Fact) model.Fact {
	optional := func(d decimal.NullDecimal) string {
		if !d.Valid {
			return ""
		}
		return d.Decimal.StringFixed(2)
	}
	return model.Fact{
		FactID: f.FactID, PropertyObjectID: f.PropertyObjectID.String(), DeveloperID: f.DeveloperID.String(), ProjectID: f.ProjectID.String(),
		BuildingID: decimal.NewFromInt(f.BuildingID).String(), LayoutGroupID: decimal.NewFromInt(f.LayoutGroupID).String(),
		LayoutID: decimal.NewFromInt(f.LayoutID).String(), AreaTotal: f.AreaTotal.StringFixed(2), OldPrice: optional(f.OldPrice),
		NewPrice: f.NewPrice.StringFixed(2), OldPricePerMeter: optional(f.OldPricePerMeter), NewPricePerMeter: f.NewPricePerMeter.StringFixed(2),
		CurrencyID: decimal.NewFromInt(int64(f.CurrencyID)).String(), CurrencyIsoCode: f.CurrencyIsoCode,
		EventTime: f.EventTime.UTC().Format(time.RFC3339),
	}
}
