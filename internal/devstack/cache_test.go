package devstack

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

func TestAnArtifactIsFetchedOnceHoweverManyWantIt(t *testing.T) {
	opts := Options{Cache: t.TempDir()}
	var fetches atomic.Int32
	a := artifact{name: "thing-1", what: "a thing", fetch: func(_ context.Context, dir string) error {
		fetches.Add(1)
		return os.WriteFile(filepath.Join(dir, "file"), []byte("whole"), 0o600)
	}}
	var group errgroup.Group
	for range 8 {
		group.Go(func() error {
			dir, err := a.ensure(t.Context(), opts)
			if err != nil {
				return err
			}
			_, err = os.Stat(filepath.Join(dir, "file"))
			return err
		})
	}
	require.NoError(t, group.Wait())
	require.EqualValues(t, 1, fetches.Load())
}

func TestAnInterruptedFetchLeavesNothingThatLooksComplete(t *testing.T) {
	opts := Options{Cache: t.TempDir()}
	// What a process killed in the middle leaves behind.
	require.NoError(t, os.MkdirAll(filepath.Join(opts.Cache, ".fetching-thing-1", "rubbish"), 0o700))
	broken := artifact{name: "thing-1", what: "a thing", fetch: func(_ context.Context, dir string) error {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "half"), nil, 0o600))
		return errors.New("the line is dead")
	}}
	_, err := broken.ensure(t.Context(), opts)
	require.ErrorContains(t, err, "get a thing: the line is dead")
	good := artifact{name: "thing-1", what: "a thing", fetch: func(_ context.Context, dir string) error {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, entries, "a fetch begins with an empty directory")
		return nil
	}}
	_, err = good.ensure(t.Context(), opts)
	require.NoError(t, err)
}

func TestAnArchiveThatIsNotTheExpectedOneIsRefused(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "package.tgz")
	require.NoError(t, os.WriteFile(archive, []byte("abc"), 0o600))
	good := npmPackage{spec: "p@1", integrity: "sha512-3a81oZNherrMQXNJriBBMRLm+k6JqX6iCp7u5ktV05ohkpkqJ0/BqDa6PCOj/uu9RU1EI2Q86A4qmslPpUyknw=="}
	require.NoError(t, good.verify(archive))
	require.NoError(t, os.WriteFile(archive, []byte("abd"), 0o600))
	require.ErrorContains(t, good.verify(archive), "another file")
}

func TestAMissingToolIsNamedWithTheCommandThatInstallsIt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := Prepare(t.Context(), Options{Cache: t.TempDir()}, PartClickHouse, PartKafka)
	require.ErrorContains(t, err, "apt-get install -y npm")
	require.ErrorContains(t, err, "apt-get install -y maven")
	require.ErrorContains(t, err, "apt-get install -y default-jre-headless")
}

func TestAbandonedTemporaryDirectoriesAreRemovedAndLiveOnesKept(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	live, err := openWorkdir("", "live")
	require.NoError(t, err)
	dead, err := openWorkdir("", "dead")
	require.NoError(t, err)
	require.NoError(t, dead.lock.release()) // as the kernel does when a process is killed
	another, err := openWorkdir("", "another")
	require.NoError(t, err)
	require.NoDirExists(t, dead.path)
	require.DirExists(t, live.path)
	require.NoError(t, errors.Join(live.close(), another.close()))
	require.NoDirExists(t, live.path)
}
