package codecs

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// seed adds the golden events, which the fuzzer takes apart, to the corpus kept in testdata/fuzz.
func seed(f *testing.F, prefix string) {
	for _, path := range eventFiles(f, prefix) {
		r := readEvent(f, path)
		id, _ := r.Header("EventId")
		f.Add(r.Value, id)
	}
}

func fuzzRecord(value, id []byte) *record.Record {
	return &record.Record{Value: value, Headers: []record.Header{{Key: "EventId", Value: id}}}
}

// checkFault checks what holds for every fault, and that undecodable means just that.
func checkFault(t *testing.T, value []byte, fault *Fault) {
	require.NotEmpty(t, fault.Reason)
	require.True(t, utf8.ValidString(fault.Reason), "%q", fault.Reason)
	require.Less(t, len(fault.Reason), 1000)
	require.NotContains(t, fault.Reason, "\n")
	switch fault.Code {
	case CodeUndecodable:
		require.Empty(t, fault.Field)
	case CodeInvalidField, CodeValueOutOfRange:
		require.NotEmpty(t, fault.Field)
		require.True(t, json.Valid(value))
	default:
		t.Fatalf("code %q", fault.Code)
	}
}

func FuzzDecodePrice(f *testing.F) {
	seed(f, "price")
	f.Fuzz(func(t *testing.T, value, id []byte) {
		p, fault := DecodePrice(fuzzRecord(value, id), testNow)
		if fault != nil {
			checkFault(t, value, fault)
			return
		}
		requireInsertable(t, p)
		require.NotEqual(t, uuid.Nil, p.PropertyObjectID)
		require.False(t, p.ChangedAt.After(testNow.Add(time.Hour)))
		_, fault = DecodeBackfillPrice(value, testNow)
		if fault != nil { // only an envelope's EventId can be at fault otherwise, and it was not
			t.Fatal(fault)
		}
	})
}

func FuzzDecodeView(f *testing.F) {
	seed(f, "view")
	f.Fuzz(func(t *testing.T, value, id []byte) {
		v, fault := testViews.Decode(fuzzRecord(value, id))
		if fault != nil {
			checkFault(t, value, fault)
			return
		}
		require.True(t, v.ViewID != uuid.Nil && v.ObjectID != uuid.Nil)
		require.Equal(t, v.SourceUnknown, v.Source == UnknownSource)
		require.True(t, v.DurationSeconds >= -1<<31 && v.DurationSeconds < 1<<31)
	})
}

func FuzzDecodePurchase(f *testing.F) {
	seed(f, "purchase")
	f.Fuzz(func(t *testing.T, value, id []byte) {
		p, fault := DecodePurchase(fuzzRecord(value, id))
		if fault != nil {
			checkFault(t, value, fault)
			return
		}
		require.True(t, p.HasMessageID && p.PurchaseID != uuid.Nil && p.Version >= 1 && p.BoostWeight >= 1 && p.BoostWeight <= 100)
		// whatever is accepted can be stored
		s := &PurchaseState{Version: p.Version, Status: p.Status, BoostWeight: p.BoostWeight, EndsAt: p.EndsAt, Targets: p.Targets, EverTargets: p.Targets}
		data, err := s.MarshalBinary()
		require.NoError(t, err)
		require.Less(t, len(data), MaxPurchaseStateSize)
	})
}

