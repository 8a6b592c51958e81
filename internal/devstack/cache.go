package devstack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// CacheEnv is the environment variable that names the directory of downloads.
const CacheEnv = "VITRINA_CACHE"

// module is the first line of this project's go.mod.
const module = "module github.com/pin-marketplace/vitrina\n"

// cacheDir returns the directory of downloads: the option, $VITRINA_CACHE, .cache of the clone that the working directory
// is in, or the user's cache directory.
func cacheDir(opts Options) (string, error) {
	dir := opts.Cache
	if dir == "" {
		dir = os.Getenv(CacheEnv)
	}
	if dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("resolve the cache directory: %w", err)
		}
		return abs, nil
	}
	at, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w", err)
	}
	for ; ; at = filepath.Dir(at) {
		// Only in this project's own clone: a stranger's repository is not ours to write into.
		if mod, err := os.ReadFile(filepath.Join(at, "go.mod")); err == nil && strings.Contains(string(mod), module) {
			return filepath.Join(at, ".cache"), nil
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache directory (set %s): %w", CacheEnv, err)
	}
	return filepath.Join(user, "vitrina"), nil
}

// artifact is something downloaded once: a directory of the cache.
type artifact struct {
	name  string                                      // directory name; holds the version, so an upgrade is another artifact
	what  string                                      // for a person
	fetch func(ctx context.Context, dir string) error // fills an empty directory
}

// ensure returns the artifact's directory and fetches it first if it is missing. A directory of that name is always complete:
// it is filled under another name and renamed. Processes that want the same artifact wait for the one that fetches it.
func (a artifact) ensure(ctx context.Context, opts Options) (string, error) {
	cache, err := cacheDir(opts)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, a.name)
	// A complete artifact needs no lock, so a cache that belongs to another user serves too.
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("make the cache directory (set %s to one that can be written): %w", CacheEnv, err)
	}
	l, err := lock(ctx, dir+".lock")
	if err != nil {
		return "", fmt.Errorf("use the cache %s (set %s to a directory that can be written): %w", cache, CacheEnv, err)
	}
	if err := a.fetchLocked(ctx, opts, cache, dir); err != nil {
		return "", errors.Join(fmt.Errorf("get %s: %w", a.what, err), l.release())
	}
	return dir, l.release()
}

func (a artifact) fetchLocked(ctx context.Context, opts Options, cache, dir string) error {
	if _, err := os.Stat(dir); err == nil { // another process was quicker
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// The lock is ours, so whatever lies under this name was left by a process that was killed.
	temp := filepath.Join(cache, ".fetching-"+a.name)
	if err := os.RemoveAll(temp); err != nil {
		return fmt.Errorf("remove what an interrupted download left: %w", err)
	}
	if err := os.MkdirAll(temp, 0o755); err != nil {
		return err
	}
	begin := time.Now()
	opts.logger().Info("downloading "+a.what, slog.String("event", "devstack-download"), slog.String("into", dir))
	if err := a.fetch(ctx, temp); err != nil {
		return errors.Join(err, os.RemoveAll(temp))
	}
	if err := os.Rename(temp, dir); err != nil {
		return fmt.Errorf("put the download in its place: %w", err)
	}
	opts.logger().Info("downloaded "+a.what, slog.String("event", "devstack-downloaded"), slog.Duration("took", time.Since(begin)))
	return nil
}
