// Package bench measures the whole way of a view, from Apache Kafka to PostgreSQL with fsync, beside what one writes in a week: a
// consumer with one transaction for each event. Both run in one run on one machine; what counts is their ratio.
package bench

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

const (
	views       = 1_000_000 // distinct ones; 5 % come twice
	plainEvents = 40_000    // what the plain consumer is measured over: it would take minutes for all
	connections = 6
	objects     = 20_000
)

// BenchmarkPopularity reports views a second of both, their ratio, CPU microseconds a view, and where the time goes.
func BenchmarkPopularity(b *testing.B) {
	for range b.N {
		s := harness.Start(b)
		o := generate.Defaults()
		o.Seed, o.Start, o.Span = 1, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
		o.Views, o.Purchases, o.Prices, o.Projects, o.Objects = views, 0, 0, 500, objects
		o.Duplicates, o.LateCards, o.Reordered, o.WrongKeys, o.Bare, o.Traced = 0.05, 0, 0, 0, 0, 0
		want := send(b, s, o)
		records := want.Records[harness.Views]

		// The plain consumer before and after: a noisy machine changes its speed within minutes.
		rival := newPlain(b, s)
		before := rival.measure(b, plainEvents/2)
		ours, cpu := measureVitrina(b, s, int64(records))
		got, err := s.Actual(b.Context(), s.Facts())
		require.NoError(b, err)
		got.LateViews, got.Ledger = nil, nil // the model's views are not kept
		require.Empty(b, model.Compare(want, got), "what was measured must be right")
		after := rival.measure(b, plainEvents/2)
		plain := plainEvents / (before + after).Seconds()

		b.ReportMetric(ours, "views/s")
		b.ReportMetric(plain, "plain-views/s")
		b.ReportMetric(ours/plain, "ratio")
		b.ReportMetric(cpu, "cpu-us/view")
		b.ReportMetric(0, "ns/op")
		b.Logf("%d records: vitrina %.0f views/s with %.1f CPU µs a view; one transaction an event over %d connections: %.0f views/s (%.0f before, %.0f after); ratio %.1f",
			records, ours, cpu, connections, plain, plainEvents/2/before.Seconds(), plainEvents/2/after.Seconds(), ours/plain)
	}
}

func send(b *testing.B, s *harness.System, o generate.Options) *model.Expected {
	b.Helper()
	m := model.New(time.Now())
	require.NoError(b, s.Send(b.Context(), o, m, 0, "crc32"))
	want := m.Expected()
	want.Views = nil // not compared, and large
	return want
}

// measureVitrina runs the popularity role in this process, so that its profile can be taken.
func measureVitrina(b *testing.B, s *harness.System, records int64) (perSecond, cpuMicros float64) {
	b.Helper()
	environ := []string{}
	extra := append([]string{"VITRINA_STATE_DIR=" + b.TempDir(), "VITRINA_INSTANCE_ID=bench", "VITRINA_ROLES=popularity"}, strings.Fields(os.Getenv("VITRINA_BENCH_SETTINGS"))...)
	for _, e := range s.Environ(extra...) {
		if strings.HasPrefix(e, "VITRINA_") {
			environ = append(environ, e)
		}
	}
	cfg, err := config.Load(config.Source{Environ: environ})
	require.NoError(b, err)
	logger := telemetry.NewLogger(io.Discard, telemetry.LogOptions{Level: slog.LevelInfo}) // lines are made, as in production
	program, err := app.New(b.Context(), cfg, app.Deps{Logger: logger, Registerer: prometheus.NewRegistry(), Tracing: telemetry.NoTracing(), Clock: time.Now})
	require.NoError(b, err)
	defer func() { require.NoError(b, program.Close()) }()

	defer debug.SetGCPercent(debug.SetGCPercent(300)) // as `vitrina run` does
	if os.Getenv("GOMEMLIMIT") == "" {
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(900 << 20)) // as deploy/ does
	}
	forgetPeak(b) // and the model, which is garbage now: it must not be marked on the account of what is measured
	profile := profileFile(b)
	require.NoError(b, pprof.StartCPUProfile(profile))
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	before := readMachine(b)
	done := make(chan error, 1)
	go func() { done <- program.Run(ctx) }()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	// Handled is counted by the consumer once the transaction is acknowledged. The clock starts with the first views: joining the
	// group takes a second or two, whatever the load.
	started := int64(0)
	for program.Handled() < records {
		select {
		case <-ticker.C:
			if started == 0 {
				if started = program.Handled(); started > 0 {
					before = readMachine(b)
				}
			}
		case err := <-done:
			b.Fatalf("the program ended: %v", err)
		}
	}
	after := readMachine(b)
	pprof.StopCPUProfile()
	stop()
	require.NoError(b, <-done)
	require.NoError(b, profile.Close())
	top, err := exec.CommandContext(b.Context(), "go", "tool", "pprof", "-top", "-cum", "-nodecount=45", profile.Name()).CombinedOutput()
	require.NoError(b, err, string(top))
	b.Logf("profile %s\n%s", profile.Name(), top)
	measured := float64(records - started)
	b.Log(after.since(before, measured))
	b.Logf("at most %.0f MB resident", peakMemory(b))
	return measured / after.at.Sub(before.at).Seconds(), float64((after.self - before.self).Microseconds()) / measured
}

func profileFile(b *testing.B) *os.File {
	b.Helper()
	dir := os.Getenv("VITRINA_BENCH_DIR")
	if dir == "" {
		dir = os.TempDir()
	}
	f, err := os.Create(filepath.Join(dir, "vitrina-popularity.prof"))
	require.NoError(b, err)
	return f
}

func processCPU(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
