package codecs

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/record"
)

func decodeMeta(t *testing.T, r *record.Record) Meta {
	t.Helper()
	v, fault := testViews.Decode(r)
	require.Nil(t, fault, "%v", fault)
	return v.Meta
}

func TestBareAndEnvelopeFormAreEqual(t *testing.T) {
	for _, c := range contracts() {
		want, fault := c.decode(enveloped(c.doc()))
		require.Nil(t, fault)
		for name, r := range map[string]*record.Record{"bare": bare(c.doc()), "camel": enveloped(c.doc().camel()), "camel bare": bare(c.doc().camel())} {
			got, fault := c.decode(r)
			require.Nil(t, fault, name)
			require.Equal(t, want, got, name)
		}
	}
}

func TestMetadataOfTheEnvelope(t *testing.T) {
	m := decodeMeta(t, enveloped(viewDoc()))
	require.Equal(t, Meta{MessageID: uuid.MustParse(eventGUID), HasMessageID: true, AggregateID: objectGUID, AggregateType: "PropertyObject",
		TenantID: developerGUID, CreatedAt: time.Date(2026, 11, 30, 7, 15, 31, 0, time.UTC), ContractVersion: 1}, m)
}

func TestEventIDPrecedence(t *testing.T) {
	env := func(d ...member) string { return doc(d).plus("Payload", viewDoc().String()).String() }
	id := func(n string) string { return strings.Replace(eventGUID, "0197", n, 1) }
	for name, tt := range map[string]struct {
		r    *record.Record
		want string // empty: none
	}{
		"envelope wins over all": {rec(env(member{"MessageId", quoted(id("0002"))}, member{"EventId", quoted(id("0001"))}),
			"EventId", id("0003"), "MessageId", id("0004"), "ce_id", id("0005")), id("0001")},
		"MessageId stands in":          {rec(env(member{"messageId", quoted(id("0002"))}), "EventId", id("0003"), "ce_id", id("0005")), id("0002")},
		"null is missing":              {rec(env(member{"EventId", "null"}, member{"MessageId", "null"}), "EventId", id("0003")), id("0003")},
		"header EventId before ce_id":  {rec(env(), "ce_id", id("0005"), "MessageId", id("0004"), "EventId", id("0003")), id("0003")},
		"header MessageId before ce":   {rec(env(), "ce_id", id("0005"), "MESSAGEID", id("0004")), id("0004")},
		"ce_id":                        {rec(env(), "CE_ID", "{"+strings.ToUpper(id("0005"))+"}"), id("0005")},
		"last header of a name":        {rec(env(), "EventId", id("0003"), "eventid", id("0006")), id("0006")},
		"unusable one still wins":      {rec(env(member{"EventId", `"x"`}), "EventId", id("0003")), ""},
		"number still wins":            {rec(env(member{"EventId", "5"}), "EventId", id("0003")), ""},
		"empty Guid is none":           {rec(env(member{"EventId", quoted(emptyGUID)}), "EventId", id("0003")), ""},
		"none":                         {rec(env()), ""},
		"header that is no text":       {rec(env(), "EventId", "\xff\xfe"), ""},
		"16 raw bytes are no Guid":     {rec(env(), "EventId", "0123456789abcdef"), ""},
		"escaped":                      {rec(env(member{"EventId", `"\u0030` + id("0001")[1:] + `"`})), id("0001")},
		"bare: names mean nothing":     {rec(viewDoc().plus("EventId", quoted(id("0001"))).String(), "EventId", id("0003")), id("0003")},
		"bare: and may repeat":         {rec(viewDoc().plus("EventId", "1").plus("eventId", "2").String()), ""},
		"null header is missing":       {&record.Record{Value: []byte(env()), Headers: []record.Header{{Key: "EventId"}, {Key: "ce_id", Value: []byte(id("0005"))}}}, id("0005")},
		"unusable header wins over ce": {rec(env(), "EventId", "x", "ce_id", id("0005")), ""},
	} {
		m := decodeMeta(t, tt.r) // popularity needs no EventId (D22)
		require.Equal(t, tt.want != "", m.HasMessageID, name)
		require.Equal(t, tt.want, EventID(tt.r), name)
		if tt.want == "" {
			require.Equal(t, uuid.Nil, m.MessageID, name)
		} else {
			require.Equal(t, tt.want, m.MessageID.String(), name)
		}
	}
}

