package codecs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// readEvent reads testdata/events/<name>.json with its headers, one "Name: value" a line, from <name>.headers.
func readEvent(t testing.TB, path string) *record.Record {
	t.Helper()
	value, err := os.ReadFile(path)
	require.NoError(t, err)
	r := &record.Record{Value: value}
	headers, err := os.ReadFile(strings.TrimSuffix(path, ".json") + ".headers")
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	for line := range strings.Lines(string(headers)) {
		name, text, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		require.True(t, ok, line)
		r.Headers = append(r.Headers, record.Header{Key: name, Value: []byte(text)})
	}
	return r
}

func eventFiles(t testing.TB, prefix string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "events", prefix+"-*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

func TestGoldenEvents(t *testing.T) {
	for _, c := range contracts() {
		for _, path := range eventFiles(t, c.name) {
			t.Run(strings.TrimSuffix(filepath.Base(path), ".json"), func(t *testing.T) {
				event, fault := c.decode(readEvent(t, path))
				got, err := json.MarshalIndent(struct {
					Fault *Fault `json:",omitempty"`
					Event any    `json:",omitempty"`
				}{fault, event}, "", "  ")
				require.NoError(t, err)
				golden := strings.TrimSuffix(path, ".json") + ".golden"
				if os.Getenv("UPDATE_GOLDEN") != "" {
					require.NoError(t, os.WriteFile(golden, append(got, '\n'), 0o644))
				}
				want, err := os.ReadFile(golden)
				require.NoError(t, err)
				require.Equal(t, string(want), string(got)+"\n")
			})
		}
	}
}
