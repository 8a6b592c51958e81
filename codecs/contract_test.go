package codecs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// Wrong values by the type of a field; each is a violation that names the field.
var (
	notGUID = []string{`""`, `"x"`, "5", "true", "{}", "[]", quoted(strings.ReplaceAll(eventGUID, "-", "")), quoted("(" + eventGUID + ")"),
		quoted("{" + eventGUID), quoted(eventGUID + "}"), quoted("urn:uuid:" + eventGUID), quoted(" " + eventGUID), quoted(eventGUID[:35] + "g"),
		quoted(eventGUID + "0"), quoted("0197c0de7-f00-7a51-9c1e-2f6f5d1b8a01"), `"\ud800197c0de-7f00-7a51-9c1e-2f6f5d1b8a01"`}
	notID      = append([]string{quoted(emptyGUID), quoted("{" + emptyGUID + "}")}, notGUID...)
	notInteger = []string{`"50"`, "50.5", "50.0", "5e1", "5E0", "true", "{}", "[1]", `""`}
	notTime    = []string{`""`, `"x"`, "1764486930", "true", "{}", `"2026-11-30T10:15:30"`, `"2026-11-30 10:15:30Z"`, `"2026-11-30T10:15Z"`,
		`"2026-11-30"`, `"2026-11-30T10:15:30.Z"`, `"2026-11-30T10:15:30.1234567890Z"`, `"2026-02-29T10:15:30Z"`, `"2026-13-01T10:15:30Z"`,
		`"2026-00-01T10:15:30Z"`, `"2026-01-00T10:15:30Z"`, `"2026-01-32T10:15:30Z"`, `"2026-11-31T10:15:30Z"`, `"2026-11-30T24:00:00Z"`,
		`"2026-11-30T10:60:30Z"`, `"2026-11-30T10:15:61Z"`, `"2026-11-30T10:15:60Z"`, `"2026-11-30T10:15:30+0300"`, `"2026-11-30T10:15:30+03"`,
		`"2026-11-30T10:15:30+24:00"`, `"2026-11-30T10:15:30+03:60"`, `"2026-11-30T10:15:30 +03:00"`, `"+2026-11-30T10:15:30Z"`,
		`"02026-11-30T10:15:30Z"`, `" 2026-11-30T10:15:30Z"`, `"2026-11-30T10:15:30Z "`, `"/Date(1764486930000)/"`, `"2026-11-30T10:15:30,5Z"`}
	notString  = []string{"5", "true", "{}", "[]", `"\udc00"`, `"\ud800x"`, `"\ud800\u0041"`}
	notDecimal = []string{`""`, `"x"`, "true", "{}", "[]", `"1,5"`, `" 1"`, `"1 "`, `"+1"`, `".5"`, `"5."`, `"05"`, `"0x10"`, `"NaN"`, `"Infinity"`,
		`"1e"`, `"1_000"`, `"--1"`, `"1e5.0"`, `"٣"`}
)

// beyond pairs values with VALUE_OUT_OF_RANGE.
var (
	beyondInt16  = []string{"32768", "-32769", "99999999999999999999"}
	beyondInt32  = []string{"2147483648", "-2147483649", "9223372036854775808", "1" + strings.Repeat("0", 400)}
	beyondInt64  = []string{"9223372036854775808", "-9223372036854775809", "18446744073709551616", "-1" + strings.Repeat("0", 400)}
	beyondUint32 = []string{"4294967296", "-1", "9223372036854775808"}
	beyondTime   = []string{`"0000-12-31T23:59:59Z"`, `"0001-01-01T00:00:00+00:01"`, `"9999-12-31T23:59:59-00:01"`}
)

type fieldRule struct {
	required bool
	invalid  []string
	beyond   []string
}

