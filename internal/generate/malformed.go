package generate

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The dead-letter codes that the malformed records must get.
const (
	undecodable  = "CONTRACT_UNDECODABLE"
	invalidField = "CONTRACT_INVALID_FIELD"
	outOfRange   = "VALUE_OUT_OF_RANGE"
)

// Malformed is one way in which a record breaks its contract.
type Malformed struct {
	Name string // for people
	Code string // the code of its dead letter
	make func(*draft)
}

const emptyID = `"00000000-0000-0000-0000-000000000000"`

func breakField(field, raw, name, code string) Malformed {
	return Malformed{Name: field + " " + name, Code: code, make: func(d *draft) { d.payload.set(field, raw) }}
}

func breakValue(name string, f func([]byte) []byte) Malformed {
	return Malformed{Name: name, Code: undecodable, make: func(d *draft) { d.value = f }}
}

func constant(value string) func([]byte) []byte {
	return func([]byte) []byte { return []byte(value) }
}

// common are the faults of every topic: required are the payload's required fields, guid one of them that is a Guid,
// moment one that is a time, integer one that is a whole number.
func common(required []string, guid, moment, integer string) []Malformed {
	out := []Malformed{
		breakValue("a null value", func([]byte) []byte { return nil }),
		breakValue("an empty value", constant("")),
		breakValue("no UTF-8", func(good []byte) []byte { return bytes.Replace(good, []byte(`"`), []byte("\"\xff\xfe"), 1) }),
		breakValue("no JSON", constant("PurchaseId=1;Version=2")),
		breakValue("cut off", func(good []byte) []byte { return good[:len(good)-3] }),
		breakValue("something behind the object", func(good []byte) []byte { return append(slices.Clone(good), "{}"...) }),
		breakValue("an array", constant(`[1,2,3]`)),
		breakValue("a text", constant(`"hello"`)),
		breakValue("a number", constant(`42`)),
		breakValue("null", constant(`null`)),
		breakValue("a payload that is a text", constant(`{"ContractVersion":1,"Payload":"{}"}`)),
		breakValue("a payload that is null", constant(`{"ContractVersion":1,"Payload":null}`)),
		breakValue("1,000 levels of nesting", func(good []byte) []byte {
			deep := strings.Repeat(`[`, 1000) + strings.Repeat(`]`, 1000)
			return slices.Concat([]byte(`{"Extra":`+deep+`,`), good[1:])
		}),
		breakField(guid, `"not-a-guid"`, "is no Guid", invalidField),
		breakField(guid, `"0197c0de7f007a519c1e2f6f5d1b8a01"`, "has no hyphens", invalidField),
		breakField(guid, `17`, "is a number", invalidField),
		breakField(guid, emptyID, "is Guid.Empty", invalidField),
		breakField(moment, `"2026-11-30T10:15:30"`, "has no offset", invalidField),
		breakField(moment, `"30.11.2026"`, "is no time", invalidField),
		breakField(moment, `1764497730`, "is a number", invalidField),
		breakField(integer, `"50"`, "is a text", invalidField),
		breakField(integer, `50.5`, "is a fraction", invalidField),
		breakField(integer, `1`+strings.Repeat("0", 30), "has 31 digits", outOfRange),
		{Name: guid + " comes twice", Code: invalidField, make: func(d *draft) { d.payload.add(guid, d.payload.get(guid)) }},
		{Name: guid + " comes twice, once in camelCase", Code: invalidField, make: func(d *draft) {
			d.payload.add(strings.ToLower(guid[:1])+guid[1:], d.payload.get(guid))
		}},
	}
	for _, field := range required {
		out = append(out,
			Malformed{Name: field + " is missing", Code: invalidField, make: func(d *draft) { d.payload.drop(field) }},
			breakField(field, "null", "is null", invalidField))
	}
	return out
}

// withoutEventID are faults of the topics whose identity is the EventId (D22).
func withoutEventID() []Malformed {
	drop := func(d *draft) {
		d.envelope.drop("EventId")
		d.envelope.drop("MessageId")
	}
	return []Malformed{
		{Name: "EventId is missing", Code: invalidField, make: drop},
		{Name: "EventId is no Guid", Code: invalidField, make: func(d *draft) {
			drop(d)
			d.envelope.text("EventId", "event-17")
		}},
	}
}

