package rebuild_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/generate"
)

// forgetful is an environment whose views were all counted so long ago that the ledger has none of them left: only marks and horizons
// know them. A tenth of the records lies under another key and went through the loop topic.
type forgetful struct {
	*env
	cfg      *config.Config
	options  generate.Options
	instance *instance
}

func newForgetful(t *testing.T) *forgetful {
	t.Helper()
	t.Parallel()
	f := &forgetful{env: newEnv(t), options: options(77)}
	f.cfg = f.config("one", "popularity")
	f.cfg.Popularity.LedgerWindow, f.cfg.Popularity.PruneInterval = time.Second, 200*time.Millisecond // shorter than validation lets anybody set
	o := &f.options
	o.Views, o.Purchases, o.Homeless, o.LateCards, o.WrongKeys = 1500, 0, 0, 0, 0.1
	f.instance = f.startWith(f.cfg)
	require.NoError(t, f.send(f.options, 0))
	f.unchanged()
	f.eventually(time.Minute, func() (bool, string) {
		n := f.rows()
		return n == 0, fmt.Sprintf("%d views are in the ledger", n)
	})
	positions, err := f.admin.GroupPositions(t.Context(), viewGroup, viewGroup+"-loop")
	require.NoError(t, err)
	var looped int64
	for _, at := range positions[viewGroup+"-loop"] {
		looped += at.End
	}
	require.Greater(t, looped, int64(o.Views/20))
	return f
}

// rows counts the views that the ledger still has.
func (f *forgetful) rows() (n int64) {
	f.t.Helper()
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), `SELECT count(*) FROM vitrina.views`).Scan(&n))
	return n
}

// unchanged waits until everything is consumed and compares the counters with the model, once: what is wrong then stays wrong.
func (f *forgetful) unchanged() {
	f.t.Helper()
	f.caughtUp(viewGroup, viewEnded)
	f.caughtUp(viewGroup, viewGroup+"-loop") // a source record is committed after the looped one is written
	f.equal(0, f.expected(false, false), views)
}

// rewind sets the offsets of the stopped group back to 0, as an operator does by hand.
func (f *forgetful) rewind(topics ...string) {
	f.t.Helper()
	var offsets kadm.Offsets
	for _, topic := range topics {
		for p := range int32(3) {
			offsets.Add(kadm.Offset{Topic: topic, Partition: p, At: 0, LeaderEpoch: -1})
		}
	}
	res, err := f.admin.Kadm().CommitOffsets(f.t.Context(), viewGroup, offsets)
	require.NoError(f.t, errors.Join(err, res.Error()))
	for _, topic := range topics {
		require.Zero(f.t, f.committed(viewGroup, topic))
	}
}

func TestARepeatOlderThanTheLedgersWindowChangesNothing(t *testing.T) {
	f := newForgetful(t)
	require.NoError(t, f.send(f.options, 0)) // each record once more, at another offset
	f.unchanged()
	require.Zero(t, f.rows(), "a view that was forgotten is not taken for a new one")
}

func TestAWholeTopicConsumedAgainByHandAfterTheWindowChangesNothing(t *testing.T) {
	f := newForgetful(t)
	f.instance.stop()
	f.rewind(viewEnded, viewGroup+"-loop")
	f.startWith(f.cfg)
	f.unchanged()
	require.Zero(t, f.rows(), "a view that was forgotten is not taken for a new one")
}

// The repeats come first: a topic that is consumed again from its beginning would make every mark anew before they are judged.
func TestARepeatAndThenAWholeTopicOnLostDisksAfterTheWindowChangeNothing(t *testing.T) {
	f := newForgetful(t)
	restart := func() {
		f.cfg.State.Dir = t.TempDir()
		f.instance = f.startWith(f.cfg)
	}
	f.instance.stop()
	restart()
	require.NoError(t, f.send(f.options, 0))
	f.unchanged()
	f.instance.stop()
	f.rewind(viewEnded, viewGroup+"-loop")
	restart()
	f.unchanged()
	require.Zero(t, f.rows(), "a view that was forgotten is not taken for a new one")
}
