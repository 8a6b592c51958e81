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
	// One goroutine of LevelDB waits a second after Close before it ends.
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/syndtr/goleveldb/leveldb.(*DB).mpoolDrain"),
		// Goka does not close every sarama client it makes.
		goleak.IgnoreAnyFunction("github.com/IBM/sarama.(*Broker).responseReceiver"),
		goleak.IgnoreAnyFunction("github.com/IBM/sarama.(*client).backgroundMetadataUpdater"),
		goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
	)
}
