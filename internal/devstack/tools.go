package devstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// tool is a program that must be on the machine, and the command that installs it on Debian and its relatives.
type tool struct{ name, install string }

func npmTool() tool   { return tool{name: "npm", install: "apt-get install -y npm"} }
func mavenTool() tool { return tool{name: "mvn", install: "apt-get install -y maven"} }
func javaTool() tool  { return tool{name: "java", install: "apt-get install -y default-jre-headless"} }

func (t tool) path() (string, error) {
	path, err := exec.LookPath(t.name)
	if err != nil {
		return "", fmt.Errorf("%s is not installed; install it with: %s (%w)", t.name, t.install, err)
	}
	return path, nil
}

// run runs the tool in dir; its output is part of the error.
func (t tool) run(ctx context.Context, dir string, args ...string) error {
	path, err := t.path()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = os.Environ()
	return runQuietly(cmd)
}

// runQuietly runs cmd to its end; its output is part of the error.
func runQuietly(cmd *exec.Cmd) error {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = outputGrace
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return errors.Join(
			fmt.Errorf("%s after %s: %w", cmd.String(), time.Since(begin).Round(time.Millisecond), err),
			fmt.Errorf("its output was:\n%s%s", stdout.String(), stderr.String()))
	}
	return nil
}
