package rebuild_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/ops/rebuild"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// fails runs an operation to its end, which must be a refusal, and returns the reason.
func (e *env) fails(r *rebuild.Runner, op postgres.Operation) string {
	e.t.Helper()
	ran, err := r.RunOne(e.t.Context(), op.ID)
	require.NoError(e.t, err)
	require.True(e.t, ran)
	op = e.wait(op.ID)
	require.Equal(e.t, postgres.OperationFailed, op.State)
	p, err := postgres.ReadProjection(e.t.Context(), e.pool, op.Projection)
	require.NoError(e.t, err)
	require.True(e.t, p.Open, "the projection is open again")
	return op.Error
}

// rebuilds runs an operation to its end, which must be good.
func (e *env) rebuilds(projection, source string, params rebuild.Params) {
	e.t.Helper()
	op := e.submit(rebuild.KindRebuild, projection, source, params)
	require.NoError(e.t, e.runner("command line").Seize(e.t.Context(), op.ID))
	e.succeeds(op.ID)
}

func TestARebuildOfBoostsWithTheFlagOffIsRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.spoil(`INSERT INTO catalog.project_cards (id, status, promotion_boost) VALUES ('0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01', 'Published', 40)`)
	_, _, err := rebuild.Submit(t.Context(), e.pool, rebuild.Request{Kind: rebuild.KindRebuild, Projection: promotionBoost}, false)
	var refused *rebuild.RefusedError
	require.ErrorAs(t, err, &refused)
	require.ErrorContains(t, err, "catalog.promotions.enabled is off")

	// Switched off while the operation waits, at each step before the reset.
	for _, point := range []string{"check next", "leave next", "reset next"} {
		var on atomic.Bool
		on.Store(true)
		r := e.runnerWith("flag", on.Load)
		if point == "check next" {
			on.Store(false)
		}
		r.CrashAt(func(at string) error {
			if at == point {
				on.Store(false)
			}
			return nil
		})
		reason := e.fails(r, e.submit(rebuild.KindRebuild, promotionBoost, rebuild.FromTopic, rebuild.Params{}))
		require.Contains(t, reason, "catalog.promotions.enabled is off", point)
	}
	var boost int
	require.NoError(t, e.pool.QueryRow(t.Context(), `SELECT promotion_boost FROM catalog.project_cards`).Scan(&boost))
	require.Equal(t, 40, boost)
}

func TestATopicCutByRetentionLosesNoPurchaseSilently(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	o := options(5)
	o.Views = 0
	i := e.start("one", "promotion")
	require.NoError(t, e.send(o, 0))
	e.equal(time.Minute, e.expected(false, false), boosts)
	e.caughtUp(boostGroup, purchases)
	i.stop()
	e.dropRecords(purchases)

	reason := e.fails(e.runner("command line"), e.submit(rebuild.KindRebuild, promotionBoost, rebuild.FromTopic, rebuild.Params{}))
	require.Contains(t, reason, "does not begin with its first record")
	require.Contains(t, reason, "purchases of the replica would be lost")
	require.Contains(t, reason, "--from table")
	e.equal(0, e.expected(false, false), boosts) // nothing was touched

	// What it says is what would be lost, and the group table has all of it.
	e.spoil(`UPDATE catalog.property_object_cards SET promotion_boost = 1 WHERE status = 'Published'`)
	e.start("two", "promotion")
	e.rebuilds(promotionBoost, rebuild.FromTable, rebuild.Params{})
	e.equal(time.Minute, e.expected(true, false), boosts)

	var before, after int
	count := `SELECT count(*) FROM vitrina.purchases`
	require.NoError(t, e.pool.QueryRow(t.Context(), count).Scan(&before))
	e.rebuilds(promotionBoost, rebuild.FromTopic, rebuild.Params{AcceptLoss: true})
	require.NoError(t, e.pool.QueryRow(t.Context(), count).Scan(&after))
	require.Less(t, after, before)
	require.Positive(t, after)
}

