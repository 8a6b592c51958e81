package devstack

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes cmd get sig when this process dies, and puts it into a process group of its own, so that Ctrl-C reaches
// this process alone and the order of stopping stays ours.
func dieWithParent(cmd *exec.Cmd, sig syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = sig
	cmd.SysProcAttr.Setpgid = true
}

// userNamespace makes cmd run in a user namespace where this user is uid: for programs that refuse to run as root. Outside the
// namespace its files stay ours.
func userNamespace(cmd *exec.Cmd, uid, ourUID, ourGID int) {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: ourUID, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: ourGID, Size: 1}},
	}
}
