package rebuild_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/ops/rebuild"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// points are all moments at which the process of a rebuild may die: before a step, and after its work before that is recorded.
var points = []string{ //nolint:gochecknoglobals // a table of cases
	"check done", "close next", "close done", "leave next", "leave done", "epoch next", "epoch done", "offsets next", "offsets done",
	"reset next", "reset done", "catch-up next", "catch-up done", "loop next", "loop done", "finish next",
}

// rebuildThroughDeaths runs an operation by a chain of processes, each of which dies at the next point.
func (e *env) rebuildThroughDeaths(op postgres.Operation) {
	e.t.Helper()
	died := errors.New("the process dies")
	for _, point := range points {
		r := e.runner("dies at " + point)
		r.CrashAt(func(at string) error {
			if at == point {
				return died
			}
			return nil
		})
		require.ErrorIsf(e.t, r.Seize(e.t.Context(), op.ID), died, "it dies at %q", point)
	}
	require.NoError(e.t, e.runner("ends it").Seize(e.t.Context(), op.ID))
	e.succeeds(op.ID)
}

// Each rebuild, under load, with spoiled counters and a death at each point, ends as the model says.
func TestRebuildsEqualTheModelThroughADeathAtEachPoint(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		projection, source, group, topic, role string
	}{
		{promotionBoost, rebuild.FromTopic, boostGroup, purchases, "promotion"},
		{promotionBoost, rebuild.FromTable, boostGroup, purchases, "promotion"},
		{popularity, rebuild.FromTopic, viewGroup, viewEnded, "popularity"},
		{popularity, rebuild.FromMarks, viewGroup, viewEnded, "popularity"},
	} {
		t.Run(test.projection+" from "+test.source, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			o := options(11)
			if test.role == "promotion" {
				o.Views = 0
			} else {
				o.Purchases = 0
			}
			e.start("one", test.role)
			sent := make(chan error, 1)
			go func() { sent <- e.send(o, float64(o.Views+o.Purchases)/25) }()
			e.eventually(time.Minute, func() (bool, string) {
				n := e.committed(test.group, test.topic)
				return n > int64(o.Views+o.Purchases)/10, fmt.Sprintf("%d committed", n)
			})
			table := e.topicID(test.group + "-table")
			if test.role == "promotion" {
				e.spoil(`UPDATE catalog.property_object_cards SET promotion_boost = promotion_boost + 3 WHERE status <> 'Delisted'`)
			} else {
				e.spoil(`UPDATE catalog.property_object_cards SET popularity_views = popularity_views + 3 WHERE status <> 'Delisted'`)
			}
			e.rebuildThroughDeaths(e.submit(rebuild.KindRebuild, test.projection, test.source, rebuild.Params{}))
			require.NoError(t, <-sent)
			number := views
			if test.role == "promotion" {
				number = boosts
			}
			e.equal(time.Minute, e.expected(test.source != "", test.source == rebuild.FromMarks), number)
			require.Equal(t, test.source == rebuild.FromTopic && test.role == "promotion", table != e.topicID(test.group+"-table"),
				"only a rebuild of boosts from the topic makes the group table anew")
		})
	}
}
