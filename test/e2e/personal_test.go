package e2e

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/observe"
)

// personalValues are the values of the personal fields in every view that was sent, and what they are.
func personalValues(t *testing.T, s *harness.System) map[string]string {
	t.Helper()
	field := regexp.MustCompile(`(?i)"(UserId|AnonymousId|SessionId)"\s*:\s*"\{?([0-9a-fA-F-]{36})\}?"`)
	out := map[string]string{}
	require.NoError(t, observe.Records(t.Context(), s.KgoOpts(), func(r *kgo.Record) {
		for _, m := range field.FindAllSubmatch(r.Value, -1) {
			if id := string(m[2]); id != "00000000-0000-0000-0000-000000000000" {
				out[id] = string(m[1])
			}
		}
	}, harness.Views))
	return out
}
