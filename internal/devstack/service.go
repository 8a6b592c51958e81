package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pin-marketplace/vitrina/internal/backoff"
)

const (
	readyPoll   = 25 * time.Millisecond
	probeLimit  = 2 * time.Second
	killTimeout = 15 * time.Second
)

// errInUse is in the log of every server that found its port taken.
const errInUse = "ddress already in use"

// service is the life of one server: start, stop, kill, restart on the same port and data.
type service struct {
	name  string
	opts  Options
	dir   *workdir
	build func(ctx context.Context) (*exec.Cmd, error) // a new command for each start
	probe func(ctx context.Context) error              // nil once the server answers

	stopSignal  syscall.Signal // asks for a clean end
	killSignal  syscall.Signal // a crash
	deathSignal syscall.Signal // what it gets when this process dies
	stopTimeout time.Duration  // after it a stop becomes a kill

	mu      sync.Mutex // serialises start, stop, kill, restart
	proc    *process   // nil or ended: not running
	stopped bool       // no start after Stop
	watch   sync.WaitGroup
	quit    chan struct{} // closed by Stop
}

func newService(name string, opts Options, dir *workdir) *service {
	return &service{
		name: name, opts: opts, dir: dir,
		stopSignal: syscall.SIGTERM, killSignal: syscall.SIGKILL, deathSignal: syscall.SIGKILL,
		stopTimeout: 30 * time.Second,
		quit:        make(chan struct{}),
	}
}

func (s *service) logPath() string { return s.dir.join(s.name + ".log") }

// LogFile is the path of the server's own log.
func (s *service) LogFile() string { return s.logPath() }

// PID is the process id of the running server, or 0.
func (s *service) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.exited() {
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// Exited is closed when the run that is going on now has ended, for whatever reason.
func (s *service) Exited() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		ended := make(chan struct{})
		close(ended)
		return ended
	}
	return s.proc.done
}

// start runs the server and waits until it answers. The caller holds mu.
func (s *service) start(ctx context.Context) error {
	if s.stopped {
		return fmt.Errorf("%s was stopped for good: start a new one", s.name)
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.startTimeout())
	defer cancel()
	begin := time.Now()
	file, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", s.name, err)
	}
	var log io.Writer = file // a file goes to the child as it is: no copying, and nothing is lost when this process dies
	if s.opts.Log != nil {
		log = io.MultiWriter(file, s.opts.Log)
	}
	cmd, err := s.build(context.WithoutCancel(ctx)) // it outlives the start
	if err != nil {
		return errors.Join(err, file.Close())
	}
	proc, err := startProcess(cmd, log, s.deathSignal)
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", s.name, err), file.Close())
	}
	s.proc = proc
	s.watch.Add(1)
	go s.watchRun(context.WithoutCancel(ctx), proc, file)
	if err := s.awaitReady(ctx, proc); err != nil {
		s.proc = nil // a start that failed is not a run that could be restarted
		return errors.Join(err, s.end(proc, syscall.SIGKILL))
	}
	s.opts.logger().Info(s.name+" is ready", slog.String("event", "devstack-ready"), slog.String("server", s.name),
		slog.Int("pid", cmd.Process.Pid), slog.Duration("took", time.Since(begin)), slog.String("dir", s.dir.path))
	return nil
}

func (s *service) awaitReady(ctx context.Context, proc *process) error {
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	var last error
	for {
		attempt, cancel := context.WithTimeout(ctx, probeLimit)
		err := s.probe(attempt)
		cancel()
		if err == nil {
			return nil
		}
		last = err
		select {
		case <-proc.done:
			return fmt.Errorf("%s ended before it was ready (%w); the end of its log %s:\n%s",
				s.name, reason(proc.err), s.logPath(), tail(s.logPath()))
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready in time: %w (last answer: %w); the end of its log %s:\n%s",
				s.name, context.Cause(ctx), last, s.logPath(), tail(s.logPath()))
		case <-ticker.C:
		}
	}
}

