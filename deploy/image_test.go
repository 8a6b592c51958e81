package deploy_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// buildAsImage builds the program for linux/amd64 as the Dockerfile does, without what only costs time here: the profile and paths.
func buildAsImage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("compose/Dockerfile")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^RUN CGO_ENABLED=0 go build (.*) -o /vitrina ./cmd/vitrina`).FindSubmatch(text)
	require.NotNil(t, found, "the Dockerfile builds the program in another way than this test knows")
	flags := regexp.MustCompile(`-pgo=\S+|-trimpath|-ldflags "[^"]*"`).ReplaceAllString(string(found[1]), "")
	binary := filepath.Join(t.TempDir(), "vitrina")
	args := append([]string{"build"}, strings.Fields(flags)...)
	build := exec.CommandContext(t.Context(), "go", append(args, "-ldflags=-s -w", "-o", binary, "../cmd/vitrina")...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// The image has no dynamic loader: a binary that asks for one ends with "no such file or directory" in it. What it leaves out for that, the
// demo, it says in words, before it downloads or deletes anything.
func TestTheImagesBinaryNeedsNoLoader(t *testing.T) {
	text, err := os.ReadFile("compose/Dockerfile")
	require.NoError(t, err)
	require.Contains(t, string(text), "\nFROM gcr.io/distroless/static")

	path := buildAsImage(t)
	binary, err := elf.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, binary.Close()) }()
	for _, program := range binary.Progs {
		require.NotEqual(t, elf.PT_INTERP, program.Type, "the binary is dynamic")
	}
	libraries, err := binary.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libraries)

	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	require.NoError(t, os.WriteFile(kept, nil, 0o600))
	out, err := exec.CommandContext(t.Context(), path, "demo", "--dir", dir).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "nochdb")
	require.FileExists(t, kept)
}
