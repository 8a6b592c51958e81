package devstack

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
)

// childEnv marks a process that was started as a server: its value says which one and how.
const childEnv = "VITRINA_DEVSTACK_CHILD"

// childSpec is the order to a child process.
type childSpec struct {
	ClickHouse *clickhouseSpec `json:"clickhouse"`
}

// RunChild must be the first call of every program that starts devstack's servers (main, or devtest.Main in tests): ClickHouse
// is this same program started again. In such a child it serves until it is killed and returns the exit code and true; otherwise it
// returns false at once.
func RunChild() (code int, child bool) {
	order, ok := os.LookupEnv(childEnv)
	if !ok {
		return 0, false
	}
	var spec childSpec
	err := json.Unmarshal([]byte(order), &spec)
	switch {
	case err != nil:
	case spec.ClickHouse != nil:
		err = serveClickHouse(*spec.ClickHouse)
	default:
		err = fmt.Errorf("%s names no server", childEnv)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "devstack child:", err)
		return 1, true
	}
	return 0, true
}

// childCommand is this program started again to run as spec says. A program that does not call RunChild first must not run as a second
// copy of itself: of a test binary the argument selects no test.
func childCommand(ctx context.Context, name string, spec childSpec) (*exec.Cmd, error) {
	order, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("write the order to a child process: %w", err)
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^$") // the link works after a rebuild, too
	cmd.Args[0] = name
	cmd.Env = []string{childEnv + "=" + string(order), "PATH=" + os.Getenv("PATH"), "TZ=UTC", "LC_ALL=C"}
	return cmd, nil
}
