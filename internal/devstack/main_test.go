package devstack_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/pin-marketplace/vitrina/internal/devstack"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
)

// victimEnv makes this test binary start servers in the directory that it names and wait to be killed.
const victimEnv = "DEVSTACK_TEST_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimEnv); dir != "" {
		os.Exit(victim(dir))
	}
	os.Exit(devtest.Main(m))
}

// victim starts servers, prints their process ids and waits for ever.
func victim(dir string) int {
	ctx := context.Background()
	postgres, err := devstack.StartPostgres(ctx, devstack.Options{Dir: dir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	clickhouse, err := devstack.StartClickHouse(ctx, devstack.Options{Dir: dir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if _, err := fmt.Fprintln(os.Stdout, postgres.PID(), clickhouse.PID(), postgres.DSN()); err != nil {
		return 1
	}
	<-postgres.Exited()
	return 1
}
