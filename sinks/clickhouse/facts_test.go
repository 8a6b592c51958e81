package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/record"
)

// stored is a row as the server holds it.
type stored struct {
	codecs.Fact
	ingested time.Time
	brand    *uuid.UUID
}

func readAll(t testing.TB, conn *Conn, where string) map[string]stored {
	t.Helper()
	names := make([]string, 0, 21)
	for _, c := range FactColumns() {
		names = append(names, c.Name)
	}
	rows, err := conn.Query(context.Background(), "SELECT "+strings.Join(names, ", ")+" FROM "+conn.Table()+" "+where)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	got := map[string]stored{}
	for rows.Next() {
		var s stored
		var oldPrice, oldPerMeter *decimal.Decimal
		if err := rows.Scan(&s.FactID, &s.SourceEventID, &s.PropertyObjectID, &s.DeveloperID, &s.TenantID, &s.ProjectID, &s.BuildingID, &s.LayoutGroupID,
			&s.LayoutID, &s.AreaTotal, &oldPrice, &s.NewPrice, &oldPerMeter, &s.NewPricePerMeter, &s.CurrencyID, &s.CurrencyIsoCode, &s.EventTime,
			&s.ingested, &s.brand, &s.ChangeSource, &s.TransformVersion); err != nil {
			t.Fatal(err)
		}
		if oldPrice != nil {
			s.OldPrice = decimal.NewNullDecimal(*oldPrice)
		}
		if oldPerMeter != nil {
			s.OldPricePerMeter = decimal.NewNullDecimal(*oldPerMeter)
		}
		got[s.FactID] = s
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return got
}

// same compares a fact with what was stored, to the last decimal.
func same(want *codecs.Fact, got stored) error {
	null := func(d decimal.NullDecimal) string {
		if !d.Valid {
			return "NULL"
		}
		return d.Decimal.StringFixed(2)
	}
	line := func(f *codecs.Fact) string {
		return strings.Join([]string{f.FactID, f.SourceEventID, f.PropertyObjectID.String(), f.DeveloperID.String(), f.TenantID, f.ProjectID.String(),
			fmt.Sprint(f.BuildingID, f.LayoutGroupID, f.LayoutID), f.AreaTotal.StringFixed(2), null(f.OldPrice), f.NewPrice.StringFixed(2), null(f.OldPricePerMeter),
			f.NewPricePerMeter.StringFixed(2), fmt.Sprint(f.CurrencyID), f.CurrencyIsoCode, f.EventTime.UTC().Format(time.RFC3339Nano), f.ChangeSource,
			fmt.Sprint(f.TransformVersion)}, "|")
	}
	if w, g := line(want), line(&got.Fact); w != g {
		return fmt.Errorf("stored %s\nwanted %s", g, w)
	}
	if got.brand != nil {
		return errors.New("BrandId is not null")
	}
	return nil
}

func TestABatchIsStoredColumnByColumn(t *testing.T) {
	_, conn := migrated(t, "")
	log, ingested, batches := &logBuffer{}, 0, []int{}
	s := NewFactSink(conn, nil, nil, log.events(), Metrics{Ingested: func(n int) { ingested += n }, BatchSize: func(n int) { batches = append(batches, n) }},
		func() time.Time { return noon.Add(1500 * time.Millisecond) })
	batch := rows(0, 1000)
	batch[3].Fact.OldPrice, batch[4].Fact.OldPricePerMeter = decimal.NullDecimal{}, decimal.NewNullDecimal(decimal.New(-5, -2))
	require.NoError(t, s.Flush(t.Context(), batch))
	got := readAll(t, conn, "")
	require.Len(t, got, 1000)
	for _, r := range batch {
		require.NoError(t, same(r.Fact, got[r.Fact.FactID]))
		require.Equal(t, noon.Add(time.Second), got[r.Fact.FactID].ingested)
	}
	require.Equal(t, 1000, ingested)
	require.Equal(t, []int{1000}, batches)
	require.Contains(t, log.String(), `"event":"consumed","batch_size":1000,"offsets":"0:[0..999] 1:[1..997] 2:[2..998]"`)
	require.Contains(t, log.String(), `"event":"flushed","rows":1000`)
}

func TestABatchTwiceCollapsesToTheNewerRows(t *testing.T) {
	_, conn := migrated(t, "")
	at := noon
	s := NewFactSink(conn, nil, nil, (&logBuffer{}).events(), Metrics{}, func() time.Time { return at })
	require.NoError(t, s.Flush(t.Context(), rows(0, 50)))
	at = noon.Add(time.Minute)
	require.NoError(t, s.Flush(t.Context(), rows(0, 50)))
	exec(t, conn, "OPTIMIZE TABLE FACTS FINAL")
	require.Equal(t, 50, count(t, conn, ""))
	for _, r := range readAll(t, conn, "") {
		require.Equal(t, at, r.ingested)
	}
}

func TestABatchOfMoreThanAHundredMonthsIsSplit(t *testing.T) {
	for name, params := range map[string]string{"the server's default": "", "a server that allows fewer": "?max_partitions_per_insert_block=7"} {
		t.Run(name, func(t *testing.T) {
			_, conn := migrated(t, params)
			var batch []Row
			for i := range 300 { // from 1970 to 2106, both ends
				at := time.Unix(int64(i)*(1<<32-1)/299, 0)
				batch = append(batch, Row{Fact: fact(i, at), Record: &record.Record{}})
			}
			s := sink(conn, nil, &logBuffer{}, Metrics{})
			require.NoError(t, s.Flush(t.Context(), batch))
			got := readAll(t, conn, "")
			require.Len(t, got, 300)
			for _, r := range batch {
				require.NoError(t, same(r.Fact, got[r.Fact.FactID]))
			}
			require.NoError(t, s.Flush(t.Context(), rows(1000, 20)))
		})
	}
}

func TestSplitKeepsEveryFactAndTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		months := rapid.SliceOf(rapid.IntRange(0, 60)).Draw(t, "months")
		var facts []*codecs.Fact
		for i, m := range months {
			facts = append(facts, fact(i, time.Date(2020, time.Month(1+m), 1+i%28, 23, 59, 59, 0, time.UTC)))
		}
		seen := map[string]int{}
		parts := splitByMonth(facts, limit)
		inPart := map[int]int{}
		for p, part := range parts {
			distinct := map[int]bool{}
			for _, f := range part {
				seen[f.FactID]++
				distinct[month(f)] = true
				if before, ok := inPart[month(f)]; ok && before != p {
					t.Fatalf("month %d is in two inserts", month(f))
				}
				inPart[month(f)] = p
			}
			if len(distinct) > limit {
				t.Fatalf("%d months in one insert", len(distinct))
			}
		}
		if len(seen) != len(facts) {
			t.Fatalf("%d of %d facts", len(seen), len(facts))
		}
		for id, n := range seen {
			if n != 1 {
				t.Fatalf("%s is in %d inserts", id, n)
			}
		}
		if len(inPart) <= limit && len(parts) != 1 {
			t.Fatal("split without need")
		}
	})
}

