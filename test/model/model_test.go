package model_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/test/model"
)

// Ids of the tests: a digit that says what it is, and a number.
func id(kind, n int) string { return fmt.Sprintf("%d0000000-0000-4000-8000-%012d", kind, n) }

func project(n int) model.Ref { return model.Ref{Kind: model.Project, ID: id(1, n)} }
func object(n int) model.Ref  { return model.Ref{Kind: model.PropertyObject, ID: id(2, n)} }

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func rec(topic, value string) *record.Record {
	return &record.Record{ID: record.ID{Topic: topic}, Value: []byte(value)}
}

var messages int

func envelope(topic, payload string) *record.Record {
	messages++
	return rec(topic, fmt.Sprintf(`{"EventId":%q,"ContractVersion":1,"Payload":%s}`, id(9, messages), payload))
}

func purchase(n, version, weight int, status string, targets ...model.Ref) *record.Record {
	list := make([]string, len(targets))
	for i, t := range targets {
		list[i] = fmt.Sprintf(`{"TargetKind":%q,"TargetId":%q}`, t.Kind, t.ID)
	}
	return envelope("pin.promotion.purchase-changed.v1", fmt.Sprintf(
		`{"PurchaseId":%q,"Targets":[%s],"BoostWeight":%d,"Status":%q,"EndsAt":"2026-12-31T23:59:59+03:00","Version":%d,"TenantId":%q}`,
		id(3, n), strings.Join(list, ","), weight, status, version, id(4, 1)))
}

func view(n, obj int) *record.Record {
	return envelope("pin.user-activity.property-object-view-ended.v1", fmt.Sprintf(
		`{"PropertyObjectViewId":%q,"PropertyObjectId":%q,"SessionId":%q,"AnonymousId":%q,"ViewSource":"Catalog","ViewedAt":"2026-11-30T10:00:00Z","LastActivityAt":"2026-11-30T10:01:00Z","DurationSeconds":-1}`,
		id(5, n), object(obj).ID, id(6, 1), id(7, 1)))
}

func city() *model.Model {
	m := model.New(now)
	m.Card(model.Card{Kind: model.Project, ID: project(1).ID, Status: model.Published, PromotionBoost: 0, PopularityViews: 0})
	m.Card(model.Card{Kind: model.Project, ID: project(2).ID, Status: model.Delisted, PromotionBoost: 7, PopularityViews: 70})
	m.Card(model.Card{Kind: model.PropertyObject, ID: object(1).ID, ProjectID: project(1).ID, Status: model.Published})
	m.Card(model.Card{Kind: model.PropertyObject, ID: object(2).ID, ProjectID: project(1).ID, Status: model.Hidden, PromotionBoost: 3})
	m.Card(model.Card{Kind: model.PropertyObject, ID: object(3).ID, ProjectID: project(1).ID, Status: model.Delisted, PromotionBoost: 5, PopularityViews: 50})
	m.Card(model.Card{Kind: model.PropertyObject, ID: object(4).ID, ProjectID: project(2).ID, Status: model.Published})
	return m
}

func boosts(e *model.Expected) map[model.Ref]int {
	out := map[model.Ref]int{}
	for ref, state := range e.Cards {
		out[ref] = state.PromotionBoost
	}
	return out
}

