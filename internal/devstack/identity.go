package devstack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"syscall"
)

// identity is who a server runs as. PostgreSQL refuses to run as root.
type identity struct {
	name  string
	owner int // uid that owns the data, seen from here
	apply func(cmd *exec.Cmd)
}

// identities lists whom this process can run a server as, best first. existing is the directory of data that are already
// there, if any: only their owner can go on with them.
func identities(existing string) ([]identity, error) {
	accounts, err := lesserAccounts()
	if err != nil {
		return nil, err
	}
	us := os.Geteuid()
	all := []identity{{name: "this user", owner: us, apply: func(*exec.Cmd) {}}}
	if us == 0 {
		all = nil
	}
	// In a user namespace we are somebody else inside, while outside the files stay ours: root becomes a user, and an ordinary user
	// whom /etc/passwd does not know (as in some containers) gets a name, which initdb asks for.
	for _, account := range accounts {
		all = append(all, identity{name: "uid " + strconv.Itoa(account.uid) + " in a user namespace", owner: us, apply: func(cmd *exec.Cmd) {
			userNamespace(cmd, account.uid, us, os.Getegid())
		}})
	}
	if us != 0 {
		return all, nil
	}
	for _, account := range accounts {
		all = append(all, otherUser(account))
	}
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
	all = slices.DeleteFunc(all, func(id identity) bool { return id.owner != int(owner.Uid) })
	if len(all) == 0 {
		all = append(all, otherUser(account{uid: int(owner.Uid), gid: int(owner.Gid)}))
	}
	return all, nil
}

// account is an entry of /etc/passwd.
type account struct{ uid, gid int }

// lesserAccounts are accounts without rights that nearly every machine has.
func lesserAccounts() ([]account, error) {
	var found []account
	for _, name := range []string{"postgres", "nobody", "daemon"} {
		entry, err := user.Lookup(name)
		if err != nil {
			continue // the next one will do
		}
		uid, uidErr := strconv.Atoi(entry.Uid)
		gid, gidErr := strconv.Atoi(entry.Gid)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("read the ids of the user %s: %w", name, err)
		}
		found = append(found, account{uid: uid, gid: gid})
	}
	return found, nil
}

func otherUser(as account) identity {
	return identity{name: "uid " + strconv.Itoa(as.uid), owner: as.uid, apply: func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(as.uid), Gid: uint32(as.gid)}}
	}}
}

// works says whether the identity can run the program and write into dir. It is tried rather than reasoned about: user
// namespaces may be forbidden, a directory on the way may be closed to the other user, and initdb refuses a user without a name.
func (id identity) works(ctx context.Context, program, dir string) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `cd "$1" && : >.probe && rm .probe && id -un && exec "$2" --version`, "sh", dir, program)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
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
