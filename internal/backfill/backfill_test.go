package backfill

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// memory is a sink that keeps facts by id, and fails as told.
type memory struct {
	mu     sync.Mutex
	facts  map[string]*codecs.Fact
	writes int
	before func(n int) error // before the n-th write
	after  func(n int) error // after it: the facts are in, the answer is lost
	refuse func(*codecs.Fact) bool
}

func (m *memory) Write(_ context.Context, facts []*codecs.Fact, _ func() time.Time) ([]clickhouse.Refusal, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if m.before != nil {
		if err := m.before(m.writes); err != nil {
			return nil, err
		}
	}
	var refused []clickhouse.Refusal
	for i, f := range facts {
		if m.refuse != nil && m.refuse(f) {
			refused = append(refused, clickhouse.Refusal{Index: i, Why: "no"})
			continue
		}
		m.facts[f.FactID] = f
	}
	if m.after != nil {
		if err := m.after(m.writes); err != nil {
			return nil, err
		}
	}
	return refused, nil
}

func newMemory() *memory { return &memory{facts: map[string]*codecs.Fact{}} }

func config(t testing.TB) Config {
	return Config{StateDir: t.TempDir(), Target: "h:9000/db.facts", BatchRows: 10, Clock: func() time.Time { return now },
		Backoff: backoff.Config{Min: time.Millisecond, Max: 2 * time.Millisecond}}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

const (
	objectID  = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01"
	developer = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a02"
	project   = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a03"
	header    = "PropertyObjectId,DeveloperId,ProjectId,BuildingId,LayoutGroupId,LayoutId,AreaTotal,OldPrice,NewPrice,CurrencyId,CurrencyIsoCode,ChangedAt"
)

func csvLine(changedAt, price string) string {
	return strings.Join([]string{objectID, developer, project, "101", "7", "9001", "54.30", "", price, "643", "RUB", changedAt}, ",")
}

func jsonLine(changedAt, price string) string {
	return fmt.Sprintf(`{"PropertyObjectId":%q,"DeveloperId":%q,"ProjectId":%q,"BuildingId":101,"LayoutGroupId":7,"LayoutId":9001,"AreaTotal":54.30,"OldPrice":null,`+
		`"NewPrice":%s,"CurrencyId":643,"CurrencySnapshot":{"IsoCode":"RUB"},"ChangedAt":%q}`, objectID, developer, project, price, changedAt)
}

func rejectsOf(t *testing.T, report FileReport) []Reject {
	t.Helper()
	if report.RejectedReport == "" {
		return nil
	}
	b, err := os.ReadFile(report.RejectedReport)
	require.NoError(t, err)
	var list []Reject
	for line := range strings.Lines(string(b)) {
		var r Reject
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		list = append(list, r)
	}
	return list
}

func TestARowIsIdentifiedByObjectAndTimeInRoundTripForm(t *testing.T) {
	for changedAt, o := range map[string]string{
		"2026-11-30T10:15:30.1234567+03:00":   "2026-11-30T10:15:30.1234567+03:00",
		"2026-11-30T10:15:30Z":                "2026-11-30T10:15:30.0000000+00:00",
		"2026-11-30T10:15:30.123456789-11:30": "2026-11-30T10:15:30.1234567-11:30",
		"1970-01-01T14:00:00+14:00":           "1970-01-01T14:00:00.0000000+14:00",
	} {
		m, cfg := newMemory(), config(t)
		cfg.Clock = func() time.Time { return now.Add(24 * time.Hour) }
		_, err := Run(t.Context(), cfg, m, discard(), write(t, "a.jsonl", jsonLine(changedAt, "100")))
		require.NoError(t, err)
		f := m.facts["backfill:"+objectID+":"+o]
		require.NotNil(t, f, "%v", m.facts)
		require.Equal(t, f.FactID, f.SourceEventID)
		require.Equal(t, "1.84", f.NewPricePerMeter.StringFixed(2))
	}
}

// parquetPrice is a row of a Parquet file with every kind of column.
type parquetPrice struct {
	PropertyObjectID string   `parquet:"PropertyObjectId"`
	DeveloperID      [16]byte `parquet:"developerId,uuid"`
	ProjectID        string   `parquet:"ProjectId"`
	BuildingID       int64    `parquet:"BuildingId"`
	LayoutGroupID    int32    `parquet:"LayoutGroupId"`
	LayoutID         int64    `parquet:"LayoutId"`
	AreaTotal        int32    `parquet:"AreaTotal,decimal(2:9)"`
	OldPrice         *int64   `parquet:"OldPrice,optional,decimal(2:18)"`
	NewPrice         [16]byte `parquet:"NewPrice,decimal(2:38)"`
	OldPricePerMeter *string  `parquet:"OldPricePerMeter,optional"`
	CurrencyID       int16    `parquet:"CurrencyId"`
	CurrencySnapshot struct {
		IsoCode string `parquet:"IsoCode"`
		Name    string `parquet:"Name"`
	} `parquet:"CurrencySnapshot"`
	ChangedAt time.Time `parquet:"ChangedAt,timestamp(microsecond)"`
	Note      string    `parquet:"Note"`
}

func wide(n int64) (b [16]byte) {
	v := big.NewInt(n)
	if n < 0 {
		v.Add(v, new(big.Int).Lsh(big.NewInt(1), 128))
	}
	v.FillBytes(b[:])
	return b
}

// TestEveryFormatGivesTheSameFacts loads one set of rows in every format.
func TestEveryFormatGivesTheSameFacts(t *testing.T) {
	var jsonl, semicolons strings.Builder
	csvText := "\uFEFF" + header + ",OldPricePerMeter,Note\r\n"
	semicolons.WriteString(strings.ReplaceAll("isoCode,"+strings.Replace(header, "CurrencyIsoCode,", "", 1)+",oldPricePerMeter\n", ",", ";"))
	var rows []parquetPrice
	want := map[string]*codecs.Fact{}
	for i := range 35 {
		at := now.Add(-time.Duration(i)*time.Hour - 123456*time.Microsecond)
		when, cents := at.Format(time.RFC3339Nano), int64(i)*123456789+1
		price := fmt.Sprintf("%d.%02d", cents/100, cents%100)
		old, oldPerMeter := "", "-3.21"
		p := parquetPrice{PropertyObjectID: objectID, DeveloperID: uuid.MustParse(developer), ProjectID: project, BuildingID: 101, LayoutGroupID: 7, LayoutID: 9001, AreaTotal: 5430,
			NewPrice: wide(cents), CurrencyID: 643, ChangedAt: at, OldPricePerMeter: &oldPerMeter, Note: "x"}
		p.CurrencySnapshot.IsoCode = "RUB"
		oldJSON := "null"
		if i%2 == 0 {
			old, oldJSON = "-7.50", `"-7.50"`
			n := int64(-750)
			p.OldPrice = &n
		}
		rows = append(rows, p)
		jsonl.WriteString(strings.Replace(jsonLine(when, price), `"OldPrice":null`, `"OldPrice":`+oldJSON+`,"OldPricePerMeter":-3.21`, 1) + "\n")
		fields := strings.Split(csvLine(when, price), ",")
		fields[7] = old
		csvText += strings.Join(fields, ",") + ",-3.21,\"a \"\"note\"\", with\nlines\"\r\n"
		semicolons.WriteString("RUB;" + strings.Join(append(append([]string{}, fields[:10]...), fields[11]), ";") + ";-3.21\n")
		decoded, fault := codecs.DecodeBackfillPrice([]byte(strings.Replace(jsonLine(when, price), `"OldPrice":null`, `"OldPrice":`+oldJSON+`,"OldPricePerMeter":-3.21`, 1)), now)
		require.Nil(t, fault)
		want[decoded.FactID] = &decoded.Fact
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write([]byte(csvText))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	parquetFile := filepath.Join(t.TempDir(), "prices.parquet")
	require.NoError(t, parquet.WriteFile(parquetFile, rows, parquet.MaxRowsPerRowGroup(10)))
	for name, file := range map[string]string{
		"JSON lines": write(t, "prices.jsonl", jsonl.String()), "CSV": write(t, "prices.csv", csvText), "CSV with semicolons": write(t, "PRICES.CSV", semicolons.String()),
		"gzip": write(t, "prices.csv.gz", zipped.String()), "Parquet": parquetFile,
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			var last Progress
			cfg := config(t)
			cfg.Progress = func(p Progress) { last = p }
			reports, err := Run(t.Context(), cfg, m, discard(), file)
			require.NoError(t, err)
			require.EqualValues(t, 35, reports[0].Written)
			require.Zero(t, reports[0].Rejected, "%v", rejectsOf(t, reports[0]))
			require.Len(t, m.facts, 35)
			for id, f := range want {
				got, err := json.Marshal(m.facts[id])
				require.NoError(t, err)
				expected, err := json.Marshal(f)
				require.NoError(t, err)
				require.JSONEq(t, string(expected), string(got))
			}
			require.Equal(t, Progress{File: file, Bytes: last.Size, Size: last.Size, Rows: 35, Written: 35}, last)
			switch name {
			case "CSV", "gzip":
				require.Equal(t, []string{"Note"}, reports[0].IgnoredColumns)
			case "Parquet":
				require.Equal(t, []string{"CurrencySnapshot.Name", "Note"}, reports[0].IgnoredColumns)
			}
		})
	}
}