func TestBoosts(t *testing.T) {
	base := map[model.Ref]int{project(1): 0, project(2): 7, object(1): 0, object(2): 3, object(3): 5, object(4): 0}
	post := model.Ref{Kind: "Post", ID: id(8, 1)}
	cases := map[string]struct {
		events []*record.Record
		want   map[model.Ref]int
	}{
		"an object": {[]*record.Record{purchase(1, 1, 50, "Active", object(1))}, map[model.Ref]int{object(1): 50}},
		"a project cascades to Published objects only (D10)": {
			[]*record.Record{purchase(1, 1, 50, "Active", project(1))}, map[model.Ref]int{project(1): 50, object(1): 50}},
		"own and cascaded": {
			[]*record.Record{purchase(1, 1, 50, "Active", project(1)), purchase(2, 1, 20, "Active", object(1))},
			map[model.Ref]int{project(1): 50, object(1): 70}},
		"a Hidden object addressed directly, even inactively (D27)": {
			[]*record.Record{purchase(1, 1, 50, "Active", project(1)), purchase(2, 1, 20, "Expired", object(2))},
			map[model.Ref]int{project(1): 50, object(1): 50, object(2): 50}},
		"Delisted cards are frozen (D11)": {[]*record.Record{purchase(1, 1, 50, "Active", object(3), project(2))}, map[model.Ref]int{object(4): 50}},
		"expired":                         {[]*record.Record{purchase(1, 1, 50, "Active", object(1)), purchase(1, 2, 50, "Expired", object(1))}, nil},
		"pending (D2)":                    {[]*record.Record{purchase(1, 1, 50, "Pending", object(1))}, nil},
		"stale":                           {[]*record.Record{purchase(1, 2, 50, "Active", object(1)), purchase(1, 1, 50, "Cancelled", object(1))}, map[model.Ref]int{object(1): 50}},
		"a dropped target (D3)":           {[]*record.Record{purchase(1, 1, 50, "Active", object(1), object(4)), purchase(1, 2, 60, "Active", object(4))}, map[model.Ref]int{object(4): 60}},
		"posts only, then known (D4)":     {[]*record.Record{purchase(1, 1, 50, "Active", object(1)), purchase(1, 2, 50, "Active", post)}, nil},
		"twice the same target (D6)":      {[]*record.Record{purchase(1, 1, 50, "Active", object(1), object(1))}, map[model.Ref]int{object(1): 50}},
		"equal version, other message (D7)": {
			[]*record.Record{purchase(1, 1, 50, "Active", object(1)), purchase(1, 1, 40, "Active", object(1))}, map[model.Ref]int{object(1): 40}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			m := city()
			for _, r := range tc.events {
				m.Apply(r)
				m.Apply(r) // a repeated MessageId changes nothing
			}
			want := map[model.Ref]int{}
			for ref, boost := range base {
				want[ref] = boost
			}
			for ref, boost := range tc.want {
				want[ref] = boost
			}
			e := m.Expected()
			require.Equal(t, want, boosts(e))
			require.Empty(t, e.DeadLetters)
		})
	}
}

func TestViews(t *testing.T) {
	m := city()
	for n, obj := range []int{1, 1, 2, 3, 4, 99} {
		m.Apply(view(n, obj))
		m.Apply(view(n, obj)) // published again with another MessageId
	}
	e := m.Expected()
	require.Equal(t, int64(2), e.Cards[object(1)].PopularityViews)
	require.Equal(t, int64(1), e.Cards[object(2)].PopularityViews, "Hidden cards count")
	require.Equal(t, int64(50), e.Cards[object(3)].PopularityViews, "Delisted cards are frozen")
	require.Equal(t, int64(1), e.Cards[object(4)].PopularityViews)
	require.Equal(t, int64(3), e.Cards[project(1)].PopularityViews)
	require.Equal(t, int64(70), e.Cards[project(2)].PopularityViews, "a Delisted project is frozen (D28)")
	require.Equal(t, []model.DeadLetter{{Index: 10, Topic: "pin.user-activity.property-object-view-ended.v1", Code: "CATALOG_SYNC_PROPERTY_OBJECT_NOT_FOUND"}}, e.DeadLetters)
	require.Equal(t, "skipped-delisted", e.Views[id(5, 3)])
}

func price(fields string) *record.Record {
	return rec("pin.chessboard.property-object-price-changed.v1", `{"EventId":"{`+strings.ToUpper(id(9, 500))+`}","ContractVersion":2,"Payload":{`+
		`"PropertyObjectId":"`+id(2, 1)+`","DeveloperId":"`+id(4, 1)+`","ProjectId":"`+id(1, 1)+`","BuildingId":101,"LayoutGroupId":7,"LayoutId":9001,`+
		`"CurrencyId":643,"CurrencySnapshot":{"CurrencyId":643,"IsoCode":"RUB","Name":"Российский рубль"},"Source":"Talent","Version":17,`+fields+`}}`)
}

func TestFacts(t *testing.T) {
	m := model.New(now)
	m.Apply(price(`"AreaTotal":"54.305","OldPrice":-1,"NewPrice":12345678.905,"ChangedAt":"2026-11-30T14:59:59.9999999+03:00"`))
	e := m.Expected()
	require.Equal(t, map[string]model.Fact{id(9, 500): {
		FactID: id(9, 500), PropertyObjectID: id(2, 1), DeveloperID: id(4, 1), ProjectID: id(1, 1), BuildingID: "101", LayoutGroupID: "7", LayoutID: "9001",
		AreaTotal: "54.31", OldPrice: "-1.00", NewPrice: "12345678.91", OldPricePerMeter: "-0.02", NewPricePerMeter: "227339.64",
		CurrencyID: "643", CurrencyIsoCode: "RUB", EventTime: "2026-11-30T11:59:59Z",
	}}, e.Facts)
	require.Equal(t, 1, e.Mismatches["pin.chessboard.property-object-price-changed.v1"])
}

