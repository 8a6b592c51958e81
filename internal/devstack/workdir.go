package devstack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const lockName = ".lock"

// workdir is the directory of one server, locked against a second server on the same data.
type workdir struct {
	path      string
	temporary bool
	lock      *fileLock
}

// openWorkdir makes and locks Dir/name, or a temporary directory when Dir is empty.
func openWorkdir(dir, name string) (*workdir, error) {
	if dir == "" {
		return tempWorkdir(name)
	}
	abs, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		return nil, fmt.Errorf("resolve the data directory: %w", err)
	}
	if err := os.MkdirAll(abs, 0o755); err != nil {
		return nil, fmt.Errorf("make the data directory of %s: %w", name, err)
	}
	l, err := tryLock(filepath.Join(abs, lockName))
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("%s in %s already runs in another process: stop that one or use another directory", name, abs)
	}
	if err != nil {
		return nil, fmt.Errorf("use the data directory of %s: %w", name, err)
	}
	return &workdir{path: abs, lock: l}, nil
}

// tempWorkdir makes a new temporary directory. Directories that killed processes left behind are removed on the way: their
// locks are free.
func tempWorkdir(name string) (*workdir, error) {
	root := tempRoot()
	// 0711: a server under another uid must be able to enter, nobody needs to list.
	if err := os.MkdirAll(root, 0o711); err != nil {
		return nil, fmt.Errorf("make the temporary directory of the servers: %w", err)
	}
	if err := removeAbandoned(root); err != nil {
		return nil, err
	}
	// The lock is taken under a name that removeAbandoned does not look at, so nobody sees the directory without its lock.
	hidden, err := os.MkdirTemp(root, ".new-*")
	if err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	if err := os.Chmod(hidden, 0o755); err != nil {
		return nil, fmt.Errorf("open the temporary directory to the server's user: %w", err)
	}
	l, err := tryLock(filepath.Join(hidden, lockName))
	if err != nil {
		return nil, fmt.Errorf("lock a new temporary directory: %w", err)
	}
	path := filepath.Join(root, name+"-"+filepath.Base(hidden)[len(".new-"):])
	if err := os.Rename(hidden, path); err != nil {
		return nil, errors.Join(fmt.Errorf("name the temporary directory: %w", err), l.release())
	}
	return &workdir{path: path, temporary: true, lock: l}, nil
}

func removeAbandoned(root string) error {
	dirs, err := filepath.Glob(filepath.Join(root, "[a-z]*", lockName))
	if err != nil {
		return fmt.Errorf("look for abandoned temporary directories: %w", err)
	}
	for _, path := range dirs {
		l, err := tryLock(path)
		if err != nil {
			continue // in use, or just removed by another process that does the same
		}
		if err := errors.Join(os.RemoveAll(filepath.Dir(path)), l.release()); err != nil {
			return fmt.Errorf("remove an abandoned temporary directory: %w", err)
		}
	}
	return nil
}

// close gives the directory up and removes it when it was temporary.
func (w *workdir) close() error {
	var err error
	if w.temporary {
		if err = os.RemoveAll(w.path); err != nil {
			err = fmt.Errorf("remove the temporary directory: %w", err)
		}
	}
	return errors.Join(err, w.lock.release())
}

func (w *workdir) join(elem ...string) string {
	return filepath.Join(append([]string{w.path}, elem...)...)
}
