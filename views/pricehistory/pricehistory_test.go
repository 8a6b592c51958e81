package pricehistory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

type store struct {
	t    testing.TB
	conn *clickhouse.Conn
	in   *clickhouse.Inserter
	*Reader
}

func open(t testing.TB) *store {
	t.Helper()
	cfg := clickhouse.Config{DSN: devtest.ClickHouse(t)}
	_, err := clickhouse.Migrate(t.Context(), cfg)
	require.NoError(t, err)
	conn, err := clickhouse.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return &store{t: t, conn: conn, in: clickhouse.NewInserter(conn), Reader: New(conn)}
}

var (
	object   = uuid.MustParse("0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01")
	ingested = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
)

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return t
}

func fact(id string, of uuid.UUID, when time.Time, price, perMeter string) *codecs.Fact {
	return &codecs.Fact{FactID: id, SourceEventID: id, PropertyObjectID: of, DeveloperID: of, TenantID: of.String(), ProjectID: of, BuildingID: 1, LayoutGroupID: 1,
		LayoutID: 1, AreaTotal: decimal.New(5430, -2), NewPrice: decimal.RequireFromString(price), NewPricePerMeter: decimal.RequireFromString(perMeter),
		CurrencyID: 643, CurrencyIsoCode: "RUB", EventTime: when, ChangeSource: "talent-sync", TransformVersion: 1}
}

func (s *store) put(when time.Time, facts ...*codecs.Fact) {
	s.t.Helper()
	require.NoError(s.t, s.in.Insert(context.Background(), facts, when))
}

func (s *store) series(step Step, from, to string) *Series {
	s.t.Helper()
	q := Query{PropertyObjectID: object, Step: step}
	if from != "" {
		q.From = at(from)
	}
	if to != "" {
		q.To = at(to)
	}
	got, err := s.Series(context.Background(), q)
	require.NoError(s.t, err)
	return got
}

func growth(s *Series) string {
	if s.GrowthPercent == nil {
		return "null"
	}
	return s.GrowthPercent.String()
}

func TestASeriesHasTheLastFactOfEachPeriod(t *testing.T) {
	s := open(t)
	other := uuid.New()
	s.put(ingested,
		fact("3", object, at("2026-11-30T23:59:59Z"), "110", "11"),
		fact("1", object, at("2026-11-30T00:00:00Z"), "100", "10"),
		fact("4", object, at("2026-12-01T00:00:00Z"), "120.5", "12"),
		fact("5", other, at("2026-12-01T00:00:00Z"), "999", "99"),
		fact("6", object, at("2027-01-01T02:59:59+03:00"), "130", "13")) // 2026-12-31 in UTC
	require.Equal(t, []Point{{"2026-11-30", "110.00", "11.00", 2}, {"2026-12-01", "120.50", "12.00", 1}, {"2026-12-31", "130.00", "13.00", 1}}, s.series(Day, "", "").Series)
	require.Equal(t, []Point{{"2026-11", "110.00", "11.00", 2}, {"2026-12", "130.00", "13.00", 2}}, s.series(Month, "", "").Series)
	require.Equal(t, []Point{{"2026", "130.00", "13.00", 4}}, s.series(Year, "", "").Series)
	require.Equal(t, "18.1818181818", growth(s.series(Day, "", "")))
	require.Equal(t, "null", growth(s.series(Year, "", "")), "one period has no growth")
}

func TestOutOfOrderFactsTakeTheirPlace(t *testing.T) {
	s := open(t)
	s.put(ingested, fact("b", object, at("2026-03-10T00:00:00Z"), "200", "20"))
	s.put(ingested.Add(time.Hour), fact("a", object, at("2026-02-10T00:00:00Z"), "100", "10"))
	s.put(ingested.Add(2*time.Hour), fact("c", object, at("2026-03-09T00:00:00Z"), "150", "15"))
	got := s.series(Month, "", "")
	require.Equal(t, []Point{{"2026-02", "100.00", "10.00", 1}, {"2026-03", "200.00", "20.00", 2}}, got.Series)
	require.Equal(t, "100", growth(got))
}

