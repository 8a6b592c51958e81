package devstack_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	osexec "os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/devstack"
)

func TestServersDieWithAKilledParentAndTheirDataCanBeUsedAtOnce(t *testing.T) {
	dir := reachableDir(t)
	parent := osexec.CommandContext(t.Context(), "/proc/self/exe")
	parent.Env = append(os.Environ(), victimEnv+"="+dir)
	parent.Stderr = os.Stderr
	stdout, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	var postgres, clickhouse int
	var dsn string
	_, err = fmt.Sscan(line, &postgres, &clickhouse, &dsn)
	require.NoError(t, err)
	exec(t, dsn, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (3)")

	require.NoError(t, parent.Process.Kill())
	require.Error(t, parent.Wait())
	begin := time.Now()
	server, err := devstack.StartPostgres(t.Context(), devstack.Options{Dir: dir})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Stop(context.WithoutCancel(t.Context()))) }()
	require.Less(t, time.Since(begin), 20*time.Second)
	require.Equal(t, 3, query[int](t, server.DSN(), "SELECT n FROM kept"))
	for _, pid := range []int{postgres, clickhouse} {
		require.Eventually(t, func() bool {
			_, err := os.Stat("/proc/" + strconv.Itoa(pid))
			return os.IsNotExist(err)
		}, 10*time.Second, 20*time.Millisecond, "process %d outlived its parent", pid)
	}
}

func TestTheDownloadedPostgresRunsWhereNoneIsInstalled(t *testing.T) {
	server, err := devstack.StartPostgres(t.Context(), devstack.Options{Bundled: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Stop(context.WithoutCancel(t.Context()))) }()
	require.Equal(t, "17.10", query[string](t, server.DSN(), "SHOW server_version"))
}
