package devstack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// namespaceUID is who we are inside a user namespace: any uid but 0.
const namespaceUID = 1000

// nobodyUID is the customary uid without rights.
const nobodyUID = 65534

// identity is who a server runs as. PostgreSQL refuses to run as root.
type identity struct {
	name  string
	owner int // uid that owns the data, seen from here
	apply func(cmd *exec.Cmd)
}

// identities lists whom this process can run a server as, best first. existing is the directory of data that are already
// there, if any: only their owner can go on with them.
func identities(existing string) ([]identity, error) {
	if os.Geteuid() != 0 {
		return []identity{{name: "this user", owner: os.Geteuid(), apply: func(*exec.Cmd) {}}}, nil
	}
	all := []identity{{name: "root as another uid in a user namespace", owner: 0, apply: func(cmd *exec.Cmd) {
		userNamespace(cmd, namespaceUID, os.Getuid(), os.Getgid())
	}}}
	if account, err := user.Lookup("postgres"); err == nil {
		uid, uidErr := strconv.Atoi(account.Uid)
		gid, gidErr := strconv.Atoi(account.Gid)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("read the ids of the user postgres: %w", err)
		}
		all = append(all, otherUser(uid, gid))
	}
	all = append(all, otherUser(nobodyUID, nobodyUID))
	info, err := os.Stat(existing)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at the existing data: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return all, nil
	}
	for _, id := range all {
		if id.owner == int(owner.Uid) {
			return []identity{id}, nil
		}
	}
	return []identity{otherUser(int(owner.Uid), int(owner.Gid))}, nil
}

func otherUser(uid, gid int) identity {
	return identity{name: "uid " + strconv.Itoa(uid), owner: uid, apply: func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}}
}

// works says whether the identity can run the program and write into dir. It is tried rather than reasoned about: user
// namespaces may be forbidden, and a directory on the way may be closed to the other user.
func (id identity) works(ctx context.Context, program, dir string) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `cd "$1" && : >.probe && rm .probe && exec "$2" --version`, "sh", dir, program)
	cmd.Env = []string{}
	id.apply(cmd)
	if err := runQuietly(cmd); err != nil {
		return fmt.Errorf("as %s: %w", id.name, err)
	}
	return nil
}

// chooseIdentity returns the first identity that can run program with data in dir, which it hands to that identity.
func chooseIdentity(ctx context.Context, program, dir, existing string) (identity, error) {
	all, err := identities(existing)
	if err != nil {
		return identity{}, err
	}
	var failures []error
	for _, id := range all {
		if os.Geteuid() == 0 {
			if err := os.Chown(dir, id.owner, -1); err != nil {
				return identity{}, fmt.Errorf("give %s to %s: %w", dir, id.name, err)
			}
		}
		err := id.works(ctx, program, dir)
		if err == nil {
			return id, nil
		}
		failures = append(failures, err)
	}
	return identity{}, fmt.Errorf("no user can run %s with data in %s (as root it must run as another user: use a directory that others can "+
		"enter, for instance below /var/tmp): %w", program, dir, errors.Join(failures...))
}
