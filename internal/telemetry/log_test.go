package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func lines(t *testing.T, text string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for line := range strings.Lines(text) {
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &m), line)
		out = append(out, m)
	}
	return out
}

func TestEveryLineHasOneEvent(t *testing.T) {
	var buf syncBuffer
	logger := telemetry.NewLogger(&buf, telemetry.LogOptions{})
	logger.Info("from a library")
	logger.Info("named", slog.String(telemetry.EventKey, "started"))
	logger.With(slog.String(telemetry.EventKey, "stopped")).Info("named before")
	logger.Debug("below the level")
	got := lines(t, buf.String())
	require.Len(t, got, 3)
	require.Equal(t, "log", got[0]["event"])
	require.Equal(t, "started", got[1]["event"])
	require.Equal(t, "stopped", got[2]["event"])
	require.Equal(t, 1, strings.Count(strings.SplitAfter(buf.String(), "\n")[2], `"event"`))
}

func TestLinesHideSecretsAndPersons(t *testing.T) {
	var buf syncBuffer
	redact := telemetry.NewRedactor(`p@ss"word/1`, "s3cret-token", "", "abc")
	logger := telemetry.NewLogger(&buf, telemetry.LogOptions{Redact: redact})
	logger.Error("dial clickhouse://u:p%40ss%22word%2F1@h failed", slog.Any("error", errors.New(`bad "p@ss"word/1"`)),
		slog.Any("list", []string{"s3cret-token"}), slog.String("UserId", "11111111"), slog.String("anonymous_id", "22222222"),
		slog.String("sessionId", "33333333"), slog.Bool("has_user_id", true))
	text := buf.String()
	for _, secret := range []string{"word/1", "word%2F1", "s3cret-token", "11111111", "22222222", "33333333"} {
		require.NotContains(t, text, secret)
	}
	require.Equal(t, true, lines(t, text)[0]["has_user_id"])
	require.Equal(t, "abc ***", redact.Text("abc s3cret-token"), "too short to be searched for")
	require.Equal(t, "x", (*telemetry.Redactor)(nil).Text("x"))
}

func TestRedactorHidesTheLongerSecretWhole(t *testing.T) {
	require.Equal(t, "***", telemetry.NewRedactor("secret", "secret-of-secrets").Text("secret-of-secrets"))
}

func TestEventLogLosesNoCount(t *testing.T) {
	var buf syncBuffer
	c := newClock()
	log := telemetry.NewEventLog(telemetry.NewLogger(&buf, telemetry.LogOptions{}), 3, c.Now)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 250 {
				log.Log(t.Context(), slog.LevelInfo, "consumed", "a record", slog.Int("n", 1))
			}
		})
	}
	log.Log(t.Context(), slog.LevelWarn, "dead-lettered", "another event has its own limit")
	wg.Wait()
	log.Flush(t.Context())
	log.Flush(t.Context())
	count := func() (written, suppressed float64) {
		for _, line := range lines(t, buf.String()) {
			switch {
			case line["event"] == "consumed":
				written++
			case line["event"] == "suppressed" && line["suppressed_event"] == "consumed":
				count, _ := line["count"].(float64)
				suppressed += count
			}
		}
		return written, suppressed
	}
	written, suppressed := count()
	require.InDelta(t, 3, written, 0)
	require.InDelta(t, 997, suppressed, 0)
	require.Contains(t, buf.String(), "dead-lettered")

	c.Advance(time.Second)
	log.Log(t.Context(), slog.LevelInfo, "consumed", "a new second")
	written, _ = count()
	require.InDelta(t, 4, written, 0)
}

func TestEventLogWithoutLimitAndBelowLevel(t *testing.T) {
	var buf syncBuffer
	log := telemetry.NewEventLog(telemetry.NewLogger(&buf, telemetry.LogOptions{}), 0, newClock().Now)
	for range 1000 {
		log.Log(t.Context(), slog.LevelInfo, "consumed", "m")
		log.Log(t.Context(), slog.LevelDebug, "quiet", "m")
	}
	log.Flush(t.Context())
	require.Len(t, lines(t, buf.String()), 1000)
}