func TestPopularityFromTheMarksIsCompleteAfterRetention(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	o := options(6)
	o.Purchases, o.Homeless = 0, 0
	e.start("one", "popularity")
	require.NoError(t, e.send(o, 0))
	e.equal(time.Minute, e.expected(false, false), views)
	e.caughtUp(viewGroup, viewEnded)
	e.caughtUp(viewGroup, viewGroup+"-loop")
	e.dropRecords(viewEnded)
	e.spoil(`UPDATE catalog.property_object_cards SET popularity_views = 0 WHERE status <> 'Delisted'`,
		`UPDATE catalog.project_cards SET popularity_views = 1000 WHERE status <> 'Delisted'`, `DELETE FROM vitrina.views`)
	e.rebuilds(popularity, "marks", rebuild.Params{})
	e.equal(time.Minute, e.expected(true, true), views)

	// New events, of another city, go on counting; old ones do not come back.
	e.rebuilt = maps.Clone(e.cards)
	o.Seed, o.Duplicates = 7, 0.3
	require.NoError(t, e.send(o, 0))
	e.equal(time.Minute, e.expected(true, true), views)
}

func TestPendingAndDeadViewsStay(t *testing.T) {
	t.Parallel()
	for _, source := range []string{rebuild.FromMarks, rebuild.FromTopic} {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			cfg := e.config("one", "popularity")
			cfg.Popularity.RetryDelays = []time.Duration{50 * time.Millisecond, 50 * time.Millisecond}
			e.startWith(cfg)
			o := options(8)
			// No view by two records: a dead view that comes by another record than its own, as a looped one does in a replay, is
			// tried again (D17) and dies again.
			o.Purchases, o.LateCards, o.Homeless, o.Views, o.Duplicates, o.WrongKeys = 0, 0, 0.1, 500, 0, 0
			require.NoError(t, e.send(o, 0))
			dead := func() (n, letters int64) {
				late, err := postgres.ReadLateViews(t.Context(), e.pool)
				require.NoError(t, err)
				positions, err := e.admin.GroupPositions(t.Context(), "nobody", "pin.catalog.popularity-dlq.v1")
				require.NoError(t, err)
				for _, at := range positions["pin.catalog.popularity-dlq.v1"] {
					letters += at.End
				}
				return late.Dead, letters
			}
			e.eventually(time.Minute, func() (bool, string) {
				late, err := postgres.ReadLateViews(t.Context(), e.pool)
				require.NoError(t, err)
				return late.Dead > 20 && late.Pending == 0 && late.LettersDue == 0 && e.committed(viewGroup, viewEnded) >= 500, fmt.Sprintf("%+v", late)
			})
			e.equal(time.Minute, e.expected(false, false), views)
			n, letters := dead()
			e.rebuilds(popularity, source, rebuild.Params{})
			e.equal(time.Minute, e.expected(true, source == rebuild.FromMarks), views)
			again, lettersAgain := dead()
			require.Equal(t, []int64{n, letters}, []int64{again, lettersAgain}, "dead views stay dead and write no second letter")
		})
	}
}

