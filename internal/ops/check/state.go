package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Bounds of the space that local stores need to grow.
const (
	spaceError   = 256 << 20
	spaceWarning = 2 << 30
	tmpfsMagic   = 0x01021994
)

// state looks at the directory of the local stores without making it.
func state(_ context.Context, o Options, r *report) {
	const area, key = "state", "state.dir"
	dir, err := filepath.Abs(o.Config.State.Dir)
	if err != nil {
		r.add(area, key, Error, err.Error(), "set it to an absolute path")
		return
	}
	tmp := temporary(dir)
	if tmp != "" {
		r.add(area, key, Warning, dir+" lies below "+tmp+", which the system empties: every start would recover all tables from Kafka",
			"set it to a directory of a persistent disk, as /var/lib/vitrina")
	}
	// What exists of it: the rest is made by `vitrina run`.
	existing, info, err := nearest(dir)
	switch {
	case err != nil:
		r.add(area, key, Error, err.Error(), "give the program's user access to it")
		return
	case !info.IsDir():
		r.add(area, key, Error, existing+" is no directory", "remove the file or choose another directory")
		return
	}
	found := tmp != ""
	probe, err := os.CreateTemp(existing, ".vitrina-check-")
	if err != nil {
		r.add(area, key, Error, "it cannot be written: "+err.Error(), "give the program's user write access to "+existing)
		return
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		r.add(area, key, Error, "it cannot be written: "+err.Error(), "look at the disk of "+existing)
		found = true
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(existing, &fs); err != nil {
		r.add(area, key, Warning, "its free space is unknown: "+err.Error(), "look at the disk of "+existing)
		return
	}
	if int64(fs.Type) == tmpfsMagic { //nolint:unconvert // its type differs by platform
		r.add(area, key, Warning, existing+" is memory (tmpfs): a restart of the machine loses it and every table is recovered from Kafka", "set it to a directory of a persistent disk")
		found = true
	}
	free := fs.Bavail * uint64(fs.Bsize) //nolint:gosec // a block size is positive
	switch fix := "free space, or set it to a larger disk"; {
	case free < spaceError:
		r.add(area, key, Error, fmt.Sprintf("only %d MiB are free on its disk", free>>20), fix)
	case free < spaceWarning:
		r.add(area, key, Warning, fmt.Sprintf("only %d MiB are free on its disk", free>>20), fix)
	case !found:
		r.add(area, key, OK, fmt.Sprintf("%s is writable, %d GiB are free", dir, free>>30), "")
	}
}

// temporary is the directory above dir, or dir itself, that the system empties; "" when there is none.
func temporary(dir string) string {
	for _, tmp := range []string{"/tmp", "/var/tmp", "/dev/shm", filepath.Clean(os.TempDir())} {
		if dir == tmp || strings.HasPrefix(dir, tmp+"/") {
			return tmp
		}
	}
	return ""
}

// nearest is dir or the first directory above it that exists.
func nearest(dir string) (string, os.FileInfo, error) {
	for {
		info, err := os.Stat(dir)
		if err == nil || !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir) {
			return dir, info, err
		}
		dir = filepath.Dir(dir)
	}
}