func rules() map[string]map[string]fieldRule {
	amount := []string{"10000000000000000", "9999999999999999.995", "-9999999999999999.995", "1e16", "1e999999999", `"1e999999999999999999999"`,
		"1" + strings.Repeat("0", 2000), "1." + strings.Repeat("3", 1001)}
	return map[string]map[string]fieldRule{
		"purchase": {
			"PurchaseId":  {true, notID, nil},
			"Targets":     {true, []string{"{}", `"x"`, "5", "true"}, nil},
			"BoostWeight": {true, append([]string{"0", "-1", "101", "2147483647", "-2147483648", "-0"}, notInteger...), beyondInt32},
			"Status": {true, append([]string{`""`, `"active"`, `"ACTIVE"`, `"Active "`, `"Foo"`, "1"}, notString...),
				nil},
			"EndsAt":   {true, notTime, beyondTime},
			"Version":  {true, append([]string{"0", "-1", "-9223372036854775808"}, notInteger...), beyondInt64},
			"TenantId": {true, notGUID, nil},
		},
		"view": {
			"PropertyObjectViewId": {true, notID, nil},
			"PropertyObjectId":     {true, notID, nil},
			"SessionId":            {true, notGUID, nil},
			"AnonymousId":          {true, notGUID, nil},
			"UserId":               {false, notGUID, nil},
			"ViewSource":           {true, notString, nil},
			"ViewedAt":             {true, notTime, beyondTime},
			"LastActivityAt":       {true, notTime, beyondTime},
			"DurationSeconds":      {true, notInteger, beyondInt32},
		},
		"price": {
			"PropertyObjectId": {true, notID, nil},
			"DeveloperId":      {true, notID, nil},
			"ProjectId":        {true, notID, nil},
			"BuildingId":       {true, append([]string{"0", "-1", "-0"}, notInteger...), beyondInt64},
			"LayoutGroupId":    {true, append([]string{"0", "-1"}, notInteger...), beyondInt64},
			"LayoutId":         {true, append([]string{"0", "-1"}, notInteger...), beyondInt64},
			"AreaTotal": {true, append([]string{"0", "-0", "0.0", "-1", "0.004", "0.00499999999999999999999", "-54.3", `"0"`, "1e-999999999", "0e999999999"},
				notDecimal...), []string{"100000000", "99999999.995", "1e8", "1e999999999", "9" + strings.Repeat("9", 100)}},
			"OldPrice":         {false, notDecimal, amount},
			"NewPrice":         {true, append([]string{"-1", "-0.01", "-0.005", `"-1"`}, notDecimal...), amount},
			"OldPricePerMeter": {false, notDecimal, amount},
			"NewPricePerMeter": {false, notDecimal, amount},
			"CurrencyId":       {true, notInteger, beyondInt16},
			"CurrencySnapshot": {true, []string{"[]", `"RUB"`, "643", "true"}, nil},
			"ChangedAt": {true, append([]string{`"0001-01-01T00:00:00Z"`, `"0001-01-01T00:00:00+00:00"`, `"0001-01-01T03:00:00+03:00"`,
				`"2026-12-01T01:00:00.000000001Z"`, `"2026-12-01T04:00:01+03:00"`, `"2027-01-01T00:00:00Z"`, `"2106-02-07T06:28:15.999999999Z"`}, notTime...),
				append([]string{`"1969-12-31T23:59:59.999999999Z"`, `"1970-01-01T00:00:00+00:01"`, `"0001-01-01T00:00:01Z"`, `"2106-02-07T06:28:16Z"`,
					`"2200-01-01T00:00:00Z"`, `"9999-12-31T23:59:59.9999999Z"`}, beyondTime...)},
			"Source":  {false, notString, nil},
			"Version": {false, notInteger, beyondUint32},
		},
	}
}

func TestEachFieldMissingNullWrongOrBeyond(t *testing.T) {
	for _, c := range contracts() {
		for field, rule := range rules()[c.name] {
			t.Run(c.name+"/"+field, func(t *testing.T) {
				check := func(d doc, code Code) {
					t.Helper()
					for form, r := range map[string]*record.Record{"envelope": enveloped(d), "bare": bare(d), "camel": bare(d.camel()),
						"camel envelope": rec(envelopeDoc(d.camel()).camel().String())} {
						_, fault := c.decode(r)
						require.NotNil(t, fault, "%s: %s", form, r.Value)
						requireFault(t, fault, code, field)
					}
				}
				for _, d := range []doc{c.doc().without(field), c.doc().with(field, "null")} {
					if rule.required {
						check(d, CodeInvalidField)
						continue
					}
					_, fault := c.decode(enveloped(d))
					require.Nil(t, fault)
				}
				for _, raw := range rule.invalid {
					check(c.doc().with(field, raw), CodeInvalidField)
				}
				for _, raw := range rule.beyond {
					check(c.doc().with(field, raw), CodeValueOutOfRange)
				}
			})
		}
	}
}