func TestARowThatTheServerRefusesIsDeadLetteredAlone(t *testing.T) {
	_, conn := migrated(t, "")
	exec(t, conn, "ALTER TABLE FACTS ADD CONSTRAINT dba CHECK NewPrice != 13")
	batch := rows(0, 100)
	for _, i := range []int{0, 41, 42, 99} {
		batch[i].Fact.NewPrice = decimal.New(1300, -2)
	}
	l, ingested := &letters{}, 0
	require.NoError(t, sink(conn, l, &logBuffer{}, Metrics{Ingested: func(n int) { ingested += n }}).Flush(t.Context(), batch))
	require.Equal(t, 96, count(t, conn, "DISTINCT FactId"))
	require.Equal(t, 96, ingested)
	require.Len(t, l.got, 4)
	for i, at := range []int{0, 41, 42, 99} {
		require.Same(t, batch[at].Record, l.got[i].Record)
		require.Equal(t, codecs.CodeDatabaseRejected, l.got[i].Code)
		require.Contains(t, l.got[i].Reason, "dba")
	}
}

func TestARefusedRowWaitsForItsDeadLetter(t *testing.T) {
	_, conn := migrated(t, "")
	exec(t, conn, "ALTER TABLE FACTS ADD CONSTRAINT dba CHECK NewPrice != 13")
	batch := rows(0, 3)
	batch[1].Fact.NewPrice = decimal.New(13, 0)
	l := &letters{err: errors.New("Kafka is away")}
	require.ErrorContains(t, sink(conn, l, &logBuffer{}, Metrics{}).Flush(t.Context(), batch), "Kafka is away")
}

