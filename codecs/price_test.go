package codecs

import (
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func decodePriceDoc(d doc) (*Price, *Fault) { return DecodePrice(enveloped(d), testNow) }

func mustPrice(t testing.TB, d doc) *Price {
	t.Helper()
	p, fault := decodePriceDoc(d)
	require.Nil(t, fault, "%v", fault)
	return p
}

// text of an optional amount; "null" for none.
func amountText(d decimal.NullDecimal) string {
	if !d.Valid {
		return "null"
	}
	return d.Decimal.StringFixed(2)
}

func TestPriceEdgeValues(t *testing.T) {
	const none = "null"
	for name, tt := range map[string]struct {
		area, old, new, oldPer, newPer           string // as sent
		wantArea, wantOld, wantNew, wantO, wantN string // as stored; wantArea empty: rejected
	}{
		"plain":                     {"54.30", none, "12345678.90", none, none, "54.30", none, "12345678.90", none, "227360.57"},
		"strings":                   {`"54.30"`, `"100"`, `"1e2"`, `"1.005"`, `"2.5E-1"`, "54.30", "100.00", "100.00", "1.01", "0.25"},
		"zero price":                {"1", "0", "0", none, none, "1.00", "0.00", "0.00", "0.00", "0.00"},
		"minus zero":                {"1", "-0", "-0", "-0", "-0.0", "1.00", "0.00", "0.00", "0.00", "0.00"},
		"0.004 rounds to 0":         {"1", "0.004", "0.004", "0.004", "0.004", "1.00", "0.00", "0.00", "0.00", "0.00"},
		"0.005 rounds away":         {"0.005", "0.005", "0.005", "0.005", "0.005", "0.01", "0.01", "0.01", "0.01", "0.01"},
		"-0.004 rounds to 0":        {"1", "-0.004", "-0.004", "-0.004", "-0.004", "1.00", "0.00", "0.00", "0.00", "0.00"},
		"-0.005 rounds away":        {"1", "-0.005", "0", "-0.005", "-0.005", "1.00", "-0.01", "0.00", "-0.01", "-0.01"},
		"-0.005 is no price":        {area: "1", old: none, new: "-0.005", oldPer: none, newPer: none},
		"2.675, 1.005":              {"2.675", "1.005", "2.675", none, none, "2.68", "1.01", "2.68", "0.38", "1.00"},
		"15 digits":                 {"1", none, "123456789012345", none, none, "1.00", none, "123456789012345.00", none, "123456789012345.00"},
		"16 digits":                 {"1", none, "9999999999999999.99", none, none, "1.00", none, "9999999999999999.99", none, "9999999999999999.99"},
		"17 digits":                 {area: "1", old: none, new: "12345678901234567", oldPer: none, newPer: none},
		"17 significant digits":     {"1", none, "0.12345678901234567", none, none, "1.00", none, "0.12", none, "0.12"},
		"largest after rounding":    {"99999999.994", none, "9999999999999999.994", none, "1", "99999999.99", none, "9999999999999999.99", none, "1.00"},
		"exponents":                 {"5.43e1", "1E+2", "1234567890e-2", "10e-1", "0.1e1", "54.30", "100.00", "12345678.90", "1.00", "1.00"},
		"tiny price":                {"0.005", none, "1e-999999999", none, none, "0.01", none, "0.00", none, "0.00"},
		"tiny price, long":          {"0.005", none, "0." + strings.Repeat("0", 900) + "9", none, none, "0.01", none, "0.00", none, "0.00"},
		"negative old":              {"2", "-100", "100", none, none, "2.00", "-100.00", "100.00", "-50.00", "50.00"},
		"negative per metre":        {"2", "100", "100", "-1", "-2", "2.00", "100.00", "100.00", "-1.00", "-2.00"},
		"given per metre wins":      {"2", "100", "100", "7", "8", "2.00", "100.00", "100.00", "7.00", "8.00"},
		"old per metre alone":       {"2", none, "100", "7", none, "2.00", none, "100.00", "7.00", "50.00"},
		"exact area, not rounded":   {"0.0149", "1", "1", none, none, "0.01", "1.00", "1.00", "67.11", "67.11"},
		"exact price, not rounded":  {"0.01", "0.0049", "0.0049", none, none, "0.01", "0.00", "0.00", "0.49", "0.49"},
		"half away, quotient":       {"200", "1", "1", none, none, "200.00", "1.00", "1.00", "0.01", "0.01"},
		"half away, negative":       {"200", "-1", "1", none, none, "200.00", "-1.00", "1.00", "-0.01", "0.01"},
		"just below half":           {"200.0000000001", "1", "1", none, none, "200.00", "1.00", "1.00", "0.00", "0.00"},
		"new per metre overflows":   {area: "0.005", old: none, new: "9999999999999999", oldPer: none, newPer: none},
		"old per metre overflows":   {area: "0.005", old: "-9999999999999999", new: "1", oldPer: none, newPer: none},
		"given per metre saves it":  {"0.005", "9999999999999999", "9999999999999999", "1", "1", "0.01", "9999999999999999.00", "9999999999999999.00", "1.00", "1.00"},
		"area of 0.004":             {area: "0.004", old: none, new: "1", oldPer: none, newPer: none},
		"area of 0.00499 repeating": {area: "0.00499999999999999999", old: none, new: "1", oldPer: none, newPer: none},
	} {
		t.Run(name, func(t *testing.T) {
			d := priceDoc().with("AreaTotal", tt.area).with("OldPrice", tt.old).with("NewPrice", tt.new).
				with("OldPricePerMeter", tt.oldPer).with("NewPricePerMeter", tt.newPer)
			p, fault := decodePriceDoc(d)
			if tt.wantArea == "" {
				require.NotNil(t, fault)
				requireDecentReason(t, fault)
				return
			}
			require.Nil(t, fault, "%v", fault)
			require.Equal(t, []string{tt.wantArea, tt.wantOld, tt.wantNew, tt.wantO, tt.wantN}, []string{p.AreaTotal.StringFixed(2),
				amountText(p.OldPrice), p.NewPrice.StringFixed(2), amountText(p.OldPricePerMeter), p.NewPricePerMeter.StringFixed(2)})
			requireInsertable(t, p)
		})
	}
}

func TestComputedPricePerMeterOverflowNamesItsField(t *testing.T) {
	_, fault := decodePriceDoc(priceDoc().with("AreaTotal", "0.005").with("NewPrice", "9999999999999999"))
	requireFault(t, fault, CodeValueOutOfRange, "NewPricePerMeter")
	_, fault = decodePriceDoc(priceDoc().with("AreaTotal", "0.005").with("OldPrice", "9999999999999999"))
	requireFault(t, fault, CodeValueOutOfRange, "OldPricePerMeter")
}

// roundRat rounds half away from zero to two decimals: the model of D12.
func roundRat(r *big.Rat) *big.Rat {
	scaled := new(big.Rat).Mul(r, big.NewRat(200, 1)) // floor((200|r| + 1) / 2) is |r| in hundredths, rounded
	scaled.Abs(scaled)
	n := new(big.Int).Quo(scaled.Num(), scaled.Denom())
	n.Add(n, big.NewInt(1)).Rsh(n, 1)
	if r.Sign() < 0 {
		n.Neg(n)
	}
	return new(big.Rat).SetFrac(n, big.NewInt(100))
}

func TestAmountsAgainstRationals(t *testing.T) {
	ratText := func(t *rapid.T, label string) (string, *big.Rat) {
		text := rapid.OneOf(
			rapid.StringMatching(`-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,6})?`),
			rapid.StringMatching(`(0|[1-9][0-9]{0,9})\.[0-9]{1,4}5`),
			rapid.StringMatching(`(0|[1-9][0-9]{0,2})\.[0-9]{2}(4999999999999|5)[0-9]{0,30}`),
			rapid.StringMatching(`[1-9](\.[0-9]{1,20})?[eE]-?1?[0-9]`),
		).Draw(t, label)
		r, ok := new(big.Rat).SetString(text)
		require.True(t, ok, text)
		return text, r
	}
	rapid.Check(t, func(t *rapid.T) {
		areaText, area := ratText(t, "area")
		newText, newPrice := ratText(t, "new")
		oldText, oldPrice := ratText(t, "old")
		p, fault := decodePriceDoc(priceDoc().with("AreaTotal", areaText).with("NewPrice", quoted(newText)).with("OldPrice", oldText))

		wide, narrow := big.NewRat(1e16, 1), big.NewRat(1e8, 1)
		within := func(r, limit *big.Rat) bool { return new(big.Rat).Abs(r).Cmp(limit) < 0 }
		rArea, rNew, rOld := roundRat(area), roundRat(newPrice), roundRat(oldPrice)
		ok := rArea.Sign() > 0 && within(rArea, narrow) && rNew.Sign() >= 0 && within(rNew, wide) && within(rOld, wide)
		var perNew, perOld *big.Rat
		if ok {
			perNew, perOld = roundRat(new(big.Rat).Quo(newPrice, area)), roundRat(new(big.Rat).Quo(oldPrice, area))
			ok = within(perNew, wide) && within(perOld, wide)
		}
		if !ok {
			require.NotNil(t, fault, "area %s new %s old %s", areaText, newText, oldText)
			return
		}
		require.Nil(t, fault, "%v", fault)
		for what, pair := range map[string][2]*big.Rat{"area": {rArea, p.AreaTotal.Rat()}, "new": {rNew, p.NewPrice.Rat()},
			"old": {rOld, p.OldPrice.Decimal.Rat()}, "per new": {perNew, p.NewPricePerMeter.Rat()}, "per old": {perOld, p.OldPricePerMeter.Decimal.Rat()}} {
			require.Zero(t, pair[0].Cmp(pair[1]), "%s: %s, got %s", what, pair[0].FloatString(4), pair[1].FloatString(4))
		}
	})
}

func TestPriceMapping(t *testing.T) {
	p := mustPrice(t, priceDoc())
	require.Equal(t, eventGUID, p.FactID)
	require.Equal(t, p.FactID, p.SourceEventID)
	require.Equal(t, developerGUID, p.Fact.TenantID)
	require.Equal(t, "talent-sync", p.ChangeSource)
	require.EqualValues(t, 1, p.TransformVersion)
	require.Equal(t, time.Date(2026, 11, 30, 7, 15, 30, 0, time.UTC), p.EventTime)
	require.Equal(t, "2026-11-30T10:15:30.1234567+03:00", p.ChangedAt.Format(time.RFC3339Nano))
	require.EqualValues(t, 643, p.CurrencyID)
	require.Equal(t, "RUB", p.CurrencyIsoCode)
	require.Equal(t, "Talent", p.Source)
	require.EqualValues(t, 17, p.Version)
	require.False(t, p.NonRUB || p.TenantMismatch || p.ContractMismatch)

	upper := rec(envelopeDoc(priceDoc()).with("EventId", quoted("{"+strings.ToUpper(eventGUID)+"}")).String())
	q, fault := DecodePrice(upper, testNow)
	require.Nil(t, fault)
	require.Equal(t, eventGUID, q.FactID, "canonical form")

	p = mustPrice(t, priceDoc().with("DeveloperId", quoted("{"+strings.ToUpper(projectGUID)+"}")))
	require.Equal(t, projectGUID, p.Fact.TenantID)
	require.True(t, p.TenantMismatch)
}

func TestPriceOptionalFields(t *testing.T) {
	p := mustPrice(t, priceDoc().without("Source").without("Version").without("OldPrice").without("OldPricePerMeter").without("NewPricePerMeter"))
	require.Empty(t, p.Source)
	require.Zero(t, p.Version)
	require.False(t, p.OldPrice.Valid || p.OldPricePerMeter.Valid)
	require.EqualValues(t, 4294967295, mustPrice(t, priceDoc().with("Version", "4294967295")).Version)
	require.EqualValues(t, -32768, mustPrice(t, priceDoc().with("CurrencyId", "-32768")).CurrencyID)
}

func TestPriceCurrencySnapshot(t *testing.T) {
	for raw, iso := range map[string]string{`{"IsoCode":"USD"}`: "USD", `{"isoCode":""}`: "", `{"IsoCode":"rub","Name":5,"Sign":{},"CurrencyId":"x"}`: "rub",
		`{"IsoCode":"\u0420\ud83d\ude00\u0000","ISOCODE":1}`: "Р😀\x00"} {
		p := mustPrice(t, priceDoc().with("CurrencySnapshot", raw))
		require.Equal(t, iso, p.CurrencyIsoCode)
		require.True(t, p.NonRUB)
		requireInsertable(t, p)
	}
	for raw, field := range map[string]string{`{}`: "IsoCode", `{"IsoCode":null}`: "IsoCode", `{"IsoCode":643}`: "IsoCode", `{"ISOCODE":"RUB"}`: "IsoCode",
		`{"IsoCode":"\ud83d"}`: "IsoCode", `{"IsoCode":"RUB","isoCode":"RUB"}`: "IsoCode", `{"IsoCode":"RUB","Name":"a","name":"b"}`: "Name",
		`{"IsoCode":"RUB","Sign":null,"Sign":null}`: "Sign", `{"IsoCode":"RUB","CurrencyId":1,"CurrencyId":1}`: "CurrencyId"} {
		_, fault := decodePriceDoc(priceDoc().with("CurrencySnapshot", raw))
		requireFault(t, fault, CodeInvalidField, "CurrencySnapshot."+field)
	}
}

func TestPriceChangedAtBoundaries(t *testing.T) {
	for text, want := range map[string]int64{
		"1970-01-01T00:00:00Z":                0,
		"1970-01-01T00:00:00.999999999Z":      0,
		"1970-01-01T03:00:00+03:00":           0,
		"2026-12-01T01:00:00Z":                testNow.Unix() + 3600, // exactly one hour ahead
		"2026-12-01T15:00:00+14:00":           testNow.Unix() + 3600,
		"2026-11-30T11:00:00-14:00":           testNow.Unix() + 3600,
		"2026-11-30T23:59:59.999999999Z":      testNow.Unix() - 1, // cut, not rounded
		"2016-12-31T23:59:60Z":                1483228800,
		"2026-11-30T10:15:30.123456789+03:00": time.Date(2026, 11, 30, 7, 15, 30, 0, time.UTC).Unix(),
	} {
		p := mustPrice(t, priceDoc().with("ChangedAt", quoted(text)))
		require.Equal(t, want, p.EventTime.Unix(), text)
		requireInsertable(t, p)
	}
	later := time.Date(2106, 2, 7, 6, 28, 15, 0, time.UTC)
	p, fault := DecodePrice(enveloped(priceDoc().with("ChangedAt", `"2106-02-07T06:28:15.9Z"`)), later)
	require.Nil(t, fault)
	require.Equal(t, later, p.EventTime)
	_, fault = DecodePrice(enveloped(priceDoc().with("ChangedAt", `"2106-02-07T06:28:16Z"`)), later)
	requireFault(t, fault, CodeValueOutOfRange, "ChangedAt")
}

func TestPriceTenantMismatch(t *testing.T) {
	for tenant, want := range map[string]bool{quoted(developerGUID): false, quoted("{" + strings.ToUpper(developerGUID) + "}"): false, "null": false,
		quoted(projectGUID): true, `"x"`: true, "5": false} {
		p, fault := DecodePrice(rec(envelopeDoc(priceDoc()).with("TenantId", tenant).String()), testNow)
		require.Nil(t, fault)
		require.Equal(t, want, p.TenantMismatch, tenant)
	}
}

func TestBackfillPrice(t *testing.T) {
	payload := priceDoc().with("ChangedAt", `"2026-11-30T10:15:30.12345678+03:00"`).with("PropertyObjectId", quoted(strings.ToUpper(objectGUID)))
	p, fault := DecodeBackfillPrice([]byte(payload.String()), testNow)
	require.Nil(t, fault)
	require.Equal(t, "backfill:"+objectGUID+":2026-11-30T10:15:30.1234567+03:00", p.SourceEventID)
	require.Equal(t, p.SourceEventID, p.FactID)
	live := mustPrice(t, payload)
	live.FactID, live.SourceEventID, live.Meta = p.FactID, p.SourceEventID, p.Meta
	require.Equal(t, live, p, "the same mapping as a live event")

	p, fault = DecodeBackfillPrice([]byte(priceDoc().with("ChangedAt", `"2026-11-30T10:15:30Z"`).String()), testNow)
	require.Nil(t, fault)
	require.Equal(t, "backfill:"+objectGUID+":2026-11-30T10:15:30.0000000+00:00", p.FactID)

	_, fault = DecodeBackfillPrice([]byte(priceDoc().with("AreaTotal", "0").String()), testNow)
	requireFault(t, fault, CodeInvalidField, "AreaTotal")
	_, fault = DecodeBackfillPrice([]byte("x"), testNow)
	requireFault(t, fault, CodeUndecodable, "")
}