func TestDuplicatesAreInvisibleBeforeAnyMerge(t *testing.T) {
	s := open(t)
	require.NoError(t, s.conn.Exec(t.Context(), "SYSTEM STOP MERGES "+s.conn.Table()))
	for i := range 5 {
		s.put(ingested.Add(time.Duration(i)*time.Second), fact("a", object, at("2026-02-10T00:00:00Z"), "100", "10"), fact("b", object, at("2026-02-10T00:00:00Z"), "110", "11"))
	}
	require.Equal(t, []Point{{"2026-02-10", "110.00", "11.00", 2}}, s.series(Day, "", "").Series)
	// A corrected version, ingested later, replaces its fact wherever its time now lies: nothing but argMax does that.
	corrected := fact("b", object, at("2026-05-01T00:00:00Z"), "115", "11.5")
	corrected.TransformVersion = 0 // the time of ingestion decides, not the mapping
	s.put(ingested.Add(time.Minute), corrected)
	require.Equal(t, []Point{{"2026-02-10", "100.00", "10.00", 1}, {"2026-05-01", "115.00", "11.50", 1}}, s.series(Day, "", "").Series)
	require.Equal(t, []Point{{"2026-02-10", "100.00", "10.00", 1}}, s.series(Day, "", "2026-04-01T00:00:00Z").Series, "its old version must not be seen through the bounds")
}

func TestOfOneSecondTheGreatestFactIdCounts(t *testing.T) {
	s := open(t)
	when := at("2026-02-10T00:00:00Z")
	s.put(ingested.Add(time.Hour), fact("0197c0de-0000-7000-8000-000000000001", object, when, "100", "10"))
	s.put(ingested, fact("0197c0de-0000-7000-8000-000000000002", object, when, "110", "11"))
	want := []Point{{"2026-02-10", "110.00", "11.00", 2}}
	require.Equal(t, want, s.series(Day, "", "").Series)
	s.put(ingested.Add(2*time.Hour), fact("0197c0de-0000-7000-8000-000000000001", object, when, "100", "10"))
	require.Equal(t, want, s.series(Day, "", "").Series, "a replay changes nothing for readers")
}

func TestBoundsAreIncluded(t *testing.T) {
	s := open(t)
	for i, when := range []string{"1970-01-01T00:00:00Z", "2026-02-10T12:00:00Z", "2026-02-10T12:00:01Z", "2106-02-07T06:28:15Z"} {
		s.put(ingested, fact(fmt.Sprint(i), object, at(when), fmt.Sprint(100+i), fmt.Sprint(10+i)))
	}
	facts := func(from, to string) (n int) {
		for _, p := range s.series(Day, from, to).Series {
			n += int(p.Facts)
		}
		return n
	}
	require.Equal(t, 4, facts("", ""))
	require.Equal(t, 2, facts("2026-02-10T12:00:00Z", "2026-02-10T12:00:01Z"))
	require.Equal(t, 1, facts("2026-02-10T12:00:00Z", "2026-02-10T12:00:00.999Z"))
	require.Equal(t, 2, facts("2026-02-10T12:00:00.001Z", ""))
	require.Equal(t, 2, facts("2026-02-10T15:00:00+03:00", "2026-02-10T15:00:01+03:00"))
	require.Equal(t, 4, facts("0001-01-02T00:00:00Z", "9999-01-01T00:00:00Z"))
	require.Equal(t, 0, facts("2026-02-10T12:00:01.5Z", "2026-02-10T12:00:01.9Z"))
	require.Equal(t, 0, facts("2200-01-01T00:00:00Z", ""))
	require.Equal(t, 0, facts("2026-02-11T00:00:00Z", "2026-02-10T00:00:00Z"))
}