func TestATableThatRefusesEveryRowIsAnOutage(t *testing.T) {
	_, conn := migrated(t, "")
	exec(t, conn, "ALTER TABLE FACTS ADD CONSTRAINT dba CHECK 0")
	l := &letters{}
	err := sink(conn, l, &logBuffer{}, Metrics{}).Flush(t.Context(), rows(0, 1000))
	var o *Outage
	require.ErrorAs(t, err, &o)
	require.Equal(t, RefusesAll, o.Kind)
	require.Empty(t, l.got)
	exec(t, conn, "ALTER TABLE FACTS DROP CONSTRAINT dba")
	require.NoError(t, sink(conn, l, &logBuffer{}, Metrics{}).Flush(t.Context(), rows(0, 1000)))
	require.Equal(t, 1000, count(t, conn, "DISTINCT FactId"))
}

// decimals are texts at and around every edge: signs, rounding, precision of the columns, exponents, strings.
var decimals = rapid.OneOf(
	rapid.SampledFrom([]string{"0", "-0", "0.00", "0.004", "0.005", "-0.005", "0.0049999999999999999999", "1e2", "1E-2", "1e-999999999", "1e15", "1e16",
		"99999999.99", "99999999.994", "99999999.995", "100000000", "9999999999999999.99", "9999999999999999.994", "9999999999999999.995",
		"10000000000000000", "-9999999999999999.99", "-10000000000000000", "123456789012345.67", "12345678901234567", "0.1", "54.30",
		`"12.345"`, `"1e3"`, `" 1"`, `""`, "null", `"null"`, "true", "[]", "1e999999999", "0.00000000000000000000000000000000000000001"}),
	rapid.StringMatching(`-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,6})?([eE][-+]?[0-9]{1,2})?`),
	rapid.StringMatching(`(0|[1-9][0-9]{0,8})(\.[0-9]{1,3})?`),
)

var moments = rapid.OneOf(
	rapid.SampledFrom([]string{"1970-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "1970-01-01T00:00:00.999999999Z", "2106-02-07T06:28:15Z", "2106-02-07T06:28:15.9999999Z",
		"2106-02-07T06:28:16Z", "0001-01-01T00:00:00Z", "2026-11-30T23:59:59.9999999+14:00", "1970-01-01T13:59:59+14:00", "2026-01-01T00:00:00-14:00", "2016-12-31T23:59:60Z"}),
	rapid.Custom(func(t *rapid.T) string {
		at := time.Unix(rapid.Int64Range(-1e6, 1<<32+1e6).Draw(t, "unix"), rapid.Int64Range(0, 999999999).Draw(t, "nanos"))
		return at.In(time.FixedZone("", 60*rapid.IntRange(-14*60, 14*60).Draw(t, "offset"))).Format(time.RFC3339Nano)
	}),
)

func payload(t *rapid.T) string {
	// Most fields of an event are sound, or hardly one would be accepted as a whole.
	mostly := func(sound string, edge *rapid.Generator[string]) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			if rapid.IntRange(0, 3).Draw(t, "edge") > 0 {
				return sound
			}
			return edge.Draw(t, "value")
		})
	}
	integer := rapid.OneOf(rapid.SampledFrom([]string{"1", "0", "-1", "9223372036854775807", "9223372036854775808", "2147483648", "1.0", `"5"`, "null"}), rapid.SampledFrom([]string{"7", "9001"}))
	small := rapid.SampledFrom([]string{"643", "0", "-32768", "32767", "32768", "-1", "643"})
	text := rapid.OneOf(rapid.SampledFrom([]string{`"RUB"`, `"USD"`, `""`, `"\u0000"`, `"'\\` + "`" + `"`, `"\ud83d\ude00"`, `"₽"`}), rapid.Just(`"RUB"`))
	guid := func(name string) string {
		return `"` + uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, name, rapid.IntRange(0, 3).Draw(t, name))).String() + `"`
	}
	field := func(name, value string) string { return `"` + name + `":` + value }
	return `{` + strings.Join([]string{
		field("PropertyObjectId", guid("object")), field("DeveloperId", guid("developer")), field("ProjectId", guid("project")),
		field("BuildingId", mostly("101", integer).Draw(t, "building")), field("LayoutGroupId", mostly("7", integer).Draw(t, "group")), field("LayoutId", mostly("9001", integer).Draw(t, "layout")),
		field("AreaTotal", mostly("54.30", decimals).Draw(t, "area")), field("OldPrice", mostly("null", decimals).Draw(t, "old")), field("NewPrice", mostly("12345678.905", decimals).Draw(t, "new")),
		field("OldPricePerMeter", mostly("null", decimals).Draw(t, "oldpm")), field("NewPricePerMeter", mostly("null", decimals).Draw(t, "newpm")),
		field("CurrencyId", mostly("643", small).Draw(t, "currency")), field("CurrencySnapshot", `{"CurrencyId":643,"IsoCode":`+text.Draw(t, "iso")+`,"Name":"x"}`),
		field("ChangedAt", `"`+mostly("2026-11-30T10:15:30.1234567+03:00", moments).Draw(t, "at")+`"`),
	}, ",") + `}`
}

