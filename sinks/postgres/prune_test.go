package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPruningBoundsTheLedgerAndKeepsTheHorizon(t *testing.T) {
	e := newViewsEnv(t)
	e.project("p", "Published")
	e.object("o", "p", "Published")
	e.object("gone", "p", "Delisted")
	const old, young = 500, 20
	var items []ViewItem
	for i := range old {
		items = append(items, view(fmt.Sprint("old", i), map[bool]string{true: "gone", false: "o"}[i%10 == 0], at(0, int64(i))))
	}
	require.NoError(t, e.flush(items...))
	e.progress.set([2]int64{old, old}, [2]int64{0, 0})
	pruner := e.newPruner(time.Hour)
	pruner.logger = slog.New(slog.NewTextHandler(e.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	require.Zero(t, e.prune(t, pruner).Rows, "nothing was ever checked")
	e.shift(2 * time.Hour)
	require.Zero(t, e.prune(t, pruner).Rows, "one step of two")
	items = nil
	for i := range young {
		items = append(items, view(fmt.Sprint("young", i), "o", at(0, int64(old+i))))
	}
	require.NoError(t, e.flush(items...))
	report := e.prune(t, pruner)
	require.EqualValues(t, old, report.Rows)
	require.Greater(t, report.Pages, int64(5), "in steps of one page")
	require.Equal(t, 3, strings.Count(e.log.String(), "event=ledger-pruned"), "one line a pass")
	require.Equal(t, 1, strings.Count(e.log.String(), "level=INFO"), "of the pass that deleted something")
	require.WithinDuration(t, time.Now().Add(-2*time.Hour), report.Before, 10*time.Minute)
	require.Equal(t, young, scalar[int](t.Context(), t, e.pool, `SELECT count(*) FROM vitrina.views`))
	require.Equal(t, young, scalar[int](t.Context(), t, e.pool, `SELECT count(*) FROM vitrina.views WHERE state = 'counted'`))
	ledger, err := ReadLedger(t.Context(), e.pool)
	require.NoError(t, err)
	require.EqualValues(t, old, ledger.Horizons[0].Offset)
	require.Equal(t, report.Before.UTC(), ledger.PrunedBefore.UTC())
	require.False(t, ledger.PassedAt.IsZero())

	// A whole topic consumed again by hand: below the horizon without marks, above it from the ledger.
	e.progress.set([2]int64{0, old + young}, [2]int64{0, 0})
	e.prune(t, pruner)
	for i := range old {
		items = append(items, view(fmt.Sprint("old", i), "o", at(0, int64(i))))
	}
	require.NoError(t, e.flush(items...))
	require.EqualValues(t, old-old/10+young, e.objectViews(t, "o"))
	require.EqualValues(t, 0, e.objectViews(t, "gone"))
}

func TestPruningGoesOnWhereItsOffsetsCanBeRead(t *testing.T) {
	e := newViewsEnv(t)
	e.progress.err = errors.New("Kafka is away")
	pruner := e.newPruner(time.Hour)
	_, err := pruner.Prune(t.Context())
	require.ErrorContains(t, err, "Kafka is away")

	pruner.logger = slog.New(slog.NewJSONHandler(e.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	pruner.cfg.Interval = time.Millisecond
	pruner.cfg.Backoff.Min, pruner.cfg.Backoff.Max = time.Millisecond, time.Millisecond
	pruner.cfg.Timeout = 30 * time.Second
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- pruner.Run(ctx) }()
	e.progress.mu.Lock()
	e.progress.err = nil
	e.progress.mu.Unlock()
	e.progress.set([2]int64{0, 0})
	require.Eventually(t, func() bool { return strings.Count(e.log.String(), `"event":"ledger-pruned"`) >= 3 }, 20*time.Second, time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}

func TestOneOfTheInstancesMakesEachPass(t *testing.T) {
	e := newViewsEnv(t)
	e.progress.set([2]int64{0, 0})
	pruner := e.newPruner(time.Hour)
	rest, err := pruner.untilDue(t.Context())
	require.NoError(t, err)
	require.Zero(t, rest)
	e.prune(t, pruner)
	other := e.newPruner(time.Hour)
	rest, err = other.untilDue(t.Context())
	require.NoError(t, err)
	require.Greater(t, rest, 9*time.Minute)
	require.LessOrEqual(t, rest, 10*time.Minute)
}
