package codecs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func mustView(t testing.TB, d doc) *View {
	t.Helper()
	v, fault := testViews.Decode(enveloped(d))
	require.Nil(t, fault, "%v", fault)
	return v
}

func TestViewFields(t *testing.T) {
	v := mustView(t, viewDoc().with("UserId", quoted(userGUID)))
	v.Meta = Meta{}
	require.Equal(t, &View{ViewID: uuid.MustParse(viewGUID), ObjectID: uuid.MustParse(objectGUID), Source: "Catalog",
		ViewedAt: time.Date(2026, 11, 30, 7, 0, 0, 0, time.UTC), LastActivityAt: time.Date(2026, 11, 30, 7, 15, 30, 123456700, time.UTC),
		DurationSeconds: 42, HasUserID: true, HasAnonymousID: true, HasSessionID: true}, v)
	require.False(t, mustView(t, viewDoc()).HasUserID)
	require.False(t, mustView(t, viewDoc().without("UserId")).HasUserID)
	require.False(t, mustView(t, viewDoc().with("SessionId", quoted(emptyGUID))).HasSessionID, "the empty Guid names nobody")
}

func TestViewSource(t *testing.T) {
	for raw, want := range map[string]string{`"Catalog"`: "Catalog", `"Selection"`: "Selection", `"catalog"`: "Unknown", `"Banner"`: "Unknown",
		`""`: "Unknown", `"Unknown"`: "Unknown", `"\u0043atalog"`: "Catalog"} {
		v := mustView(t, viewDoc().with("ViewSource", raw))
		require.Equal(t, want, v.Source, raw)
		require.Equal(t, want == "Unknown", v.SourceUnknown, raw)
	}
	other := NewViewCodec([]string{"Banner"})
	v, fault := other.Decode(enveloped(viewDoc().with("ViewSource", `"Banner"`)))
	require.Nil(t, fault)
	require.Equal(t, "Banner", v.Source)
}

func TestViewDuration(t *testing.T) {
	for raw, want := range map[string]int64{"0": 0, "-0": 0, "-1": -1, "2147483647": 2147483647, "-2147483648": -2147483648} {
		require.Equal(t, want, mustView(t, viewDoc().with("DurationSeconds", raw)).DurationSeconds, "below 0 is accepted")
	}
}

func TestViewNeedsNoEventIDAndNoFilter(t *testing.T) {
	v, fault := testViews.Decode(rec(envelopeDoc(viewDoc()).without("EventId").String()))
	require.Nil(t, fault)
	require.False(t, v.HasMessageID)
	for _, raw := range []string{"5", `"x"`, `{"a":{"b":[1,2,{}]},"a":1}`, "[null]"} {
		mustView(t, viewDoc().with("FilterSnapshot", raw))
	}
	mustView(t, viewDoc().without("FilterSnapshot"))
}

// Neither a decoded view nor a fault of any kind shows who viewed (D32).
func TestNothingPersonalIsShown(t *testing.T) {
	people := viewDoc().with("UserId", quoted(userGUID))
	require.NotContains(t, fmt.Sprintf("%+v", *mustView(t, people)), "5ec3e7")
	broken := func(id string) []string {
		return []string{quoted(id + "x"), quoted("user " + id), quoted(strings.ToUpper(id)[:35]), `{"id":"` + id + `"}`, `["` + id + `"]`, quoted(strings.ReplaceAll(id, "-", ""))}
	}
	for _, field := range []string{"UserId", "AnonymousId", "SessionId"} {
		for _, raw := range append(broken(userGUID), "5370000", "true") {
			_, fault := testViews.Decode(enveloped(people.with(field, raw)))
			requireFault(t, fault, CodeInvalidField, field)
			require.NotContains(t, fault.Reason, "5370000")
		}
		_, fault := testViews.Decode(enveloped(people.plus(field, quoted(userGUID))))
		requireFault(t, fault, CodeInvalidField, field)
	}
	_, fault := testViews.Decode(rec(envelopeDoc(people).String() + `"` + userGUID))
	requireFault(t, fault, CodeUndecodable, "")
	_, fault = testViews.Decode(rec(strings.Replace(envelopeDoc(people).String(), quoted(userGUID), userGUID, 1)))
	requireFault(t, fault, CodeUndecodable, "")
}
