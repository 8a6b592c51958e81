package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/ops/check"
)

func TestCheckWithNothingThere(t *testing.T) {
	code, out, errs := runProgram(t, []string{"VITRINA_POSTGRES_DSN=postgres://u:hush-hush@127.0.0.1:1/x", "VITRINA_CLICKHOUSE_DSN=clickhouse://u:hush-hush@127.0.0.1:1/x"},
		"check", "-o", "json", "--kafka-brokers", "127.0.0.1:1")
	require.Equal(t, 1, code, errs)
	require.NotContains(t, out+errs, "hush-hush")
	var findings []check.Finding
	require.NoError(t, json.Unmarshal([]byte(out), &findings))
	areas := map[string]bool{}
	for _, f := range findings {
		if f.Severity == check.Error {
			areas[f.Area] = true
		}
	}
	require.Equal(t, map[string]bool{"kafka": true, "postgres": true, "clickhouse": true}, areas)

	code, out, _ = runProgram(t, []string{"VITRINA_BACKOFF_MIN=never"}, "check", "-o", "json")
	require.Equal(t, 1, code)
	require.NoError(t, json.Unmarshal([]byte(out), &findings))
	require.Equal(t, "backoff.min", findings[0].Subject)
}