func TestRejectedRowsAreReportedWithTheirLine(t *testing.T) {
	const good, late = "2026-11-01T00:00:00Z", "2026-11-30T13:00:01Z"
	for name, tc := range map[string]struct {
		file, content string
		want          []Reject
		written       int64
	}{
		"JSON lines": {"a.jsonl", strings.Join([]string{jsonLine(good, "1"), "", "{", jsonLine(late, "1"), `[1]`, jsonLine(good, "-1"), jsonLine("2026-11-02T00:00:00Z", "99999999999999999"),
			strings.Repeat("x", maxLine+1), jsonLine("2026-11-03T00:00:00", "1"), jsonLine("2026-11-02T00:00:00Z", "2")}, "\n"),
			[]Reject{{Line: 3, Code: "CONTRACT_UNDECODABLE"}, {Line: 4, Code: "CONTRACT_INVALID_FIELD", Field: "ChangedAt"}, {Line: 5, Code: "CONTRACT_UNDECODABLE"},
				{Line: 6, Code: "CONTRACT_INVALID_FIELD", Field: "NewPrice"}, {Line: 7, Code: "VALUE_OUT_OF_RANGE", Field: "NewPrice"}, {Line: 8, Code: "CONTRACT_UNDECODABLE"},
				{Line: 9, Code: "CONTRACT_INVALID_FIELD", Field: "ChangedAt"}}, 2},
		"CSV": {"a.csv", strings.Join([]string{header, csvLine(good, "1"), "a,b", `x"y,` + csvLine(good, "1"), strings.Replace(csvLine(good, "1"), ",101,", ",1O1,", 1), csvLine(good, "1,5"),
			strings.Replace(csvLine(good, "1"), objectID, "", 1), strings.Replace(csvLine(good, "1"), "RUB", "R\xff", 1), csvLine("2026-11-02T00:00:00Z", `"2"`)}, "\n"),
			[]Reject{{Line: 3, Code: "CONTRACT_UNDECODABLE"}, {Line: 4, Code: "CONTRACT_UNDECODABLE"}, {Line: 5, Code: "CONTRACT_INVALID_FIELD", Field: "BuildingId"},
				{Line: 6, Code: "CONTRACT_UNDECODABLE"}, {Line: 7, Code: "CONTRACT_INVALID_FIELD", Field: "PropertyObjectId"}, {Line: 8, Code: "CONTRACT_UNDECODABLE"}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			for _, dry := range []bool{false, true} {
				m, cfg := newMemory(), config(t)
				cfg.DryRun = dry
				reports, err := Run(t.Context(), cfg, m, discard(), write(t, tc.file, tc.content))
				require.NoError(t, err)
				got := rejectsOf(t, reports[0])
				for i := range got {
					require.NotEmpty(t, got[i].Reason)
					require.Equal(t, reports[0].File, got[i].File)
					got[i].File, got[i].Reason = "", ""
				}
				require.Equal(t, tc.want, got)
				require.EqualValues(t, len(tc.want), reports[0].Rejected)
				require.Equal(t, tc.written, reports[0].Written)
				if dry {
					require.Empty(t, m.facts)
				} else {
					require.Len(t, m.facts, int(tc.written))
				}
			}
		})
	}
}