func TestPriceFaults(t *testing.T) {
	good := `"AreaTotal":54.3,"NewPrice":1,"ChangedAt":"2026-11-30T10:00:00Z"`
	for change, code := range map[string]string{
		"": "", `54.3→0.004`: "CONTRACT_INVALID_FIELD", `54.3→0.005`: "", `54.3→99999999.994`: "", `54.3→99999999.995`: "VALUE_OUT_OF_RANGE",
		`"NewPrice":1→"NewPrice":-0.01`: "CONTRACT_INVALID_FIELD", `"NewPrice":1→"NewPrice":1e16`: "VALUE_OUT_OF_RANGE",
		`2026-11-30T10→2026-11-30T14`: "CONTRACT_INVALID_FIELD", `2026-11-30T10:00:00Z→0001-01-01T00:00:00Z`: "CONTRACT_INVALID_FIELD",
		`2026-11-30T10:00:00Z→1969-12-31T23:59:59Z`: "VALUE_OUT_OF_RANGE", `10:00:00Z→10:00:00`: "CONTRACT_INVALID_FIELD",
		`"NewPrice":1→"NewPrice":"x"`: "CONTRACT_INVALID_FIELD", `"NewPrice":1→"NewPrice":null`: "CONTRACT_INVALID_FIELD",
		`"NewPrice":1→"NewPrice":1,"newPrice":1`: "CONTRACT_INVALID_FIELD", `"NewPrice":1→"NewPrice":1,"NEWPRICE":"x"`: "",
	} {
		m := model.New(now)
		from, to, _ := strings.Cut(change, "→")
		m.Apply(price(strings.Replace(good, from, to, 1)))
		e := m.Expected()
		if code == "" {
			require.Empty(t, e.DeadLetters, change)
			continue
		}
		require.Len(t, e.DeadLetters, 1, change)
		require.Equal(t, code, e.DeadLetters[0].Code, change)
	}
}

func TestCompareFindsEveryKindOfDifference(t *testing.T) {
	m := city()
	m.Apply(purchase(1, 1, 50, "Active", project(1)))
	m.Apply(price(`"AreaTotal":1,"NewPrice":1,"ChangedAt":"2026-11-30T10:00:00Z"`))
	m.Apply(rec("pin.promotion.purchase-changed.v1", "nonsense"))
	m.Apply(view(1, 1)) // counted
	m.Apply(view(2, 3)) // its object is Delisted
	m.Apply(view(3, 9)) // its object has no card
	e := m.Expected()
	got := func() *model.Actual {
		a := &model.Actual{
			Cards: map[model.Ref]model.CardState{}, Targets: map[model.Ref]int{object(9): 0}, Facts: map[string]model.Fact{}, DeadLetters: e.Letters(),
			LateViews: map[string]string{id(5, 3): "dead"}, Ledger: map[string]int{"counted": 1, "skipped-delisted": 1, "dead": 1},
		}
		for k, v := range e.Cards {
			a.Cards[k] = v
		}
		for k, v := range e.Targets {
			a.Targets[k] = v
		}
		for k, v := range e.Facts {
			a.Facts[k] = v
		}
		return a
	}
	require.Empty(t, model.Compare(e, got()))
	for name, spoil := range map[string]func(*model.Actual){
		"card":         func(a *model.Actual) { a.Cards[object(1)] = model.CardState{PromotionBoost: 49} },
		"missing card": func(a *model.Actual) { delete(a.Cards, object(1)) },
		"target":       func(a *model.Actual) { a.Targets[project(1)] = 49 },
		"new target":   func(a *model.Actual) { a.Targets[object(9)] = 1 },
		"fact":         func(a *model.Actual) { a.Facts["other"] = model.Fact{} },
		"dead letter": func(a *model.Actual) {
			delete(a.DeadLetters, model.Letter{Topic: "pin.promotion.purchase-changed.v1", Code: "CONTRACT_UNDECODABLE"})
		},

		"a dead view that waits still":     func(a *model.Actual) { a.LateViews[id(5, 3)] = "pending" },
		"a dead view that is not there":    func(a *model.Actual) { clear(a.LateViews) },
		"a counted view that waits":        func(a *model.Actual) { a.LateViews[id(5, 1)] = "pending" },
		"a dead view that no record named": func(a *model.Actual) { a.LateViews[id(5, 4)] = "dead" },
		"a view counted twice":             func(a *model.Actual) { a.Ledger["counted"]++ },
		"a view that is not in the ledger": func(a *model.Actual) { delete(a.Ledger, "skipped-delisted") },
		"a state that the model lacks":     func(a *model.Actual) { a.Ledger["pending"] = 1 },
	} {
		a := got()
		spoil(a)
		require.Len(t, model.Compare(e, a), 1, name)
		require.NotEmpty(t, model.Compare(e, a)[0].String())
	}
	require.Empty(t, model.Compare(e, &model.Actual{}), "nothing given, nothing compared")
}
