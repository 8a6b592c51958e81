package dlq

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

// A letter of some MiB of opening brackets ended the process that listed it: a stack overflow cannot be recovered from. One of many or long
// personal values kept it busy for hours.
func TestDeepNestingIsNotShown(t *testing.T) {
	const person = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01"
	nested := func(opening, closing string, levels int) string {
		return `{"UserId":"` + person + `","Deep":` + strings.Repeat(opening, levels) + "1" + strings.Repeat(closing, levels) + `}`
	}
	people := make([]string, 1<<15)
	for i := range people {
		people[i] = fmt.Sprintf(`{"UserId":"another-%d"}`, i)
	}
	people[len(people)-1] = `{"UserId":"` + person + `"}`
	for name, tc := range map[string]struct {
		value string
		sound bool
	}{
		"as deep as the consumers read": {nested("[", "]", codecs.MaxDepth-1), true},
		"a level deeper":                {nested("[", "]", codecs.MaxDepth), false},
		"objects a level deeper":        {nested(`{"SessionId":`, "}", codecs.MaxDepth), false},
		"nothing but brackets":          {strings.Repeat("[", 1<<20), false},
		"nothing but objects":           {strings.Repeat(`{"UserId":`, 1<<17), false},
		"many people":                   {strings.Join(people, " "), false},
	} {
		t.Run(name, func(t *testing.T) {
			m := masker([]byte(tc.value))
			require.Equal(t, tc.sound, m.tree != nil)
			shown := m.payload()
			require.Equal(t, tc.sound, !strings.HasPrefix(shown, "*** ("))
			require.NotContains(t, shown, person)
			if strings.Contains(tc.value, person) {
				require.NotContains(t, m.text("it says "+person), person[:20], "masked in the reason, too")
			}
		})
	}
}

const (
	somebody = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01"
	viewID   = "1b8a0197-c0de-4a51-8c1e-0d5f3e2a1b4c"
)

// shownOf is all that list and show print of a letter.
func shownOf(t *testing.T, rec *kgo.Record) (Letter, string) {
	t.Helper()
	l := read("popularity", rec)
	l.show()
	out, err := json.Marshal(l)
	require.NoError(t, err)
	return l, strings.ToLower(strings.NewReplacer(`\u0000`, "", "\x00", "", "-", "").Replace(string(out)))
}

