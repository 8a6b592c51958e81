package codecs

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/record"
)

const (
	eventGUID     = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01"
	objectGUID    = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a02"
	developerGUID = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a03"
	projectGUID   = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a04"
	viewGUID      = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a05"
	purchaseGUID  = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a06"
	emptyGUID     = "00000000-0000-0000-0000-000000000000"

	// What no reason and no result may show.
	userGUID      = "5ec3e700-0000-4000-8000-000000000001"
	anonymousGUID = "5ec3e700-0000-4000-8000-000000000002"
	sessionGUID   = "5ec3e700-0000-4000-8000-000000000003"
)

var testNow = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

// doc is a JSON object whose members keep their order and may repeat.
type doc []member

type member struct{ name, raw string }

func quoted(s string) string { return `"` + s + `"` }

func (d doc) with(name, raw string) doc {
	out := append(doc(nil), d...)
	for i := range out {
		if out[i].name == name {
			out[i].raw = raw
			return out
		}
	}
	return append(out, member{name, raw})
}

func (d doc) without(name string) doc {
	var out doc
	for _, m := range d {
		if m.name != name {
			out = append(out, m)
		}
	}
	return out
}

func (d doc) plus(name, raw string) doc { return append(append(doc(nil), d...), member{name, raw}) }

func (d doc) camel() doc {
	var out doc
	for _, m := range d {
		out = append(out, member{strings.ToLower(m.name[:1]) + m.name[1:], m.raw})
	}
	return out
}

func (d doc) String() string {
	var b strings.Builder
	for i, m := range d {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(quoted(m.name) + ":" + m.raw)
	}
	return "{" + b.String() + "}"
}

func priceDoc() doc {
	return doc{{"PropertyObjectId", quoted(objectGUID)}, {"DeveloperId", quoted(developerGUID)}, {"ProjectId", quoted(projectGUID)},
		{"BuildingId", "101"}, {"LayoutGroupId", "7"}, {"LayoutId", "9001"}, {"AreaTotal", "54.30"}, {"OldPrice", "null"},
		{"NewPrice", "12345678.90"}, {"OldPricePerMeter", "null"}, {"NewPricePerMeter", "null"}, {"CurrencyId", "643"},
		{"CurrencySnapshot", `{"CurrencyId":643,"IsoCode":"RUB","Name":"Российский рубль","Sign":"₽"}`},
		{"ChangedAt", `"2026-11-30T10:15:30.1234567+03:00"`}, {"Source", `"Talent"`}, {"Version", "17"}}
}

func viewDoc() doc {
	return doc{{"PropertyObjectViewId", quoted(viewGUID)}, {"PropertyObjectId", quoted(objectGUID)}, {"SessionId", quoted(sessionGUID)},
		{"AnonymousId", quoted(anonymousGUID)}, {"UserId", "null"}, {"ViewSource", `"Catalog"`},
		{"ViewedAt", `"2026-11-30T10:00:00+03:00"`}, {"LastActivityAt", `"2026-11-30T10:15:30.1234567+03:00"`},
		{"DurationSeconds", "42"}, {"FilterSnapshot", "null"}}
}

func purchaseDoc() doc {
	return doc{{"PurchaseId", quoted(purchaseGUID)},
		{"Targets", `[{"TargetKind":"Project","TargetId":"` + projectGUID + `"},{"TargetKind":"PropertyObject","TargetId":"` + objectGUID +
			`"},{"TargetKind":"Post","TargetId":"` + eventGUID + `"}]`},
		{"BoostWeight", "50"}, {"Status", `"Active"`}, {"EndsAt", `"2026-12-31T23:59:59+03:00"`}, {"Version", "3"},
		{"TenantId", quoted(developerGUID)}}
}

func envelopeDoc(payload doc) doc {
	return doc{{"EventId", quoted(eventGUID)}, {"AggregateId", quoted(objectGUID)}, {"AggregateType", `"PropertyObject"`},
		{"TenantId", quoted(developerGUID)}, {"CreatedAt", `"2026-11-30T10:15:31+03:00"`}, {"ContractVersion", "1"},
		{"Payload", payload.String()}}
}

func rec(value string, headers ...string) *record.Record {
	r := &record.Record{Value: []byte(value)}
	for i := 0; i < len(headers); i += 2 {
		r.Headers = append(r.Headers, record.Header{Key: headers[i], Value: []byte(headers[i+1])})
	}
	return r
}

func enveloped(payload doc) *record.Record { return rec(envelopeDoc(payload).String()) }

func bare(payload doc) *record.Record {
	return rec(payload.String(), "EventId", eventGUID, "AggregateId", objectGUID, "AggregateType", "PropertyObject",
		"TenantId", developerGUID, "CreatedAt", "2026-11-30T10:15:31+03:00", "ContractVersion", "1")
}

var testViews = NewViewCodec([]string{"Catalog", "Search", "Selection"})

// contract is one payload under test.
type contract struct {
	name   string
	doc    func() doc
	decode func(*record.Record) (any, *Fault)
}

func priceContract() contract {
	return contract{"price", priceDoc, func(r *record.Record) (any, *Fault) {
		p, f := DecodePrice(r, testNow)
		if f != nil {
			return nil, f
		}
		return p, nil
	}}
}

func viewContract() contract {
	return contract{"view", viewDoc, func(r *record.Record) (any, *Fault) {
		v, f := testViews.Decode(r)
		if f != nil {
			return nil, f
		}
		return v, nil
	}}
}

func purchaseContract() contract {
	return contract{"purchase", purchaseDoc, func(r *record.Record) (any, *Fault) {
		p, f := DecodePurchase(r)
		if f != nil {
			return nil, f
		}
		return p, nil
	}}
}

func contracts() []contract { return []contract{purchaseContract(), viewContract(), priceContract()} }

// requireFault checks code and field of a fault, that its reason names the field, and that it shows nothing personal.
func requireFault(t testing.TB, f *Fault, code Code, field string) {
	t.Helper()
	require.NotNil(t, f, "no fault, want %s of %q", code, field)
	require.Equal(t, code, f.Code, "%v", f)
	require.Equal(t, field, f.Field, "%v", f)
	requireDecentReason(t, f)
}

func requireDecentReason(t testing.TB, f *Fault) {
	t.Helper()
	require.NotEmpty(t, f.Reason)
	require.Contains(t, f.Reason, f.Field)
	require.Less(t, len(f.Reason), 400)
	for _, secret := range []string{userGUID, anonymousGUID, sessionGUID, "5ec3e7"} {
		require.NotContains(t, strings.ToLower(f.Reason), secret)
	}
	for _, r := range f.Reason {
		require.True(t, r >= 0x20 && r != 0x7f && r != '\uFFFD', "%q", f.Reason)
	}
}