func malformedPurchases() []Malformed {
	required := []string{"PurchaseId", "Targets", "BoostWeight", "Status", "EndsAt", "Version", "TenantId"}
	return slices.Concat(common(required, "PurchaseId", "EndsAt", "Version"), withoutEventID(), []Malformed{
		breakField("BoostWeight", "0", "is 0", invalidField),
		breakField("BoostWeight", "101", "is 101", invalidField),
		breakField("BoostWeight", "5000000000", "is above 32 bits", outOfRange),
		breakField("Version", "0", "is 0", invalidField),
		breakField("Version", "-1", "is negative", invalidField),
		breakField("Status", `"Paused"`, "is unknown", invalidField),
		breakField("Status", `"active"`, "has another case", invalidField),
		breakField("Status", `1`, "is a number", invalidField),
		breakField("Targets", `{}`, "is an object", invalidField),
		breakField("Targets", `[1]`, "holds a number", invalidField),
		breakField("Targets", `[{"TargetKind":"Project"}]`, "lacks an id", invalidField),
		breakField("Targets", `[{"TargetKind":"Project","TargetId":"x"}]`, "holds an id that is no Guid", invalidField),
		breakField("Targets", `[{"TargetId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01"}]`, "lacks a kind", invalidField),
	})
}

func malformedViews() []Malformed {
	required := []string{
		"PropertyObjectViewId", "PropertyObjectId", "SessionId", "AnonymousId", "ViewSource", "ViewedAt", "LastActivityAt", "DurationSeconds",
	}
	return append(common(required, "PropertyObjectViewId", "LastActivityAt", "DurationSeconds"),
		breakField("PropertyObjectId", emptyID, "is Guid.Empty", invalidField),
		breakField("UserId", strconv.Quote(personalMail), "is no Guid", invalidField),
		breakField("UserId", strconv.Itoa(personalNumber), "is a number", invalidField),
		breakField("SessionId", `"s-`+personalPrefix+`"`, "is no Guid", invalidField),
		breakField("ViewSource", `3`, "is a number", invalidField),
		breakField("ViewedAt", `"yesterday"`, "is no time", invalidField),
	)
}

func malformedPrices() []Malformed {
	required := []string{
		"PropertyObjectId", "DeveloperId", "ProjectId", "BuildingId", "LayoutGroupId", "LayoutId", "AreaTotal", "NewPrice",
		"CurrencyId", "CurrencySnapshot", "ChangedAt",
	}
	return slices.Concat(common(required, "PropertyObjectId", "ChangedAt", "BuildingId"), withoutEventID(), []Malformed{
		breakField("DeveloperId", emptyID, "is Guid.Empty", invalidField),
		breakField("ProjectId", emptyID, "is Guid.Empty", invalidField),
		breakField("BuildingId", "0", "is 0", invalidField),
		breakField("LayoutGroupId", "-3", "is negative", invalidField),
		breakField("LayoutId", "0", "is 0", invalidField),
		breakField("AreaTotal", "0", "is 0", invalidField),
		breakField("AreaTotal", "-54.3", "is negative", invalidField),
		breakField("AreaTotal", "0.004", "rounds to 0", invalidField),
		breakField("AreaTotal", "100000000", "has nine digits", outOfRange),
		breakField("NewPrice", "-0.01", "is negative", invalidField),
		breakField("NewPrice", `"a lot"`, "is no number", invalidField),
		breakField("NewPrice", "10000000000000000", "has 17 digits", outOfRange),
		breakField("OldPrice", "-99999999999999999", "has 17 digits", outOfRange),
		breakField("CurrencyId", "40000", "is above 16 bits", outOfRange),
		breakField("CurrencySnapshot", `"RUB"`, "is a text", invalidField),
		breakField("CurrencySnapshot", `{"CurrencyId":643}`, "lacks IsoCode", invalidField),
		breakField("ChangedAt", `"0001-01-01T00:00:00+00:00"`, "is default", invalidField),
		breakField("ChangedAt", `"1969-12-31T23:59:59Z"`, "is before 1970", outOfRange),
		{Name: "ChangedAt is two hours ahead", Code: invalidField, make: func(d *draft) {
			// Two hours from the end of the stream on: the event may be read long after it was made.
			d.payload.set("ChangedAt", strconv.Quote(farAhead(d.at).Format(time.RFC3339)))
		}},
	})
}

// farAhead is ahead of every clock that will read the event, and still fits ClickHouse's DateTime, so that the only thing
// wrong with it is that it has not happened yet.
func farAhead(at time.Time) time.Time {
	if limit := time.Date(2105, 1, 1, 0, 0, 0, 0, time.UTC); at.Before(limit) {
		return limit
	}
	return at.Add(2 * time.Hour)
}

// MalformedKinds are all faults that are generated for each topic.
func MalformedKinds() map[string][]Malformed {
	return map[string][]Malformed{
		topicPurchases: malformedPurchases(), topicViews: malformedViews(), topicPrices: malformedPrices(),
	}
}

// spoil makes a good draft a malformed one. Its ids are its own, so that it takes no valid event's place.
func spoil(s source, d draft, kind Malformed) draft {
	id := s.id4()
	d.key = []byte(id.String())
	for _, name := range []string{"PurchaseId", "PropertyObjectViewId"} {
		d.payload.set(name, strconv.Quote(id.String()))
	}
	kind.make(&d)
	return d
}