// watchRun closes the log after the run and, when asked, starts the server again if it ended by itself.
func (s *service) watchRun(ctx context.Context, proc *process, log io.Closer) {
	defer s.watch.Done()
	<-proc.done
	if err := log.Close(); err != nil {
		s.opts.logger().Warn("the log of "+s.name+" could not be closed", slog.String("event", "devstack-log-failed"), slog.Any("error", err))
	}
	if !s.opts.AutoRestart {
		return
	}
	wait := backoff.New(backoff.Config{Min: 100 * time.Millisecond, Max: 5 * time.Second})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.quit:
			cancel()
		case <-ctx.Done():
		}
	}()
	for wait.Wait(ctx) == nil {
		done, err := s.restartAfterDeath(ctx, proc)
		if done {
			return
		}
		s.opts.logger().Error(s.name+" ended by itself and did not come back", slog.String("event", "devstack-restart-failed"),
			slog.String("server", s.name), slog.Any("error", err))
	}
}

// restartAfterDeath starts the server again if proc is still the last run and nobody asked for its end. It reports whether
// there is nothing more to do.
func (s *service) restartAfterDeath(ctx context.Context, proc *process) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.proc != proc {
		return true, nil
	}
	s.opts.logger().Warn(s.name+" ended by itself; it is started again", slog.String("event", "devstack-restarting"),
		slog.String("server", s.name), slog.String("reason", reason(proc.err).Error()))
	err := s.start(ctx)
	if err != nil {
		s.proc = proc // the failed try is not a run to be replaced
	}
	return err == nil, err
}

// end sends sig and waits for the end; after the grace period it kills.
func (s *service) end(proc *process, sig syscall.Signal) error {
	if err := proc.signal(sig); err != nil {
		return err
	}
	timer := time.NewTimer(s.stopTimeout)
	defer timer.Stop()
	select {
	case <-proc.done:
		return nil
	case <-timer.C:
	}
	s.opts.logger().Warn(s.name+" did not end in time and is killed", slog.String("event", "devstack-killed"),
		slog.String("server", s.name), slog.Duration("after", s.stopTimeout))
	if err := proc.signal(syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case <-proc.done:
		return nil
	case <-time.After(killTimeout):
		return fmt.Errorf("%s (process %d) did not end after SIGKILL", s.name, proc.cmd.Process.Pid)
	}
}

// halt ends the running server, if any, and forgets it, so that it is not started again by itself. The caller holds mu.
func (s *service) halt(sig syscall.Signal) error {
	proc := s.proc
	if proc == nil {
		return nil
	}
	s.proc = nil
	return s.end(proc, sig)
}

// Stop ends the server cleanly and for good; a temporary directory is removed. A second Stop does nothing. When ctx ends first
// the server is killed.
func (s *service) Stop(ctx context.Context) error {
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return nil
	}
	s.stopped = true
	close(s.quit)
	if proc := s.proc; proc != nil {
		hurry := context.AfterFunc(ctx, func() {
			// An error means that it is gone already; halt below reports what matters.
			_ = proc.signal(syscall.SIGKILL)
		})
		defer hurry()
	}
	err := s.halt(s.stopSignal)
	s.mu.Unlock()
	s.watch.Wait()
	return errors.Join(err, s.dir.close())
}

// Kill ends the server as a crash would and returns when it is gone. Restart starts it again.
func (s *service) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halt(s.killSignal)
}

// Restart ends the server cleanly if it runs and starts it again on the same port and data.
func (s *service) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return fmt.Errorf("%s was stopped for good: start a new one", s.name)
	}
	if err := s.halt(s.stopSignal); err != nil {
		return err
	}
	return s.start(ctx)
}

// startAnew is the first start. Where the port was ours to choose and somebody took it meanwhile, choose sets another and the
// start is tried again.
func (s *service) startAnew(ctx context.Context, choose func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	const tries = 3
	if err := os.Remove(s.logPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("begin a new log: %w", err)
	}
	for try := 1; ; try++ {
		if err := choose(); err != nil {
			return err
		}
		err := s.start(ctx)
		if err == nil || try == tries || s.opts.Port != 0 || !strings.Contains(tail(s.logPath()), errInUse) {
			return err
		}
	}
}

func reason(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}
