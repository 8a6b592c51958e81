package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
)

const (
	bigProject = 20_000
	active     = 200
)

// bigCatalog is project 0 with bigProject published objects and the given number of active purchases on it, among others.
func bigCatalog(t testing.TB, e *boostEnv, purchases int) {
	t.Helper()
	exec(t, e.pool, `INSERT INTO catalog.project_cards (id, status) SELECT ('10000000-0000-0000-' || to_char(0, 'FM0000') || '-' || lpad(to_hex(n), 12, '0'))::uuid, 'Published' FROM generate_series(0, 99) n`)
	exec(t, e.pool, `INSERT INTO catalog.property_object_cards (id, project_id, status, price)
		SELECT ('20000000-0000-0000-0000-' || lpad(to_hex(n), 12, '0'))::uuid, ('10000000-0000-0000-0000-' || lpad(to_hex(CASE WHEN n < $1 THEN 0 ELSE 1 + n % 99 END), 12, '0'))::uuid, 'Published', 1
		FROM generate_series(0, 2 * $1 - 1) n ORDER BY md5(n::text)`, bigProject)
	exec(t, e.pool, `DELETE FROM vitrina.changed_cards`)
	exec(t, e.pool, `VACUUM ANALYZE`)
	batch := make([]Snapshot, 0, purchases)
	for n := range purchases {
		batch = append(batch, e.snapshot(n, 1, codecs.StatusActive, int32(1+n%100), project(0)))
	}
	if len(batch) > 0 {
		e.flush(t, batch...)
	}
}

func timed(t testing.TB, what string, do func()) time.Duration {
	t.Helper()
	start := time.Now()
	do()
	took := time.Since(start)
	t.Logf("%s: %s", what, took.Round(100*time.Microsecond))
	return took
}

// A project with 20,000 published objects and 200 active purchases: one purchase event is visible on all cards in under a second.
func TestLargeCascadeUnderASecond(t *testing.T) {
	e := newBoostEnv(t)
	bigCatalog(t, e, active)
	sum := e.projectBoost(t, 0)
	best := time.Hour
	for n := range 3 {
		best = min(best, timed(t, "one event over 20,000 objects and 200 purchases", func() {
			e.flush(t, e.snapshot(active+n, 1, codecs.StatusActive, 1, project(0)))
		}))
	}
	require.Less(t, best, time.Second)
	require.Equal(t, int64(bigProject), scalar[int64](t.Context(), t, e.pool,
		`SELECT count(*) FROM catalog.property_object_cards WHERE project_id = $1 AND promotion_boost = $2`, projectID(0), sum+3))
	timed(t, "the same event again, nothing to write", func() { e.flush(t, e.snapshot(active, 1, codecs.StatusActive, 1, project(0))) })
}

// Statistics from a time when there was one target must not make a plan that compares every card with every target: 20,000
// purchases of objects together with a cascade over 20,000 cards took minutes then.
func TestStaleStatisticsCostNothing(t *testing.T) {
	e := newBoostEnv(t)
	bigCatalog(t, e, active)
	exec(t, e.pool, `VACUUM ANALYZE`)
	exec(t, e.pool, `ALTER TABLE vitrina.promotion_targets SET (autovacuum_enabled = off)`)
	batch := []Snapshot{e.snapshot(active, 1, codecs.StatusActive, 1, project(0))}
	for n := range bigProject {
		batch = append(batch, e.snapshot(active+1+n, 1, codecs.StatusActive, 1, object(n)))
	}
	e.flush(t, batch...)
	took := timed(t, "20,000 objects and a cascade over them", func() { e.flush(t, e.snapshot(active, 2, codecs.StatusActive, 2, project(0))) })
	require.Less(t, took, 10*time.Second)
	r, err := e.sink.Sweep(t.Context())
	require.NoError(t, err)
	require.Zero(t, r.Written)
	require.Less(t, r.Took, 10*time.Second)
}

// A burst of 5,000 events over one project rewrites its cards once for each batch.
func TestBurstOverOneProjectIsCoalesced(t *testing.T) {
	e := newBoostEnv(t)
	bigCatalog(t, e, 0)
	const events, batches = 5000, 5
	for b := range batches {
		batch := make([]Snapshot, 0, events/batches)
		for n := range events / batches {
			batch = append(batch, e.snapshot(b*100+n%250, int64(1+n/250), codecs.StatusActive, int32(1+n%100), project(0), object(n%250)))
		}
		timed(t, "1,000 events over one project", func() { e.flush(t, batch...) })
	}
	writes := scalar[int64](t.Context(), t, e.pool, `SELECT max(row_version) - 1 FROM catalog.property_object_cards`)
	require.LessOrEqual(t, writes, int64(batches))
	writes = scalar[int64](t.Context(), t, e.pool, `SELECT row_version - 1 FROM catalog.project_cards WHERE id = $1`, projectID(0))
	require.LessOrEqual(t, writes, int64(batches))
}

func BenchmarkFlush(b *testing.B) {
	for _, bench := range []struct {
		name    string
		targets func(n int) []codecs.Target
	}{
		{"objects", func(n int) []codecs.Target { return []codecs.Target{object(bigProject + n*7919%bigProject)} }},
		{"one project", func(n int) []codecs.Target { return []codecs.Target{project(0)} }},
		{"99 projects", func(n int) []codecs.Target {
			return []codecs.Target{project(1 + n%99), object(bigProject + n*7919%bigProject)}
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			e := newBoostEnv(b)
			bigCatalog(b, e, 0)
			const size = 5000
			version := int64(0)
			events := 0
			for b.Loop() {
				version++
				batch := make([]Snapshot, 0, size)
				for n := range size {
					batch = append(batch, e.snapshot(n, version, codecs.StatusActive, int32(1+(int64(n)+version)%100), bench.targets(n)...))
				}
				e.flush(b, batch...)
				events += size
			}
			b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

func BenchmarkReconcile(b *testing.B) {
	for _, step := range []int{1000, 5000} {
		for _, purchases := range []int{0, active} {
			b.Run(fmt.Sprintf("step %d, %d purchases on the large project", step, purchases), func(b *testing.B) {
				e := boostEnvOn(b, migrated(b), BoostConfig{Step: step})
				bigCatalog(b, e, purchases)
				for b.Loop() {
					exec(b, e.pool, `UPDATE catalog.property_object_cards SET promotion_boost = 0`)
					exec(b, e.pool, `INSERT INTO vitrina.changed_cards (kind, id) SELECT 2, id FROM catalog.property_object_cards`)
					exec(b, e.pool, `VACUUM ANALYZE catalog.property_object_cards`)
					r := e.reconcile(b)
					b.ReportMetric(float64(r.Examined)/r.Took.Seconds(), "cards/s")
					r, err := e.sink.Sweep(b.Context())
					require.NoError(b, err)
					b.ReportMetric(float64(r.Examined)/r.Took.Seconds(), "swept/s")
				}
			})
		}
	}
}