// Every known field, also one that nobody reads, may come once; PascalCase and camelCase are one field (D20).
func TestRepeatedFieldIsAViolation(t *testing.T) {
	for _, c := range contracts() {
		d := c.doc()
		for _, m := range d {
			other := strings.ToLower(m.name[:1]) + m.name[1:]
			escaped := fmt.Sprintf(`\u%04x`, m.name[0]) + m.name[1:]
			for _, name := range []string{m.name, other, escaped} {
				_, fault := c.decode(enveloped(d.plus(name, m.raw)))
				requireFault(t, fault, CodeInvalidField, m.name)
				_, fault = c.decode(bare(append(doc{{name, m.raw}}, d...)))
				requireFault(t, fault, CodeInvalidField, m.name)
			}
		}
		for _, m := range envelopeDoc(d) {
			other := strings.ToLower(m.name[:1]) + m.name[1:]
			for _, name := range []string{m.name, other} {
				_, fault := c.decode(rec(envelopeDoc(d).plus(name, m.raw).String()))
				requireFault(t, fault, CodeInvalidField, m.name)
				_, fault = c.decode(rec(envelopeDoc(d).plus(name, "null").String()))
				requireFault(t, fault, CodeInvalidField, m.name)
			}
		}
	}
}

// Names of another case are unknown, and unknown fields may be and repeat as they like (D20, D30).
func TestUnknownFieldsAreIgnored(t *testing.T) {
	for _, c := range contracts() {
		d := c.doc()
		want, fault := c.decode(enveloped(d))
		require.Nil(t, fault)
		more := d.plus("Unknown", "1").plus("Unknown", `{"a":[1,{"b":null}]}`).plus("", "0").plus(`\ud800`, "[]")
		for _, m := range d {
			more = more.plus(strings.ToUpper(m.name), "[]").plus(m.name+" ", "{}").plus("_"+m.name, `"x"`)
		}
		env := envelopeDoc(more).plus("EVENTID", "5").plus("payLoad", "null").plus("unknown", "[[]]")
		for _, m := range d { // the payload's names mean nothing beside Payload
			if envelopeField([]byte(m.name)) < 0 {
				env = env.plus(m.name, "{}").plus(m.name, "[]")
			}
		}
		got, fault := c.decode(rec(env.String()))
		require.Nil(t, fault, "%v", fault)
		require.Equal(t, want, got)

		for _, m := range d { // and a field under a name of another case is a missing field
			if rules()[c.name][m.name].required {
				_, fault := c.decode(enveloped(d.without(m.name).plus(strings.ToUpper(m.name), m.raw)))
				requireFault(t, fault, CodeInvalidField, m.name)
			}
		}
	}
}

func TestOrderAndSpaceMeanNothing(t *testing.T) {
	for _, c := range contracts() {
		want, fault := c.decode(enveloped(c.doc()))
		require.Nil(t, fault)
		env := envelopeDoc(c.doc())
		reversed := doc{}
		for i := range env {
			reversed = append(reversed, env[len(env)-1-i])
		}
		got, fault := c.decode(rec(reversed.String()))
		require.Nil(t, fault)
		require.Equal(t, want, got)

		spaced := strings.NewReplacer("{", " {\r\n", ",", "\t, ", "}", " } ", "[", " [ ", "]", "\n] ", `":`, `" : `).Replace(env.String())
		got, fault = c.decode(rec(spaced))
		require.Nil(t, fault, "%v", fault)
		require.Equal(t, want, got)
	}
}

// The order in which fields are expected is a help for speed only: any other name in its place, however alike, is itself.
func TestExpectedNamesAreNotTakenForOthers(t *testing.T) {
	for _, c := range contracts() {
		d := c.doc()
		want, fault := c.decode(enveloped(d))
		require.Nil(t, fault)
		for i, m := range d {
			for _, name := range []string{m.name + "s", m.name[:len(m.name)-1], " " + m.name, strings.ToUpper(m.name[:2]) + m.name[2:], strings.ToUpper(m.name),
				"0" + m.name[1:], m.name + `\"`, `\"` + m.name, m.name + `\u0000`, m.name[:1] + "\u017f" + m.name[2:]} {
				before := append(append(append(doc(nil), d[:i]...), member{name, "[]"}), d[i:]...)
				got, fault := c.decode(enveloped(before))
				require.Nil(t, fault, "%s before %s: %v", name, m.name, fault)
				require.Equal(t, want, got, "%s before %s", name, m.name)
			}
			for _, written := range []string{m.name + `" `, m.name + "\"\n\t", strings.ToLower(m.name[:1]) + m.name[1:] + `" `} {
				text := strings.Replace(d.String(), quoted(m.name)+":", `"`+written+":", 1)
				got, fault := c.decode(rec(envelopeDoc(nil).with("Payload", text).String()))
				require.Nil(t, fault, "%s: %v", text, fault)
				require.Equal(t, want, got, text)
			}
		}
	}
}