// The scanner accepts exactly what encoding/json does, but for UTF-8, nesting and the outermost value.
func FuzzScanner(f *testing.F) {
	for _, c := range contracts() {
		for _, path := range eventFiles(f, c.name) {
			f.Add(readEvent(f, path).Value)
		}
	}
	for _, text := range []string{"{}", "{\"a\":\"\\ud83d\\ude00\\\"\"}", `{"a":[1,-0,2.5e-3,true,false,null,{}]}`, `{"\u0050ayload":{}}`, "\t{ }\r\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, value []byte) { checkScan(t, value) })
}

// checkScan holds one scan against encoding/json.
func checkScan(t require.TestingT, value []byte) {
	var m message
	fault := m.scan(value, priceField)
	depth, object := shape(value)
	if !utf8.Valid(value) || !json.Valid(value) || !object || depth > MaxDepth {
		require.NotNil(t, fault, "%q", value)
		require.Equal(t, CodeUndecodable, fault.Code, "%q", value)
		return
	}
	if fault != nil { // its form is that of no event, but JSON it is
		require.NotContains(t, fault.Reason, "not JSON", "%q", value)
		return
	}
	want := lastMembers(t, value)
	for i, name := range allPriceNames() {
		v := m.spans[i]
		raw, found := want[name]
		require.Equal(t, found, v.kind != absent, "%s of %q", name, value)
		if found {
			require.Equal(t, string(bytes.TrimSpace(raw)), string(value[v.start:v.end]), "%s of %q", name, value)
			checkSpan(t, &m.fields, v)
		}
	}
}

// lastMembers reads the payload's members with encoding/json, under their names in PascalCase; of repeated ones the last counts.
func lastMembers(t require.TestingT, value []byte) map[string]json.RawMessage {
	read := func(value []byte) map[string]json.RawMessage {
		out := map[string]json.RawMessage{}
		d := json.NewDecoder(bytes.NewReader(value))
		_, err := d.Token()
		require.NoError(t, err)
		for d.More() {
			name, err := d.Token()
			require.NoError(t, err)
			var raw json.RawMessage
			require.NoError(t, d.Decode(&raw))
			text := name.(string)
			for _, known := range append([]string{"Payload"}, allPriceNames()...) {
				if text == known || text == strings.ToLower(known[:1])+known[1:] {
					out[known] = raw
				}
			}
		}
		return out
	}
	members := read(value)
	if payload, ok := members["Payload"]; ok {
		return read(payload)
	}
	return members
}

// shape measures a text with encoding/json.
func shape(value []byte) (depth int, object bool) {
	d := json.NewDecoder(bytes.NewReader(value))
	level := 0
	for {
		token, err := d.Token()
		if err != nil {
			return depth, object
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			object = object || level == 0 && token == json.Delim('{')
			level++
			depth = max(depth, level)
		case json.Delim('}'), json.Delim(']'):
			level--
		}
	}
}

func checkSpan(t require.TestingT, f *fields, v span) {
	var got any
	d := json.NewDecoder(bytes.NewReader(f.data[v.start:v.end]))
	d.UseNumber()
	require.NoError(t, d.Decode(&got))
	switch want := got.(type) {
	case nil:
		require.Equal(t, kindNull, v.kind)
	case bool:
		require.Equal(t, kindBool, v.kind)
	case json.Number:
		require.Equal(t, kindNumber, v.kind)
	case string:
		require.Equal(t, kindString, v.kind)
		text, ok := f.text(v)
		if ok {
			require.Equal(t, want, string(text))
		} else {
			require.Contains(t, want, "\uFFFD", "encoding/json replaces half a surrogate pair")
		}
	case map[string]any:
		require.Equal(t, kindObject, v.kind)
	case []any:
		require.Equal(t, kindArray, v.kind)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(EncodeRecord(&record.Record{ID: record.ID{Topic: "t", Partition: 1, Offset: 2}, Value: []byte("{}"), Timestamp: time.UnixMilli(5),
		Headers: []record.Header{{Key: "h"}, {Key: "h", Value: []byte("v")}}}))
	f.Add(EncodeRecord(&record.Record{Key: []byte{}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := DecodeRecord(data)
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "decoding a raw record: "))
			return
		}
		require.Equal(t, data, EncodeRecord(r), "one value, one encoding")
	})
}

func FuzzDecodeMark(f *testing.F) {
	for _, loop := range []bool{true, false} {
		data, err := Mark{Origin: Origin{Incarnation: 1, Loop: loop, Partition: 5, Offset: 300}, At: testNow}.MarshalBinary()
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := DecodeMark(data)
		if err != nil {
			return
		}
		again, err := m.MarshalBinary()
		require.NoError(t, err)
		require.Equal(t, data, again)
	})
}

func FuzzDecodePurchaseState(f *testing.F) {
	a, b := Target{KindProject, uuid.UUID{1}}, Target{KindPropertyObject, uuid.UUID{2}}
	data, err := (&PurchaseState{Version: 3, Status: StatusActive, BoostWeight: 5, EndsAt: testNow, Targets: []Target{b}, EverTargets: []Target{a, b},
		Topic: "t", MessageIDs: []MessageRef{{uuid.UUID{3}, 3}}, EverKnown: true}).MarshalBinary()
	require.NoError(f, err)
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := DecodePurchaseState(data)
		if err != nil {
			return
		}
		again, err := s.MarshalBinary()
		require.NoError(t, err)
		require.Equal(t, data, again)
	})
}

func allPriceNames() []string {
	var out []string
	for i := range priceVersion + 1 {
		out = append(out, priceFieldName(i))
	}
	return out
}