func TestWhatIsNotThere(t *testing.T) {
	s := open(t)
	_, err := s.Series(t.Context(), Query{PropertyObjectID: object, Step: Day})
	require.ErrorIs(t, err, ErrNotFound)
	_, err = s.Series(t.Context(), Query{PropertyObjectID: object, Step: "week"})
	require.ErrorContains(t, err, "day, month or year")
	var many []*codecs.Fact
	for i := range MaxPoints + 1 {
		many = append(many, fact(fmt.Sprint(i), object, time.Unix(int64(i)*86400, 0), "1", "1"))
	}
	s.put(ingested, many[1:]...)
	require.Len(t, s.series(Day, "", "").Series, MaxPoints)
	s.put(ingested, many[0])
	_, err = s.Series(t.Context(), Query{PropertyObjectID: object, Step: Day})
	require.ErrorIs(t, err, ErrTooLong)
	require.Len(t, s.series(Year, "", "").Series, 28)

	require.NoError(t, s.conn.Exec(t.Context(), "DROP TABLE "+s.conn.Table()+" SYNC"))
	_, err = s.Series(t.Context(), Query{PropertyObjectID: object, Step: Day})
	var o *clickhouse.Outage
	require.ErrorAs(t, err, &o)
	require.Equal(t, clickhouse.NoTable, o.Kind)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Series(ctx, Query{PropertyObjectID: object, Step: Day})
	require.ErrorIs(t, err, context.Canceled)
}

func TestGrowthIsExact(t *testing.T) {
	for _, tc := range []struct{ first, last, want string }{
		{"10", "11", "10"}, {"10", "9", "-10"}, {"10", "10", "0"}, {"3", "4", "33.3333333333"}, {"3", "5", "66.6666666667"}, {"3", "1", "-66.6666666667"},
		{"0.01", "9999999999999999.99", "99999999999999999800"}, {"9999999999999999.99", "0", "-100"}, {"0", "5", "null"}, {"0.00", "0", "null"}, {"-10", "5", "-150"},
		{"8", "9", "12.5"}, {"1.07", "1.08", "0.9345794393"},
	} {
		s := &Series{GrowthPercent: Growth(decimal.RequireFromString(tc.first), decimal.RequireFromString(tc.last))}
		require.Equal(t, tc.want, growth(s), "%s -> %s", tc.first, tc.last)
		b, err := json.Marshal(s)
		require.NoError(t, err)
		require.Contains(t, string(b), `"growthPercent":`+tc.want+"}", "a JSON number")
	}
}

func TestTheAnswerIsTheContracts(t *testing.T) {
	s := open(t)
	s.put(ingested, fact("1", object, at("2026-11-01T00:00:00Z"), "12345678.9", "227360.57"), fact("2", object, at("2026-12-01T00:00:00Z"), "13345678.9", "245777.00"))
	b, err := json.Marshal(s.series(Month, "", ""))
	require.NoError(t, err)
	require.JSONEq(t, `{"propertyObjectId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01","step":"month","series":[
		{"period":"2026-11","price":"12345678.90","pricePerMeter":"227360.57","facts":1},{"period":"2026-12","price":"13345678.90","pricePerMeter":"245777.00","facts":1}],
		"growthPercent":8.1000984471}`, string(b))
	empty, err := json.Marshal(s.series(Month, "2030-01-01T00:00:00Z", ""))
	require.NoError(t, err)
	require.Contains(t, string(empty), `"series":[],"growthPercent":null`)
}

func TestTheDocumentedSQLIsTheOneThatIsRun(t *testing.T) {
	doc, err := os.ReadFile("../../docs/price-history-sql.md")
	require.NoError(t, err)
	require.Contains(t, string(doc), "```sql\n"+seriesSQL+"```")
	require.NotContains(t, strings.ToUpper(seriesSQL), "FINAL")
}

// model is the reference: facts by id, the newest ingestion wins.
type model map[string]version

type version struct {
	*codecs.Fact
	ingested time.Time
}

