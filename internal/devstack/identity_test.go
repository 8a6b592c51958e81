package devstack

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Which identities a machine allows differs (user namespaces may be forbidden); whatever passes the probe must do for PostgreSQL.
func TestWhoeverPassesTheProbeCanMakeADataDirectory(t *testing.T) {
	bin, err := postgresBin(t.Context(), Options{})
	require.NoError(t, err)
	all, err := identities(filepath.Join(t.TempDir(), "missing"))
	require.NoError(t, err)
	usable := 0
	for _, id := range all {
		dir, err := os.MkdirTemp("", "devstack-test-*") //nolint:usetesting // the parent of t.TempDir is closed to other users
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
		require.NoError(t, os.Chmod(dir, 0o755))
		require.NoError(t, os.Chown(dir, id.owner, -1))
		if err := id.works(t.Context(), filepath.Join(bin, "postgres"), dir); err != nil {
			t.Logf("not on this machine: %v", err)
			continue
		}
		usable++
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "initdb"), "--pgdata="+filepath.Join(dir, "data"), "--no-sync")
		cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
		id.apply(cmd)
		require.NoError(t, runQuietly(cmd), "as %s", id.name)
	}
	require.Positive(t, usable, "nobody can run PostgreSQL here")
}

func TestDataAreUsedByTheirOwnerAlone(t *testing.T) {
	existing := t.TempDir()
	all, err := identities(existing)
	require.NoError(t, err)
	require.NotEmpty(t, all)
	for _, id := range all {
		require.Equal(t, os.Geteuid(), id.owner, id.name)
	}
}
