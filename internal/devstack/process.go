package devstack

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

const (
	// outputGrace bounds the wait for output after a server's end: a grandchild may hold the pipe open.
	outputGrace = 2 * time.Second
	logTail     = 4096
)

// process is one run of a server.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed after the end
	err  error         // why it ended; read after done
}

// startProcess starts cmd with its output in log, and so that it dies with this process. onDeath is the signal it gets then.
func startProcess(cmd *exec.Cmd, log io.Writer, onDeath syscall.Signal) (*process, error) {
	cmd.Stdout, cmd.Stderr = log, log
	cmd.WaitDelay = outputGrace
	dieWithParent(cmd, onDeath)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel sends the death signal when the *thread* that started the child ends, so that thread is kept until the
		// child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- fmt.Errorf("start %s: %w", cmd.Path, err)
			return
		}
		started <- nil
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// exited says whether the process is gone.
func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal sends sig unless the process is gone.
func (p *process) signal(sig syscall.Signal) error {
	if p.exited() {
		return nil
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !p.exited() {
		select { // it may have ended between the look and the signal
		case <-p.done:
			return nil
		case <-time.After(outputGrace):
			return fmt.Errorf("send %s to process %d: %w", sig, p.cmd.Process.Pid, err)
		}
	}
	return nil
}

// tail returns the last lines of a log file, for an error message.
func tail(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	defer func() {
		_ = file.Close() // opened for reading: nothing to lose
	}()
	if info, err := file.Stat(); err == nil && info.Size() > logTail {
		if _, err := file.Seek(-logTail, io.SeekEnd); err != nil {
			return "(log unreadable: " + err.Error() + ")"
		}
	}
	text, err := io.ReadAll(io.LimitReader(file, logTail))
	if err != nil {
		return "(log unreadable: " + err.Error() + ")"
	}
	return string(text)
}
