package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/ops/rebuild"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

func TestReplayRequest(t *testing.T) {
	zero, seven, minus, one := int64(0), int64(7), int64(-7), int32(1)
	at := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		command replayPriceCmd
		source  string
		params  rebuild.Params
		fault   string
	}{
		"from a time":           {command: replayPriceCmd{FromTime: "2026-11-30T03:00:00+03:00"}, source: rebuild.FromTime, params: rebuild.Params{Time: at}},
		"from the first offset": {command: replayPriceCmd{FromOffset: &zero}, source: rebuild.FromOffset},
		"one partition":         {command: replayPriceCmd{FromOffset: &seven, Partition: &one}, source: rebuild.FromOffset, params: rebuild.Params{Offset: 7, Partition: &one}},
		"from nowhere":          {fault: "say from where"},
		"no time":               {command: replayPriceCmd{FromTime: "yesterday"}, fault: "RFC 3339"},
		"time and partition":    {command: replayPriceCmd{FromTime: "2026-11-30T00:00:00Z", Partition: &one}, fault: "--partition belongs to --from-offset"},
		"negative":              {command: replayPriceCmd{FromOffset: &minus}, fault: "negative"},
	} {
		q, err := test.command.request()
		if test.fault != "" {
			require.ErrorContains(t, err, test.fault, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, test.source, q.Source, name)
		require.True(t, test.params.Time.Equal(q.Params.Time), name)
		require.Equal(t, test.params.Offset, q.Params.Offset, name)
		require.Equal(t, test.params.Partition, q.Params.Partition, name)
	}
}

func TestProgressLine(t *testing.T) {
	require.Equal(t, "catch-up group g has 70 offsets to go (30 of 100); tried again after: broker away",
		progressLine(postgres.Operation{Step: "catch-up", Message: "group g has 70 offsets to go", Done: 30, Total: 100, Error: "broker away"}))
	require.Equal(t, "leave    waits", progressLine(postgres.Operation{Step: "leave", Message: "waits"}))
}
