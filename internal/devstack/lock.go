package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// lockPoll is how often a waiting process looks whether a lock became free; flock itself cannot be ended by a context.
const lockPoll = 100 * time.Millisecond

// errLocked says that another process holds the lock.
var errLocked = errors.New("locked by another process")

// fileLock is an advisory lock between processes. The kernel drops it when its holder dies, so a killed process never leaves a
// lock behind.
type fileLock struct{ file *os.File }

// tryLock takes the lock of path, which is created if missing, or returns errLocked.
func tryLock(path string) (*fileLock, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock file: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		closeErr := file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(errLocked, closeErr)
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), closeErr)
	}
	return &fileLock{file: file}, nil
}

// lock waits for the lock of path until ctx ends.
func lock(ctx context.Context, path string) (*fileLock, error) {
	ticker := time.NewTicker(lockPoll)
	defer ticker.Stop()
	for {
		l, err := tryLock(path)
		if err == nil || !errors.Is(err, errLocked) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s, held by another process: %w", path, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// release gives the lock up. The file stays: removing it would let two processes hold locks on two files of one name.
func (l *fileLock) release() error {
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("release the lock %s: %w", l.file.Name(), err)
	}
	return nil
}
