package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/backfill"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }

func TestBackfillFromTheCommandLine(t *testing.T) {
	const row = `{"PropertyObjectId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01","DeveloperId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01","ProjectId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01","BuildingId":1,"LayoutGroupId":1,"LayoutId":1,"AreaTotal":50,"NewPrice":"100.00","CurrencyId":643,"CurrencySnapshot":{"CurrencyId":643,"IsoCode":"RUB","Name":"r","Sign":"r"},"ChangedAt":"2025-01-01T00:00:00Z","Source":"Talent","Version":1}`
	file := filepath.Join(t.TempDir(), "prices.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(row+"\n{\"broken\":1}\n"), 0o600))
	environ := []string{"VITRINA_CLICKHOUSE_DSN=" + devtest.ClickHouse(t), "VITRINA_STATE_DIR=" + t.TempDir()}
	code, _, errs := runProgram(t, environ, "backfill", "price-history", file)
	require.Equal(t, 1, code, "there is no table")
	require.Contains(t, errs, "vitrina migrate up")
	code, _, errs = runProgram(t, environ, "migrate", "up", "--only", "clickhouse")
	require.Zero(t, code, errs)
	for range 2 { // the second finds it done
		code, out, errs := runProgram(t, environ, "backfill", "price-history", "-o", "json", file)
		require.Equal(t, 1, code, errs) // a row was rejected
		var reports []backfill.FileReport
		require.NoError(t, json.Unmarshal([]byte(out), &reports))
		require.EqualValues(t, 1, reports[0].Written)
		require.EqualValues(t, 1, reports[0].Rejected)
		require.FileExists(t, reports[0].RejectedReport)
	}
	code, _, _ = runProgram(t, nil, "backfill", "price-history", file)
	require.Equal(t, 2, code)
}
