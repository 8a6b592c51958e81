package backfill

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/sinks/clickhouse"
	"github.com/pin-marketplace/vitrina/views/pricehistory"
)

// manyLines has good rows and, at every seventh line, a bad one.
func manyLines(n int) (content string, good, bad int) {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		if i%7 == 0 {
			b.WriteString("{}\n")
			bad++
			continue
		}
		b.WriteString(jsonLine(now.Add(-time.Duration(i)*time.Minute).Format(time.RFC3339), fmt.Sprint(i)) + "\n")
		good++
	}
	return b.String(), good, bad
}

var errCrash = errors.New("crash")

// TestARunThatCrashesAnywhereIsResumed crashes runs before and after inserts, at random, until the file is through.
func TestARunThatCrashesAnywhereIsResumed(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		lines := rapid.IntRange(0, 120).Draw(rt, "lines")
		content, good, bad := manyLines(lines)
		file := write(t, "prices.jsonl", content)
		m, cfg := newMemory(), config(t)
		cfg.BatchRows = rapid.IntRange(1, 40).Draw(rt, "batch")
		var report FileReport
		for attempt := 0; ; attempt++ {
			crashAt := rapid.IntRange(1, 4).Draw(rt, "crash at")
			afterInsert := rapid.Bool().Draw(rt, "after the insert")
			base := m.writes
			crash := func(n int) error {
				if n-base == crashAt && attempt < 20 {
					return errCrash
				}
				return nil
			}
			m.before, m.after = nil, nil
			if afterInsert {
				m.after = crash
			} else {
				m.before = crash
			}
			reports, err := Run(context.Background(), cfg, m, discard(), file)
			if err == nil {
				report = reports[0]
				break
			}
			if !errors.Is(err, errCrash) {
				rt.Fatal(err)
			}
		}
		if len(m.facts) != good || report.Written != int64(good) || report.Rejected != int64(bad) || report.Rows != int64(lines) {
			rt.Fatalf("%d facts of %d; %+v", len(m.facts), good, report)
		}
		got := rejectsOf(t, report)
		if len(got) != bad {
			rt.Fatalf("%d rejects of %d", len(got), bad)
		}
		for i, r := range got {
			if r.Line != int64(7*(i+1)) {
				rt.Fatalf("reject %d is line %d", i, r.Line)
			}
		}
		writes := m.writes
		reports, err := Run(context.Background(), cfg, m, discard(), file)
		if err != nil || m.writes != writes || !reports[0].AlreadyDone || reports[0].Written != int64(good) {
			rt.Fatalf("the second run: %v %+v", err, reports)
		}
	})
}

func TestACheckpointBelongsToItsContentAndTarget(t *testing.T) {
	content, good, _ := manyLines(20)
	m, cfg := newMemory(), config(t)
	file := write(t, "a.jsonl", content)
	run := func(cfg Config, file string) FileReport {
		t.Helper()
		reports, err := Run(t.Context(), cfg, m, discard(), file)
		require.NoError(t, err)
		return reports[0]
	}
	require.False(t, run(cfg, file).AlreadyDone)
	require.True(t, run(cfg, write(t, "renamed.jsonl", content)).AlreadyDone)
	require.False(t, run(cfg, write(t, "a.jsonl", content+jsonLine("2026-01-01T00:00:00Z", "5"))).AlreadyDone, "other content")
	require.Len(t, m.facts, good+1)
	other := cfg
	other.Target = "elsewhere"
	require.False(t, run(other, file).AlreadyDone, "other target")
	cfg.Again = true
	writes := m.writes
	require.False(t, run(cfg, file).AlreadyDone)
	require.Greater(t, m.writes, writes)
	cfg.Again = false
	saved, err := filepath.Glob(filepath.Join(cfg.StateDir, "backfill", "*.json"))
	require.NoError(t, err)
	for _, path := range saved {
		require.NoError(t, os.WriteFile(path, []byte("{"), 0o644))
	}
	_, err = Run(t.Context(), cfg, m, discard(), file)
	require.ErrorContains(t, err, "delete it")
}

// TestRunTwiceReadersSeeNoDuplicate is the acceptance test on the real engine.
func TestRunTwiceReadersSeeNoDuplicate(t *testing.T) {
	ch := clickhouse.Config{DSN: devtest.ClickHouse(t)}
	_, err := clickhouse.Migrate(t.Context(), ch)
	require.NoError(t, err)
	conn, err := clickhouse.Open(ch)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	require.NoError(t, conn.Exec(t.Context(), "SYSTEM STOP MERGES "+conn.Table()))
	content, good, _ := manyLines(5000)
	file := write(t, "a.jsonl", content)
	cfg := config(t)
	cfg.BatchRows, cfg.Again = 1000, true
	reader := pricehistory.New(conn)
	var first *pricehistory.Series
	for range 2 {
		reports, err := Run(t.Context(), cfg, clickhouse.NewInserter(conn), discard(), file)
		require.NoError(t, err)
		require.EqualValues(t, good, reports[0].Written)
		s, err := reader.Series(t.Context(), pricehistory.Query{PropertyObjectID: uuid.MustParse(objectID), Step: pricehistory.Year})
		require.NoError(t, err)
		require.EqualValues(t, good, s.Series[0].Facts)
		if first == nil {
			first = s
		}
		require.Equal(t, first, s)
	}
	var rows uint64
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count() FROM "+conn.Table()).Scan(&rows))
	require.EqualValues(t, 2*good, rows, "the duplicates are there, unseen")
}

func TestParquetDecimalsAreTwosComplement(t *testing.T) {
	for want, b := range map[string][]byte{"0": {}, "1": {0, 1}, "-1": {0xFF, 0xFF, 0xFF}, "127": {0x7F}, "-128": {0x80}, "255": {0, 0xFF}, "-32768": {0x80, 0}} {
		require.Equal(t, want, signed(b).String())
	}
	for _, n := range []int64{0, -1, 1234567890123456789, -1234567890123456789} {
		b := wide(n)
		require.Equal(t, big.NewInt(n).String(), signed(b[:]).String())
	}
}

// BenchmarkJudge reads and judges JSON lines; the sink costs nothing.
func BenchmarkJudge(b *testing.B) {
	content, _, _ := manyLines(100000)
	file := write(b, "a.jsonl", content)
	cfg := config(b)
	cfg.DryRun, cfg.BatchRows = true, 0
	b.SetBytes(int64(len(content)))
	for b.Loop() {
		if _, err := Run(b.Context(), cfg, newMemory(), discard(), file); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(100000*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