func TestARowThatClickHouseRefusesIsReported(t *testing.T) {
	m := newMemory()
	m.refuse = func(f *codecs.Fact) bool { return f.NewPrice.String() == "2" }
	reports, err := Run(t.Context(), config(t), m, discard(), write(t, "a.jsonl", jsonLine("2026-11-01T00:00:00Z", "1")+"\n"+jsonLine("2026-11-02T00:00:00Z", "2")))
	require.NoError(t, err)
	require.EqualValues(t, 1, reports[0].Written)
	require.EqualValues(t, 1, reports[0].Rejected)
	got := rejectsOf(t, reports[0])
	require.Len(t, got, 1)
	require.Equal(t, Reject{File: reports[0].File, Line: 2, Code: codecs.CodeDatabaseRejected, Reason: "ClickHouse refuses this fact for good: no"}, got[0])
}

func TestAFileThatCannotBeReadIsAnErrorThatSaysWhy(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.parquet")
	require.NoError(t, parquet.WriteFile(bad, []struct {
		A string  `parquet:"PropertyObjectId"`
		B string  `parquet:"DeveloperId"`
		C string  `parquet:"ProjectId"`
		D int64   `parquet:"BuildingId"`
		E int64   `parquet:"LayoutGroupId"`
		F int64   `parquet:"LayoutId"`
		G int64   `parquet:"AreaTotal"`
		H float64 `parquet:"NewPrice"`
		I int64   `parquet:"CurrencyId"`
		J string  `parquet:"CurrencyIsoCode"`
		K string  `parquet:"ChangedAt"`
	}{{}}))
	for file, want := range map[string]string{
		"/nowhere/a.csv":                       "no such file",
		write(t, "a.xlsx", "x"):                "must end in .csv",
		write(t, "a.csv", ""):                  "begins with a line of column names",
		write(t, "a.csv", "NewPrice,X\n1"):     "there is no column PropertyObjectId, DeveloperId",
		write(t, "a.csv", header+",isoCode\n"): "columns CurrencyIsoCode and isoCode are both CurrencySnapshot.IsoCode",
		write(t, "a.csv", header+"\n\"a,b\n"+csvLine("2026-11-01T00:00:00Z", "1")+"\n"): "line 2: a quote that begins here is not closed",
		write(t, "a.jsonl.gz", "not gzip"):                                              "unpack",
		write(t, "a.parquet", "not parquet"):                                            "open as Parquet",
		bad:                                                                             "column NewPrice: it holds floating-point numbers",
	} {
		m := newMemory()
		_, err := Run(t.Context(), config(t), m, discard(), file)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, file)
		require.Empty(t, m.facts)
	}
	_, err := Run(t.Context(), Config{}, nil, discard())
	require.ErrorContains(t, err, "required")
}

func TestAnOutageIsWaitedOut(t *testing.T) {
	m, cfg := newMemory(), config(t)
	waited := 0
	cfg.Progress = func(p Progress) {
		if p.WaitingOn != "" {
			waited++
			require.Contains(t, p.WaitingOn, "cannot be reached")
		}
	}
	m.before = func(n int) error {
		if n <= 3 {
			return &clickhouse.Outage{Kind: clickhouse.Unreachable, What: "ClickHouse cannot be reached"}
		}
		return nil
	}
	reports, err := Run(t.Context(), cfg, m, discard(), write(t, "a.jsonl", jsonLine("2026-11-01T00:00:00Z", "1")))
	require.NoError(t, err)
	require.Equal(t, 3, waited)
	require.EqualValues(t, 1, reports[0].Written)
	ctx, cancel := context.WithCancel(t.Context())
	m.before = func(int) error { cancel(); return &clickhouse.Outage{Kind: clickhouse.Unreachable} }
	_, err = Run(ctx, cfg, m, discard(), write(t, "b.jsonl", jsonLine("2026-11-02T00:00:00Z", "1")))
	require.ErrorIs(t, err, context.Canceled)
}