// What each of these values held was printed by dlq show: only names of one form in sound JSON of one layer, and what looked like them in
// text, were masked.
func TestNoFormOfAValueShowsAPerson(t *testing.T) {
	object := `{"PropertyObjectViewId":"` + viewID + `","UserId":"` + somebody + `","ViewSource":"Catalog"}`
	wide := func(order func(lo, hi byte) []byte) string {
		var out []byte
		for _, u := range utf16.Encode([]rune(object)) {
			out = append(out, order(byte(u), byte(u>>8))...)
		}
		return string(out)
	}
	deep := object
	for range 8 {
		deep = quoted(deep)
	}
	for name, tc := range map[string]struct {
		value string
		shows []string
	}{
		"payload as a string":           {`{"EventId":"e","Payload":` + quoted(object) + `}`, []string{`"EventId": "e"`, `\"UserId\":\"***\"`, `\"ViewSource\":\"Catalog\"`}},
		"payload as a string, twice":    {`{"EventId":"e","Payload":` + quoted(quoted(object)) + `}`, []string{`"EventId": "e"`, "Catalog"}},
		"payload as a list in a string": {`{"Payload":` + quoted(`[`+object+`]`) + `}`, []string{"Catalog"}},
		"payload as a string after BOM": {`{"Payload":` + quoted("\uFEFF "+object) + `}`, []string{"Catalog"}},
		"payload as a broken string":    {`{"EventId":"e","Payload":` + quoted(object[:len(object)-1]) + `}`, []string{`"EventId": "e"`, "sha256"}},
		"payload with escaped names":    {`{"Payload":` + quoted(`{"User\u0049d":"`+somebody+`"`) + `}`, []string{"sha256"}},
		"the whole value twice":         {quoted(object), []string{"JSON in a JSON string", `"UserId": "***"`, `"ViewSource": "Catalog"`}},
		"the whole value nine times":    {deep, []string{`"UserId": "***"`}},
		"UTF-16 LE":                     {wide(func(lo, hi byte) []byte { return []byte{lo, hi} }), []string{"not JSON at byte", "sha256"}},
		"UTF-16 BE with its mark":       {"\xfe\xff" + wide(func(lo, hi byte) []byte { return []byte{hi, lo} }), []string{"not UTF-8", "sha256"}},
		"XML":                           {`<View><UserId>` + somebody + `</UserId></View>`, []string{"begins like <xxxx><xxxxxx>"}},
		"CSV":                           {"PropertyObjectViewId,UserId\n" + viewID + "," + somebody + "\n", []string{"not JSON"}},
		"base64":                        {base64.StdEncoding.EncodeToString([]byte(object)), []string{"not JSON"}},
		"base64 in a field":             {`{"Body":"` + base64.StdEncoding.EncodeToString([]byte(object)) + `"}`, []string{"sha256"}},
		"XML in a field":                {`{"Body":"<UserId>` + somebody + `</UserId>","ViewSource":"Catalog"}`, []string{"Catalog"}},
		"binary":                        {"\x00\x05\xffUserId\x24" + somebody + "\x00", []string{"not UTF-8"}},
		"a JSON list":                   {`["UserId","` + somebody + `"]`, []string{"JSON, but no object"}},
		"a JSON string":                 {`"` + somebody + `"`, []string{"JSON, but no object"}},
		"what follows the object":       {object + `]` + somebody, []string{"something follows"}},
		"a name with a space":           {`{"USER ID":"` + somebody + `","x":1}`, []string{`"USER ID": "***"`, `"x": 1`}},
		"a name with a prefix":          {`{"x-session-id":"` + somebody + `","LastAnonymousId":"` + somebody + `"}`, []string{`"x-session-id": "***"`, `"LastAnonymousId": "***"`}},
		"a name and a value":            {`{"Tags":[{"Name":"UserId","Value":"` + somebody + `"}],"Row":["session_id","` + somebody + `"],"x":1}`, []string{`"x": 1`}},
		"an id for a name":              {`{"Users":{"` + somebody + `":1}}`, []string{`"***": 1`}},
		"the id once more":              {`{"UserId":"` + somebody + `","Note":"seen by ` + strings.ToUpper(somebody) + `"}`, []string{"seen by ***"}},
		"an id in a long text":          {`{"Note":"` + strings.Repeat("words ", 200) + somebody + `"}`, []string{"sha256"}},
	} {
		t.Run(name, func(t *testing.T) {
			l, shown := shownOf(t, &kgo.Record{Key: []byte(somebody), Value: []byte(tc.value), Headers: []kgo.RecordHeader{
				{Key: deadletter.HeaderReason, Value: []byte("it says " + somebody)},
			}})
			require.NotContains(t, shown, strings.ReplaceAll(somebody[:20], "-", ""))
			require.NotContains(t, shown, base64.StdEncoding.EncodeToString([]byte(object))[20:40])
			for _, text := range tc.shows {
				require.Contains(t, l.Payload, text)
			}
		})
	}
}

// A producer's headers were printed but for those of three names.
func TestOnlyKnownHeadersAreShown(t *testing.T) {
	traceparent := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for name, tc := range map[string]struct{ value, shown string }{
		"x-user-id":       {somebody, "*** (36 bytes)"},
		"x-session-id":    {somebody, "*** (36 bytes)"},
		"tracestate":      {"vendor=" + somebody, "*** (43 bytes)"},
		"baggage":         {"user=" + somebody, "*** (41 bytes)"},
		"ce_subject":      {somebody, "*** (36 bytes)"},
		"Traceparent":     {traceparent, traceparent},
		"traceparent":     {somebody, "*** (36 bytes)"},
		"EVENTID":         {viewID, viewID},
		"TenantId":        {"pin", "pin"},
		"ContractVersion": {"1", "1"},
		"content-type":    {"application/json", "application/json"},
		"empty":           {"", ""},
		HeaderReturns:     {"2", "2"},

		deadletter.HeaderSourceTopic: {"pin.catalog.a-topic-with-a-long-name-of-many-words-and-more.v1", "pin.catalog.a-topic-with-a-long-name-of-many-words-and-more.v1"},
		deadletter.HeaderReason:      {"field UserId of view " + viewID + " is no Guid, nor is " + somebody, "field UserId of view " + viewID + " is no Guid, nor is ***"},

		"__connect.errors.exception.message": {`cannot read {"USER ID":"ivan"}`, "*** (30 bytes, sha256 0e41edeb…)"},
		"__connect.errors.topic":             {"t", "t"},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := shownOf(t, &kgo.Record{Value: []byte(`{"Payload":{"PropertyObjectViewId":"` + strings.ToUpper(viewID) + `"}}`), Headers: []kgo.RecordHeader{{Key: name, Value: []byte(tc.value)}}})
			require.Equal(t, []Header{{name, tc.shown}}, l.Headers)
			require.NotContains(t, l.Reason, "ivan")
		})
	}
	l, shown := shownOf(t, &kgo.Record{Value: []byte(`{"UserId":"` + somebody + `"}`), Headers: []kgo.RecordHeader{
		{Key: "EventId", Value: []byte(somebody)}, {Key: somebody, Value: []byte("x")},
		{Key: "traceparent", Value: []byte("00-" + strings.ReplaceAll(somebody, "-", "") + "-00f067aa0ba902b7-01")},
	}})
	require.NotContains(t, shown, strings.ReplaceAll(somebody, "-", ""))
	require.Equal(t, []Header{{"EventId", masked}, {masked, "*** (1 bytes)"}, {"traceparent", "00-***-00f067aa0ba902b7-01"}}, l.Headers)
}

