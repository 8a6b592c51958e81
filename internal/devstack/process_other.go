//go:build !linux

package devstack

import (
	"os/exec"
	"syscall"
)

// dieWithParent has no death signal to set outside Linux: after a SIGKILL of this process its servers must be ended by hand.
func dieWithParent(cmd *exec.Cmd, _ syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
}

// userNamespace does nothing outside Linux; the caller's probe then finds that the program still refuses to run as root.
func userNamespace(*exec.Cmd, int, int, int) {}
