package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/ops/explain"
)

func TestExplainEvent(t *testing.T) {
	const id = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01"
	const viewer = "0197c0de-aaaa-7a51-9c1e-2f6f5d1b8a77"
	view := `{"PropertyObjectViewId":"` + id + `","PropertyObjectId":"` + id + `","SessionId":"` + viewer + `","AnonymousId":"` + viewer + `","UserId":"` + viewer +
		`","ViewSource":"Elsewhere","ViewedAt":"2026-11-30T10:15:30Z","LastActivityAt":"2026-11-30T10:16:30Z","DurationSeconds":42}`
	purchase := `{"EventId":"` + id + `","ContractVersion":1,"Payload":{"PurchaseId":"` + id + `","Targets":[{"TargetKind":"Project","TargetId":"` + id +
		`"}],"BoostWeight":WEIGHT,"Status":"Active","EndsAt":"2026-12-31T23:59:59+03:00","Version":3,"TenantId":"` + id + `"}}`
	for name, tc := range map[string]struct {
		event string
		args  []string
		code  int
		check func(t *testing.T, r explain.Result, out string)
	}{
		"a view of the bare form": {view, []string{"--consumer", "popularity", "--header", "ContractVersion=1", "--key", "other"}, 0, func(t *testing.T, r explain.Result, out string) {
			require.True(t, r.Valid)
			require.Equal(t, "counted", r.Outcome)
			require.Len(t, r.Warnings, 2, r.Warnings) // source, key
			for _, personal := range []string{viewer} {
				require.NotContains(t, out, personal)
			}
		}},
		"a purchase": {strings.ReplaceAll(purchase, "WEIGHT", "50"), []string{"--consumer", "promotion"}, 0, func(t *testing.T, r explain.Result, _ string) {
			require.Equal(t, "applied", r.Outcome)
			require.Empty(t, r.Warnings)
			require.Contains(t, r.Does[2], "contributes 50 to the card of project "+id)
		}},
		"a weight beyond the rule": {strings.ReplaceAll(purchase, "WEIGHT", "101"), []string{"--consumer", "promotion"}, 1, func(t *testing.T, r explain.Result, _ string) {
			require.False(t, r.Valid)
			require.Equal(t, "CONTRACT_INVALID_FIELD", r.Code)
			require.Equal(t, "BoostWeight", r.Field)
		}},
		"no JSON": {"{", []string{"--consumer", "price"}, 1, func(t *testing.T, r explain.Result, _ string) {
			require.Equal(t, "CONTRACT_UNDECODABLE", r.Code)
		}},
		"nothing at all": {"", []string{"--consumer", "price"}, 1, func(t *testing.T, r explain.Result, _ string) {
			require.Equal(t, "CONTRACT_UNDECODABLE", r.Code)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "event.json")
			require.NoError(t, os.WriteFile(file, []byte(tc.event), 0o600))
			code, out, errs := runProgram(t, nil, append(append([]string{"explain-event", "-o", "json"}, tc.args...), file)...)
			require.Equal(t, tc.code, code, errs)
			var r explain.Result
			require.NoError(t, json.Unmarshal([]byte(out), &r))
			tc.check(t, r, out)
			code, out, _ = runProgram(t, nil, append(append([]string{"explain-event"}, tc.args...), file)...)
			require.Equal(t, tc.code, code)
			require.Contains(t, out, r.Outcome)
		})
	}
	code, _, errs := runProgram(t, nil, "explain-event", "--consumer", "price", "/nowhere/at/all")
	require.Equal(t, 1, code)
	require.Contains(t, errs, "/nowhere/at/all")
}

// A part of a file was judged as if it were the whole.
func TestExplainEventRefusesWhatIsTooLarge(t *testing.T) {
	file := filepath.Join(t.TempDir(), "event.json")
	require.NoError(t, os.WriteFile(file, []byte("{}"), 0o600))
	require.NoError(t, os.Truncate(file, maxEvent+1))
	code, out, errs := runProgram(t, nil, "explain-event", "--consumer", "price", file)
	require.Equal(t, 2, code)
	require.Empty(t, out)
	require.Contains(t, errs, "64 MiB")
}
