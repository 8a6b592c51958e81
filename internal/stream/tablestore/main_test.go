package tablestore

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// childEnv makes the test binary a worker that TestKilledUnderLoad kills.
const childEnv = "VITRINA_TABLESTORE_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := workUntilKilled(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// LevelDB's goroutines that wait a second after Close before they end.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/syndtr/goleveldb/leveldb.(*DB).mpoolDrain"))
}