// Every order of an envelope's fields, and of a bare payload's, means the same.
func TestAnyOrderOfFields(t *testing.T) {
	for _, c := range contracts() {
		want, fault := c.decode(enveloped(c.doc()))
		require.Nil(t, fault)
		for _, form := range []struct {
			whole doc
			write func(doc) *record.Record
		}{
			{envelopeDoc(c.doc()), func(d doc) *record.Record { return rec(d.String()) }},
			{c.doc(), bare},
		} {
			for step := range form.whole { // each field first, and each pair of neighbours swapped
				for _, at := range []int{0, max(step-1, 0)} {
					order := append(doc(nil), form.whole...)
					order[step], order[at] = order[at], order[step]
					got, fault := c.decode(form.write(order))
					require.Nil(t, fault, "%s: %v", order, fault)
					require.Equal(t, want, got, "%s", order)
				}
			}
		}
	}
}

// TenantId stands in the envelope and in the payload of a purchase: each keeps its own, wherever Payload comes.
func TestTenantOfEnvelopeAndPayload(t *testing.T) {
	for _, payload := range []doc{purchaseDoc(), viewDoc(), priceDoc()} {
		for _, m := range payload {
			require.Equal(t, m.name == "TenantId", envelopeField([]byte(m.name)) >= 0, "%s: the scanner knows TenantId as the only shared name", m.name)
		}
	}
	other := member{"TenantId", quoted(objectGUID)}
	for name, d := range map[string]doc{
		"before":             {{"EventId", quoted(eventGUID)}, other, {"Payload", purchaseDoc().String()}},
		"after":              {{"EventId", quoted(eventGUID)}, {"Payload", purchaseDoc().String()}, other},
		"in a row as in one": {{"EventId", quoted(eventGUID)}, {"Version", "9"}, other, {"Payload", purchaseDoc().String()}},
		"after all of bare":  append(purchaseDoc().with("TenantId", other.raw), member{"Payload", purchaseDoc().String()}, member{"EventId", quoted(eventGUID)}),
	} {
		p, fault := DecodePurchase(rec(d.String()))
		require.Nil(t, fault, "%s: %v", name, fault)
		require.Equal(t, objectGUID, p.Meta.TenantID, name)
		require.Equal(t, developerGUID, p.TenantID.String(), name)
		require.EqualValues(t, 3, p.Version, name)
	}
	_, fault := DecodePurchase(rec(purchaseDoc().plus("tenantId", quoted(objectGUID)).String(), "EventId", eventGUID))
	requireFault(t, fault, CodeInvalidField, "TenantId")
	_, fault = DecodePurchase(rec(doc{{"Payload", purchaseDoc().without("TenantId").String()}, other, {"EventId", quoted(eventGUID)}}.String()))
	requireFault(t, fault, CodeInvalidField, "TenantId")
}

// What is not UTF-8 is that first, wherever it is and whatever else is wrong.
func TestNotUTF8ComesFirst(t *testing.T) {
	good := envelopeDoc(viewDoc()).String()
	for name, value := range map[string]string{
		"in a string":          strings.Replace(good, "Catalog", "Catalog\xff", 1),
		"in an unknown string": strings.Replace(good, `"FilterSnapshot":null`, "\"FilterSnapshot\":[\"\xc3\"]", 1),
		"in a name":            strings.Replace(good, "SessionId", "Session\xe2\x82Id", 1),
		"cut in a Guid":        strings.Replace(good, sessionGUID, sessionGUID[:35]+"\xd1", 1),
		"behind an escape":     strings.Replace(good, "Catalog", `\n`+"\xd1", 1),
		"outside a string":     strings.Replace(good, ":42", ":42\xa0", 1),
		"behind the object":    good + "\xff",
		"behind a fault":       "{,}" + "\xff",
		"in no object":         "[\xff]",
		"with a repeated name": strings.Replace(good, "{", "{\"EventId\":\"\xff\",\"EventId\":1,", 1),
		"in a broken string":   `{"a":"\q` + "\xff",
		"nested too deeply":    strings.Repeat("[", 1000) + "\xff",
	} {
		_, fault := testViews.Decode(rec(value))
		requireFault(t, fault, CodeUndecodable, "")
		require.Equal(t, "The value is not valid UTF-8.", fault.Reason, name)
	}
	mustView(t, viewDoc().plus("Extra", `"Хамовники — 東京 😀"`).plus("Имя", "1"))
}