func TestARecreatedTopicIsAcceptedByARebuild(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ projection, source string }{
		{popularity, rebuild.FromMarks}, {popularity, rebuild.FromTopic}, {promotionBoost, rebuild.FromTable}, {promotionBoost, rebuild.FromTopic},
	} {
		t.Run(test.projection+" from "+test.source, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			role, group, topic, number := "popularity", viewGroup, viewEnded, views
			o := options(9)
			o.Homeless, o.LateCards, o.Views, o.Purchases = 0, 0, 1000, 0
			if test.projection == promotionBoost {
				role, group, topic, number = "promotion", boostGroup, purchases, boosts
				o.Views, o.Purchases = 0, 300
			}
			one := e.start("one", role)
			require.NoError(t, e.send(o, 0))
			e.equal(time.Minute, e.expected(false, false), number)
			e.caughtUp(group, topic)
			e.caughtUp(group, group+"-loop")

			_, err := e.admin.Kadm().DeleteTopics(t.Context(), topic)
			require.NoError(t, err)
			partitions := int32(3)
			if test.projection == promotionBoost {
				partitions = 2
			}
			e.createTopic(topic, partitions)
			e.eventually(time.Minute, func() (bool, string) {
				s := one.program.Status()[0]
				return !s.Ready && strings.Contains(s.Reason, "vitrina rebuild "+test.projection), s.State + " " + s.Reason
			})

			// The producers send another city's worth into the new topic; the same events come again there too.
			more := o
			more.Seed = 10
			require.NoError(t, e.send(o, 0))
			require.NoError(t, e.send(more, 0))
			op := e.submit(rebuild.KindRebuild, test.projection, test.source, rebuild.Params{})
			require.NoError(t, e.runner("command line").Seize(t.Context(), op.ID))
			if test.source == rebuild.FromTopic && test.projection == promotionBoost {
				op = e.wait(op.ID)
				require.Equal(t, postgres.OperationFailed, op.State)
				require.Contains(t, op.Error, "was deleted and created again")
				require.Contains(t, op.Error, "every purchase of the replica has its newest event there")
				e.rebuilds(test.projection, test.source, rebuild.Params{AcceptLoss: true})
			} else {
				e.succeeds(op.ID)
			}
			// From the topic only what the topic holds is counted, which here is everything.
			e.equal(time.Minute, e.expected(true, test.source == rebuild.FromMarks), number)
		})
	}
}

func TestAnotherPartitionCount(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	o := options(12)
	o.Homeless, o.LateCards, o.Views, o.Purchases = 0, 0, 300, 300
	e.start("one", "promotion", "popularity")
	require.NoError(t, e.send(o, 0))
	e.equal(time.Minute, e.expected(false, false), boosts)
	e.equal(time.Minute, e.expected(false, false), views)
	_, err := e.admin.Kadm().UpdatePartitions(t.Context(), 4, purchases, viewEnded)
	require.NoError(t, err)

	for _, test := range []struct{ projection, source, says string }{
		{promotionBoost, rebuild.FromTable, "has 2 partitions and topic " + purchases + " has 4"},
		{popularity, rebuild.FromMarks, "has 3 partitions and topic " + viewEnded + " has 4, so keys lie in other partitions than their states: " +
			"the table is the only long memory of views and is never made anew, so have the topic's owner give it 3 partitions again"},
		{popularity, rebuild.FromTopic, "is never made anew"},
	} {
		op := e.submit(rebuild.KindRebuild, test.projection, test.source, rebuild.Params{})
		require.NoError(t, e.runner("command line").Seize(t.Context(), op.ID))
		require.Contains(t, e.wait(op.ID).Error, test.says)
	}
	o.Seed, o.Views = 13, 0
	require.NoError(t, e.send(o, 0)) // over four partitions
	e.rebuilds(promotionBoost, rebuild.FromTopic, rebuild.Params{})
	e.equal(time.Minute, e.expected(true, false), boosts)
	topics, err := e.admin.Topics(t.Context(), boostGroup+"-table", boostGroup+"-loop")
	require.NoError(t, err)
	require.Equal(t, int32(4), topics[boostGroup+"-table"].Partitions)
	require.Equal(t, int32(4), topics[boostGroup+"-loop"].Partitions)
}

// What is asked for twice is one operation; what differs is refused; a process that comes back late changes nothing.
func TestOneOperationAtATime(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.start("one", "promotion")
	first := e.submit(rebuild.KindRebuild, promotionBoost, "", rebuild.Params{})
	require.Equal(t, rebuild.FromTopic, first.Source)
	again, made, err := rebuild.Submit(t.Context(), e.pool, rebuild.Request{Kind: rebuild.KindRebuild, Projection: promotionBoost}, true)
	require.NoError(t, err)
	require.False(t, made)
	require.Equal(t, first.ID, again.ID)
	_, _, err = rebuild.Submit(t.Context(), e.pool, rebuild.Request{Kind: rebuild.KindRebuild, Projection: promotionBoost, Source: rebuild.FromTable}, true)
	var refused *rebuild.RefusedError
	require.ErrorAs(t, err, &refused)

	// The late process: it has done its step, and another one has taken over and ended the operation before it could record.
	late := e.runner("late")
	late.CrashAt(func(at string) error {
		if at == "offsets done" {
			require.NoError(t, e.runner("other").Seize(t.Context(), first.ID))
		}
		return nil
	})
	require.NoError(t, late.Seize(t.Context(), first.ID)) // it leaves the operation to the other
	e.succeeds(first.ID)
	ran, err := e.runner("idle").RunOne(t.Context(), first.ID)
	require.NoError(t, err)
	require.False(t, ran)
}