// A producer that takes the user's id for a key had it in every list.
func TestAKeyIsShownWhereItIsTheRecordsOwnID(t *testing.T) {
	for name, tc := range map[string]struct {
		key   []byte
		value string
		shown bool
	}{
		"a view":             {[]byte(viewID), `{"Payload":{"PropertyObjectViewId":"` + viewID + `"}}`, true},
		"bare, camel case":   {[]byte(viewID), `{"propertyObjectViewId":"` + viewID + `"}`, true},
		"another case":       {[]byte(strings.ToUpper(viewID)), `{"PurchaseId":"{` + viewID + `}"}`, true},
		"an object":          {[]byte(viewID), `{"Payload":{"PropertyObjectId":"` + viewID + `"}}`, true},
		"payload in a text":  {[]byte(viewID), `{"Payload":` + quoted(`{"PurchaseId":"`+viewID+`"}`) + `}`, true},
		"empty":              {[]byte{}, `{}`, true},
		"a user":             {[]byte(somebody), `{"Payload":{"PropertyObjectViewId":"` + viewID + `","UserId":"` + somebody + `"}}`, false},
		"a user of nowhere":  {[]byte(somebody), `{"Payload":{"PropertyObjectViewId":"` + viewID + `"}}`, false},
		"a user's name":      {[]byte("ivan"), `{"Payload":{"UserId":"ivan"}}`, false},
		"of a broken record": {[]byte(viewID), `{"Payload":{"PropertyObjectViewId":"` + viewID + `"`, false},
		"elsewhere":          {[]byte(viewID), `{"Payload":{"Payload":{"PurchaseId":"` + viewID + `"}}}`, false},
		"a view and a user":  {[]byte(somebody), `{"PropertyObjectViewId":"` + somebody + `","UserId":"` + somebody + `"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := shownOf(t, &kgo.Record{Key: tc.key, Value: []byte(tc.value)})
			require.Equal(t, tc.shown, *l.Key == string(tc.key), *l.Key)
			if !tc.shown {
				require.Contains(t, *l.Key, masked)
				require.NotContains(t, *l.Key, string(tc.key))
			}
		})
	}
	l, _ := shownOf(t, &kgo.Record{})
	require.Nil(t, l.Key)
}

// What an operator looks for stays as it was.
func TestASoundPayloadIsShownWhole(t *testing.T) {
	l, _ := shownOf(t, &kgo.Record{Value: []byte(`{"EventId":"` + viewID + `","CreatedAt":"2026-11-30T10:15:30.1234567+03:00","Payload":{"PropertyObjectId":"{` + viewID + `}","SessionId":"` + somebody +
		`","UserId":null,"Price":54.30,"Name":"Российский рубль","Sign":"₽","Rooms":[1,2],"FilterSnapshot":null,"None":{}}}`)})
	want := `{
  "EventId": "` + viewID + `",
  "CreatedAt": "2026-11-30T10:15:30.1234567+03:00",
  "Payload": {
    "PropertyObjectId": "{` + viewID + `}",
    "SessionId": "***",
    "UserId": null,
    "Price": 54.30,
    "Name": "Российский рубль",
    "Sign": "₽",
    "Rooms": [
      1,
      2
    ],
    "FilterSnapshot": null,
    "None": {}
  }
}`
	require.Equal(t, want, l.Payload) //nolint:testifylint // order and form count
}