func (m model) series(q Query) (points []Point, growth string) {
	type last struct {
		version
		n uint64
	}
	periods := map[string]last{}
	for _, v := range m {
		if v.PropertyObjectID != q.PropertyObjectID || !q.From.IsZero() && v.EventTime.Before(q.From) || !q.To.IsZero() && v.EventTime.After(q.To) {
			continue
		}
		name := v.EventTime.UTC().Format(map[Step]string{Day: "2006-01-02", Month: "2006-01", Year: "2006"}[q.Step])
		p := periods[name]
		if p.Fact == nil || v.EventTime.After(p.EventTime) || v.EventTime.Equal(p.EventTime) && v.FactID > p.FactID {
			p.version = v
		}
		p.n++
		periods[name] = p
	}
	names := make([]string, 0, len(periods))
	for name := range periods {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		p := periods[name]
		points = append(points, Point{name, p.NewPrice.StringFixed(2), p.NewPricePerMeter.StringFixed(2), p.n})
	}
	growth = "null"
	if len(names) > 1 {
		first, final := periods[names[0]].NewPricePerMeter, periods[names[len(names)-1]].NewPricePerMeter
		if !first.IsZero() {
			growth = final.Sub(first).Mul(decimal.New(100, 0)).DivRound(first, 10).String()
		}
	}
	return points, growth
}

// TestSeriesEqualTheModel inserts random facts with repeats, corrections and times out of order, merged now and then, and asks
// for random series.
func TestSeriesEqualTheModel(t *testing.T) {
	s := open(t)
	rapid.Check(t, func(rt *rapid.T) {
		if err := s.conn.Exec(context.Background(), "TRUNCATE TABLE "+s.conn.Table()); err != nil {
			rt.Fatal(err)
		}
		m := model{}
		objects := []uuid.UUID{uuid.New(), uuid.New()}
		base := at("2025-12-30T00:00:00Z").Unix()
		moment := rapid.Custom(func(t *rapid.T) time.Time {
			span := rapid.SampledFrom([]int64{3, 86400, 40 * 86400, 3, 86400, 40 * 86400, 500 * 86400}).Draw(t, "span")
			return time.Unix(base+rapid.Int64Range(-span, span).Draw(t, "second"), 0).UTC()
		})
		clock := ingested
		for range rapid.IntRange(1, 4).Draw(rt, "batches") {
			clock = clock.Add(time.Duration(rapid.IntRange(1, 100).Draw(rt, "pause")) * time.Second)
			var facts []*codecs.Fact
			for range rapid.IntRange(1, 12).Draw(rt, "facts") {
				owner := rapid.IntRange(0, 1).Draw(rt, "object")
				id := fmt.Sprintf("%s-%d", objects[owner], rapid.IntRange(0, 15).Draw(rt, "id"))
				f := fact(id, objects[owner], moment.Draw(rt, "at"), rapid.StringMatching(`[0-9]{1,6}\.[0-9]{2}`).Draw(rt, "price"), rapid.SampledFrom([]string{"0", "0.01", "3", "7.77", "100000.05", "9999999999999999.99"}).Draw(rt, "ppm"))
				if old, ok := m[id]; ok && (rapid.Bool().Draw(rt, "repeat") || old.ingested.Equal(clock)) {
					f = old.Fact // of one second, all versions of a fact are the same event
				}
				m[id] = version{f, clock}
				facts = append(facts, f)
			}
			s.put(clock, facts...)
			if rapid.IntRange(0, 9).Draw(rt, "merge") == 0 {
				if err := s.conn.Exec(context.Background(), "OPTIMIZE TABLE "+s.conn.Table()+" FINAL"); err != nil {
					rt.Fatal(err)
				}
			}
		}
		for range 3 {
			q := Query{PropertyObjectID: rapid.SampledFrom(objects).Draw(rt, "of"), Step: rapid.SampledFrom([]Step{Day, Month, Year}).Draw(rt, "step")}
			if rapid.Bool().Draw(rt, "bounded") {
				q.From, q.To = moment.Draw(rt, "from"), moment.Draw(rt, "to")
			}
			points, growthWant := m.series(q)
			got, err := s.Series(context.Background(), q)
			if errors.Is(err, ErrNotFound) && len(points) == 0 {
				continue
			}
			if err != nil {
				rt.Fatal(err)
			}
			if fmt.Sprint(got.Series) != fmt.Sprint(points) || growth(got) != growthWant {
				rt.Fatalf("%v\n got %v %s\nwant %v %s", q, got.Series, growth(got), points, growthWant)
			}
		}
	})
}
