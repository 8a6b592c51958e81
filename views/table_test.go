package views

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/lovoo/goka/storage"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/stream"
)

// TestACopyThatStandsStillIsNotBelieved: Goka's view goes on answering with what it has while its connection is broken.
func TestACopyThatStandsStillIsNotBelieved(t *testing.T) {
	now := time.Unix(0, 0)
	tab := newTable(stream.ViewOptions{Logger: slog.New(slog.DiscardHandler)}, nil, func() time.Time { return now })
	build := tab.followed(func(string, int32) (storage.Storage, error) { return storage.NewMemory(), nil })
	lag := func(ends ...int64) (int64, bool) {
		positions := make([]stream.Positions, len(ends))
		for i, end := range ends {
			positions[i] = stream.Positions{End: end}
		}
		left, _, stuck := tab.behind(positions)
		return left, stuck
	}
	expect := func(left int64, stuck bool, ends ...int64) {
		t.Helper()
		gotLeft, gotStuck := lag(ends...)
		require.Equal(t, left, gotLeft)
		require.Equal(t, stuck, gotStuck)
	}
	expect(10, false, 4, 6) // nothing opened yet
	stores := make([]storage.Storage, 2)
	for i := range stores {
		st, err := build("t", int32(i))
		require.NoError(t, err)
		stores[i] = st
	}
	expect(10, false, 4, 6)
	require.NoError(t, stores[0].SetOffset(3))
	require.NoError(t, stores[1].SetOffset(5))
	expect(0, false, 4, 6)
	now = now.Add(time.Hour) // quiet for long, then a record comes
	expect(1, false, 4, 7)
	now = now.Add(patience)
	expect(1, false, 4, 7)
	require.NoError(t, stores[1].SetOffset(6))
	expect(5, false, 4, 12) // behind, but it moves
	now = now.Add(patience)
	require.NoError(t, stores[1].SetOffset(8))
	expect(3, false, 4, 12)
	now = now.Add(patience + 1)
	expect(3, true, 4, 12)
	require.NoError(t, stores[1].SetOffset(11))
	expect(0, false, 4, 12)

	// Records that compaction or deletion took away are not missing.
	left, total, stuck := tab.behind([]stream.Positions{{Start: 4, End: 4}, {Start: 12, End: 12}})
	require.Zero(t, left+total)
	require.False(t, stuck)

	// A view that starts anew begins where its disk has come to.
	st, err := tab.followed(func(string, int32) (storage.Storage, error) { return onDisk{storage.NewMemory()}, nil })("t", 1)
	require.NoError(t, err)
	expect(12, false, 4, 12)
	_, err = st.GetOffset(-3)
	require.NoError(t, err)
	expect(2, false, 4, 12)

	_, err = tab.followed(func(string, int32) (storage.Storage, error) { return nil, errors.New("full") })("t", 1)
	require.Error(t, err)
}

type onDisk struct{ storage.Storage }

func (onDisk) GetOffset(int64) (int64, error) { return 9, nil }
func (onDisk) SetOffset(int64) error          { return nil }
