package config_test

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/config"
)

var update = flag.Bool("update", false, "write docs/configuration.md anew")

func TestReferenceIsTheProgram(t *testing.T) {
	const path = "../../docs/configuration.md"
	var want bytes.Buffer
	require.NoError(t, config.Reference(&want))
	if *update {
		require.NoError(t, os.WriteFile(path, want.Bytes(), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want.String(), string(got), "go test ./internal/config -update writes it")
}
