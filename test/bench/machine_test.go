package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// machine is the CPU time that was used up to a moment: it says what limits a throughput, this process, a server or none of them.
type machine struct {
	at                    time.Time
	self, postgres, kafka time.Duration
	idle                  time.Duration // of all cores
}

const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux this runs on

func readMachine(b *testing.B) machine {
	b.Helper()
	m := machine{at: time.Now(), self: processCPU(b)}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(b, err)
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		name := raw[bytes.IndexByte(raw, '(')+1 : bytes.LastIndexByte(raw, ')')]
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		used := ticks(b, fields[11]) + ticks(b, fields[12])
		switch string(name) {
		case "postgres":
			m.postgres += used
		case "java":
			m.kafka += used
		}
	}
	raw, err := os.ReadFile("/proc/stat")
	require.NoError(b, err)
	m.idle = ticks(b, strings.Fields(string(raw))[4])
	return m
}

func ticks(b *testing.B, field string) time.Duration {
	b.Helper()
	n, err := strconv.ParseInt(field, 10, 64)
	require.NoError(b, err)
	return time.Duration(n) * tick
}

// forgetPeak makes peakMemory count from now: what made the events was larger.
func forgetPeak(b *testing.B) {
	b.Helper()
	debug.FreeOSMemory()
	require.NoError(b, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o600))
}

// peakMemory is the most that was resident, in MB.
func peakMemory(b *testing.B) float64 {
	b.Helper()
	raw, err := os.ReadFile("/proc/self/status")
	require.NoError(b, err)
	_, rest, found := strings.Cut(string(raw), "VmHWM:")
	require.True(b, found)
	kilobytes, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	require.NoError(b, err)
	return kilobytes / 1000
}

// since tells where the time went, in CPU microseconds a view.
func (m machine) since(before machine, views float64) string {
	per := func(now, before time.Duration) float64 { return float64((now - before).Microseconds()) / views }
	return fmt.Sprintf("CPU µs a view: vitrina %.1f, PostgreSQL %.1f, Kafka %.1f, idle %.1f", per(m.self, before.self),
		per(m.postgres, before.postgres), per(m.kafka, before.kafka), per(m.idle, before.idle))
}