func TestUndecodableValues(t *testing.T) {
	nested := func(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
	for _, c := range contracts() {
		good := envelopeDoc(c.doc()).String()
		cases := map[string]*record.Record{
			"tombstone":        {},
			"empty":            rec(""),
			"blank":            rec(" \n"),
			"null":             rec("null"),
			"array":            rec("[" + good + "]"),
			"string":           rec(`"x"`),
			"number":           rec("5"),
			"word":             rec("undefined"),
			"trailing comma":   rec(strings.TrimSuffix(good, "}") + ",}"),
			"trailing garbage": rec(good + "x"),
			"two objects":      rec(good + good),
			"truncated":        rec(good[:len(good)-1]),
			"BOM":              rec("\xef\xbb\xbf" + good),
			"not UTF-8":        rec(strings.Replace(good, "AggregateType", "Aggregate\xff", 1)),
			"UTF-16 surrogate": rec(strings.Replace(good, "AggregateType", "x\xed\xa0\x80", 1)),
			"control":          rec(strings.Replace(good, "AggregateType", "x\x01", 1)),
			"bad escape":       rec(strings.Replace(good, "AggregateType", `x\q`, 1)),
			"short escape":     rec(strings.Replace(good, "AggregateType", `x\u12`, 1)),
			"single quotes":    rec("{'a':1}"),
			"comment":          rec("/**/" + good),
			"payload null":     rec(envelopeDoc(c.doc()).with("Payload", "null").String()),
			"payload string":   rec(envelopeDoc(c.doc()).with("Payload", `"{}"`).String()),
			"payload array":    rec(envelopeDoc(c.doc()).with("Payload", "[]").String()),
			"payload number":   rec(envelopeDoc(c.doc()).with("Payload", "1").String()),
			"payload broken":   rec(envelopeDoc(c.doc()).with("Payload", `{"a":1`).String()),
			"nested 1000":      enveloped(c.doc().plus("Ignored", nested(1000))),
			"nested 100000":    bare(c.doc().plus("Ignored", nested(100_000))),
			"nested objects":   bare(c.doc().plus("Ignored", strings.Repeat(`{"a":`, 1000)+"1"+strings.Repeat("}", 1000))),
		}
		for _, number := range []string{"01", "+1", ".5", "1.", "1e", "1e+", "-", "0x1", "NaN", "1.e5", "--1", "1a", "00"} {
			cases["number "+number] = enveloped(c.doc().plus("Ignored", number))
		}
		for _, word := range []string{"tru", "nul", "True", "falsey", "nulll"} {
			cases["word "+word] = enveloped(c.doc().plus("Ignored", word))
		}
		for name, r := range cases {
			_, fault := c.decode(r)
			require.NotNil(t, fault, "%s/%s", c.name, name)
			requireFault(t, fault, CodeUndecodable, "")
			if len(r.Headers) == 0 {
				require.Empty(t, EventID(r), name)
			}
		}
		for _, levels := range []int{50, 200} {
			_, fault := c.decode(enveloped(c.doc().plus("Ignored", nested(levels))))
			require.Nil(t, fault, "%d levels inside an ignored field are fine (D31)", levels)
		}
	}
}

// A text that is no JSON is undecodable whatever else is wrong with it.
func TestSyntaxComesBeforeFields(t *testing.T) {
	for _, c := range contracts() {
		d := c.doc().with(c.doc()[0].name, "5").plus(c.doc()[0].name, "6")
		_, fault := c.decode(rec(envelopeDoc(d).String() + "]"))
		requireFault(t, fault, CodeUndecodable, "")
	}
}