// TestNoAcceptedFactCanFailAnInsert feeds values at the edges of every column through the codec: whatever it accepts, the
// server takes and holds to the last decimal.
func TestNoAcceptedFactCanFailAnInsert(t *testing.T) {
	_, conn := migrated(t, "")
	in := NewInserter(conn)
	accepted, seen := 0, 0
	clock := time.Date(2106, 2, 7, 6, 28, 15, 0, time.UTC)
	rapid.Check(t, func(rt *rapid.T) {
		var facts []*codecs.Fact
		for range rapid.IntRange(20, 40).Draw(rt, "events") {
			seen++
			id := uuid.NewSHA1(uuid.NameSpaceURL, fmt.Append(nil, seen)).String()
			rec := &record.Record{Value: []byte(`{"EventId":"` + id + `","ContractVersion":1,"Payload":` + payload(rt) + `}`)}
			if p, fault := codecs.DecodePrice(rec, clock); fault == nil {
				facts = append(facts, &p.Fact)
			}
		}
		if len(facts) == 0 {
			return
		}
		accepted += len(facts)
		if err := in.Insert(context.Background(), facts, noon); err != nil {
			rt.Fatal(err)
		}
		ids := make([]string, 0, len(facts))
		for _, f := range facts {
			ids = append(ids, "'"+f.FactID+"'")
		}
		got := readAll(t, conn, "WHERE FactId IN ("+strings.Join(ids, ",")+")")
		for _, f := range facts {
			if err := same(f, got[f.FactID]); err != nil {
				rt.Fatal(err)
			}
		}
	})
	require.Greater(t, accepted, 600, "of %d events; the generator must reach the server", seen)
	t.Logf("%d of %d events accepted", accepted, seen)
}

func TestAnInsertIsSynchronousWhateverTheProfileSays(t *testing.T) {
	_, conn := migrated(t, "?async_insert=1&wait_for_async_insert=0")
	exec(t, conn, "ALTER TABLE FACTS ADD COLUMN Seen String DEFAULT concat(toString(getSetting('async_insert')), toString(getSetting('distributed_foreground_insert')))")
	require.NoError(t, sink(conn, nil, &logBuffer{}, Metrics{}).Flush(t.Context(), rows(0, 10)))
	seen, err := conn.strings(t.Context(), "SELECT DISTINCT Seen FROM "+conn.Table())
	require.NoError(t, err)
	require.Equal(t, [][]string{{"falsetrue"}}, seen)
}

func BenchmarkInsert(b *testing.B) {
	for _, n := range []int{1000, 10000, 100000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cfg := Config{DSN: devtest.ClickHouse(b)}
			if _, err := Migrate(b.Context(), cfg); err != nil {
				b.Fatal(err)
			}
			conn, err := Open(cfg)
			if err != nil {
				b.Fatal(err)
			}
			in := NewInserter(conn)
			facts := make([]*codecs.Fact, n)
			for i := range facts {
				facts[i] = fact(i, noon.Add(time.Duration(i)*time.Second))
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := in.Insert(b.Context(), facts, noon); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
			if err := conn.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