// Promotion and price need an EventId that is a Guid (D22).
func TestEventIDIsRequired(t *testing.T) {
	for _, c := range []contract{purchaseContract(), priceContract()} {
		env := envelopeDoc(c.doc())
		for name, r := range map[string]*record.Record{
			"missing": rec(env.without("EventId").String()),
			"null":    rec(env.with("EventId", "null").String()),
			"no Guid": rec(env.with("EventId", `"x"`).String()),
			"number":  rec(env.with("EventId", "1").String()),
			"empty":   rec(env.with("EventId", quoted(emptyGUID)).String()),
			"bare":    rec(c.doc().String()),
		} {
			_, fault := c.decode(r)
			require.NotNil(t, fault, name)
			requireFault(t, fault, CodeInvalidField, "EventId")
		}
		_, fault := c.decode(rec(env.without("EventId").String(), "ce_id", eventGUID))
		require.Nil(t, fault)
	}
}

func TestContractVersion(t *testing.T) {
	env := envelopeDoc(viewDoc())
	for name, tt := range map[string]struct {
		r    *record.Record
		want int64
	}{
		"one":                {rec(env.String()), 1},
		"two":                {rec(env.with("ContractVersion", "2").String()), 2},
		"missing":            {rec(env.without("ContractVersion").String()), 0},
		"null":               {rec(env.with("ContractVersion", "null").String()), 0},
		"string":             {rec(env.with("ContractVersion", `"1"`).String()), 0},
		"fraction":           {rec(env.with("ContractVersion", "1.0").String()), 0},
		"huge":               {rec(env.with("ContractVersion", "1"+strings.Repeat("0", 99)).String()), 0},
		"object":             {rec(env.with("ContractVersion", "{}").String()), 0},
		"header stands in":   {rec(env.without("ContractVersion").String(), "contractversion", "1"), 1},
		"envelope wins":      {rec(env.with("ContractVersion", "3").String(), "ContractVersion", "1"), 3},
		"header, unreadable": {rec(env.without("ContractVersion").String(), "ContractVersion", "one"), 0},
	} {
		m := decodeMeta(t, tt.r)
		require.Equal(t, tt.want, m.ContractVersion, name)
		require.Equal(t, tt.want != 1, m.ContractMismatch, name)
	}
	for _, c := range contracts() { // D1: a mismatch alone is processed, an invalid event is not
		_, fault := c.decode(rec(envelopeDoc(c.doc()).with("ContractVersion", "2").String()))
		require.Nil(t, fault)
	}
}

// Metadata that are only informative never make an event invalid.
func TestOddInformativeMetadata(t *testing.T) {
	env := envelopeDoc(viewDoc())
	for _, field := range []string{"AggregateId", "AggregateType", "TenantId", "CreatedAt"} {
		for _, raw := range []string{"5", "{}", "[]", "true", `"\ud800"`} {
			m := decodeMeta(t, rec(env.with(field, raw).String(), field, "header"))
			got := map[string]string{"AggregateId": m.AggregateID, "AggregateType": m.AggregateType, "TenantId": m.TenantID}[field]
			require.Empty(t, got, "%s: the envelope's value wins, unusable as it is", field)
		}
	}
	require.Zero(t, decodeMeta(t, rec(env.with("CreatedAt", `"yesterday"`).String())).CreatedAt)
	m := decodeMeta(t, rec(env.without("CreatedAt").without("AggregateId").String(), "ce_time", "2026-11-30T10:00:00.5Z", "AggregateId", "a\xff\x00"))
	require.Equal(t, time.Date(2026, 11, 30, 10, 0, 0, 5e8, time.UTC), m.CreatedAt)
	require.Equal(t, "a\uFFFD\x00", m.AggregateID)
	m = decodeMeta(t, rec(env.with("AggregateId", quoted(strings.Repeat("я", 1000))).String()))
	require.Less(t, len(m.AggregateID), 300)
	require.Equal(t, objectGUID, decodeMeta(t, rec(viewDoc().String(), "AGGREGATEID", objectGUID)).AggregateID)
	// the header CreatedAt comes before ce_time
	m = decodeMeta(t, rec(viewDoc().String(), "ce_time", "2026-11-30T10:00:00Z", "createdat", "2026-11-30T11:00:00Z"))
	require.Equal(t, 11, m.CreatedAt.Hour())
}
