package rebuild_test

import (
	"fmt"
	"testing"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/ops/rebuild"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
	"github.com/pin-marketplace/vitrina/test/observe"
)

func TestReplayOfPriceHistory(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.clickhouse()
	opts, err := ch.ParseDSN(e.facts)
	require.NoError(t, err)
	facts, err := ch.Open(opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, facts.Close()) })
	equal := func() {
		t.Helper()
		want := e.model.Expected().Facts
		e.eventually(time.Minute, func() (bool, string) {
			got, err := observe.Facts(t.Context(), facts)
			require.NoError(t, err)
			for id, f := range want {
				if got[id] != f {
					return false, fmt.Sprintf("%d facts of %d; differs: %+v, got %+v", len(got), len(want), f, got[id])
				}
			}
			return len(got) == len(want), fmt.Sprintf("%d facts of %d", len(got), len(want))
		})
	}
	cfg := e.config("one", "price")
	one := e.startWith(cfg)
	o := options(21)
	o.Views, o.Purchases, o.Prices = 0, 0, 500
	require.NoError(t, e.send(o, 0))
	equal()
	e.caughtUp(priceGroup, prices)
	middle := time.Now()

	// The facts are gone; a replay from the first offset brings them back, through a death at each point.
	truncate := `TRUNCATE TABLE property_object_price_history_facts`
	require.NoError(t, facts.Exec(t.Context(), truncate))
	e.rebuildThroughDeaths(e.submit(rebuild.KindReplay, "price-history", rebuild.FromOffset, rebuild.Params{}))
	equal()
	p, err := postgres.ReadProjection(t.Context(), e.pool, "price-history")
	require.NoError(t, err)
	require.True(t, p.Open)

	// From a time behind all records nothing moves; an offset above the committed one does not move the group forward.
	before := e.committed(priceGroup, prices)
	for source, params := range map[string]rebuild.Params{rebuild.FromTime: {Time: middle.Add(time.Hour)}, rebuild.FromOffset: {Offset: 1 << 40}} {
		op := e.submit(rebuild.KindReplay, "price-history", source, params)
		require.NoError(t, e.runner("command line").Seize(t.Context(), op.ID))
		e.succeeds(op.ID)
		require.Contains(t, e.wait(op.ID).Message, "0 records come again")
		require.Equal(t, before, e.committed(priceGroup, prices))
	}

	// From a time, one partition, and one that does not exist.
	require.NoError(t, facts.Exec(t.Context(), truncate))
	op := e.submit(rebuild.KindReplay, "price-history", rebuild.FromTime, rebuild.Params{Time: middle.Add(-time.Hour)})
	require.NoError(t, e.runner("command line").Seize(t.Context(), op.ID))
	e.succeeds(op.ID)
	equal()
	partition := int32(1)
	op = e.submit(rebuild.KindReplay, "price-history", rebuild.FromOffset, rebuild.Params{Partition: &partition})
	require.NoError(t, e.runner("command line").Seize(t.Context(), op.ID))
	e.succeeds(op.ID)
	require.Contains(t, e.wait(op.ID).Message, "1 partitions moved back")
	partition = 2
	require.Contains(t, e.fails(e.runner("command line"), e.submit(rebuild.KindReplay, "price-history", rebuild.FromOffset, rebuild.Params{Partition: &partition})), "there is no partition 2")

	// Without PostgreSQL the role runs, and the group can be moved once the instances are stopped.
	one.stop()
	away := e.config("away", "price")
	away.Postgres.DSN = config.Secret("postgres://nobody@127.0.0.1:1/nowhere")
	alone := e.startWith(away)
	o.Seed = 22
	require.NoError(t, e.send(o, 0))
	equal()
	e.caughtUp(priceGroup, prices)
	_, err = rebuild.ReplayWithoutDatabase(t.Context(), e.admin, rebuild.FromOffset, rebuild.Params{})
	require.ErrorContains(t, err, "stop the instances with the role price")
	alone.stop()
	require.NoError(t, facts.Exec(t.Context(), truncate))
	records, err := rebuild.ReplayWithoutDatabase(t.Context(), e.admin, rebuild.FromOffset, rebuild.Params{})
	require.NoError(t, err)
	require.Positive(t, records)
	e.startWith(away)
	equal()
}