func TestInstancesRunOperationsThemselves(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	i := e.start("one", "promotion", "api")
	o := options(14)
	o.Views, o.Purchases = 0, 100
	require.NoError(t, e.send(o, 0))
	call := func(method, path, body string) (int, http.Header, map[string]any) {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer t0ken")
		w := httptest.NewRecorder()
		i.handler.ServeHTTP(w, r)
		var out map[string]any
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &out), w.Body.String())
		return w.Code, w.Header(), out
	}
	for body, want := range map[string]int{
		"": 422, "{}": 422, `{"projection":""}`: 422, `{"projection":"cards"}`: 400, `{"projection":"price-history"}`: 400,
		`{"projection":"popularity","from":"table"}`: 400, `{"projection":7}`: 400, `not json`: 400,
	} {
		code, _, _ := call("POST", "/admin/projections/rebuild", body)
		require.Equal(t, want, code, body)
	}
	code, header, op := call("POST", "/admin/projections/rebuild", `{"projection":"promotion-boost"}`)
	require.Equal(t, http.StatusAccepted, code, op)
	location := header.Get("Location")
	require.Equal(t, "/admin/operations/"+op["id"].(string), location)
	code, _, second := call("POST", "/admin/projections/rebuild", `{"projection":"promotion-boost"}`)
	require.Equal(t, http.StatusAccepted, code)
	require.Equal(t, op["id"], second["id"])
	code, _, _ = call("POST", "/admin/projections/rebuild", `{"projection":"promotion-boost","from":"table"}`)
	require.Equal(t, http.StatusConflict, code)
	e.eventually(2*time.Minute, func() (bool, string) {
		code, _, op = call("GET", location, "")
		require.Equal(t, http.StatusOK, code)
		return op["state"] == "succeeded", fmt.Sprint(op)
	})
	require.NotNil(t, op["finishedAt"])
	require.Nil(t, op["error"])
	require.InDelta(t, 100, op["progress"].(map[string]any)["percent"], 0)
	code, _, _ = call("GET", "/admin/operations/"+uuid.NewString(), "")
	require.Equal(t, http.StatusNotFound, code)
	code, _, _ = call("GET", "/admin/operations/7", "")
	require.Equal(t, http.StatusBadRequest, code)
	code, _, list := call("GET", "/admin/operations", "")
	require.Equal(t, http.StatusOK, code)
	require.Len(t, list["items"], 1)
	e.equal(time.Minute, e.expected(true, false), boosts)
}

func TestRequestsAreChecked(t *testing.T) {
	t.Parallel()
	negative := int32(-1)
	for name, q := range map[string]rebuild.Request{
		"no projection":      {Kind: rebuild.KindRebuild},
		"unknown projection": {Kind: rebuild.KindRebuild, Projection: strings.Repeat("x", 100)},
		"unknown source":     {Kind: rebuild.KindRebuild, Projection: popularity, Source: "memory"},
		"replay of boosts":   {Kind: rebuild.KindReplay, Projection: promotionBoost, Source: rebuild.FromTime},
		"replay of no time":  {Kind: rebuild.KindReplay, Projection: "price-history", Source: rebuild.FromTime},
		"negative partition": {Kind: rebuild.KindReplay, Projection: "price-history", Source: rebuild.FromOffset, Params: rebuild.Params{Partition: &negative}},
	} {
		_, _, err := rebuild.Submit(t.Context(), nil, q, true)
		var invalid *rebuild.InvalidError
		require.ErrorAsf(t, err, &invalid, name)
	}
}
