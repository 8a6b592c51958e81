package postgres

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

// BenchmarkViews measures batches of views on a server with fsync; one operation is a batch. "ledger" is what an instance sends: 20,000
// objects, Zipf-distributed, of 500 projects, one in 50 Delisted; one view in 20 was handled before. "cards alone" is what its counters
// cost without a ledger; the difference is the price of exactness. db-µs/view is the CPU time of the server's sessions,
// client-µs/view that of this process: unlike views/s they mean the same on a busy machine.
func BenchmarkViews(b *testing.B) {
	const objects, projects = 20_000, 500
	server := devtest.PostgresServer(b)
	dsn, err := server.CreateDatabase(b.Context(), "bench")
	require.NoError(b, err)
	_, err = Migrate(b.Context(), openMigrator(b, dsn))
	require.NoError(b, err)
	seed := newPool(b, dsn, PoolOptions{})
	exec(b, seed, `INSERT INTO catalog.project_cards (id, status) SELECT md5('p' || g)::uuid, 'Published' FROM generate_series(0, $1::int - 1) g`, projects)
	exec(b, seed, `INSERT INTO catalog.property_object_cards (id, project_id, status)
		SELECT md5('o' || g)::uuid, md5('p' || g % $2::int)::uuid, CASE WHEN g % 50 = 0 THEN 'Delisted' ELSE 'Published' END
		FROM generate_series(0, $1::int - 1) g`, objects, projects)
	exec(b, seed, `VACUUM ANALYZE catalog.property_object_cards`)
	exec(b, seed, `VACUUM ANALYZE catalog.project_cards`)
	rows, err := seed.Query(b.Context(), `SELECT id FROM catalog.property_object_cards`)
	require.NoError(b, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	require.NoError(b, err)
	random := rand.New(rand.NewPCG(1, 2))
	gen := &viewGenerator{objects: ids, random: random, zipf: rand.NewZipf(random, 1.2, 8, objects-1), now: time.Now()}

	for _, size := range []int{5_000, 20_000} {
		for _, writers := range []int{1, 2} {
			b.Run(fmt.Sprintf("ledger/size=%d/writers=%d", size, writers), func(b *testing.B) {
				pool := newPool(b, dsn, PoolOptions{MaxConns: int32(writers)})
				sink := benchSink(b, pool)
				gen.bench(b, pool, writers, size, func(items []ViewItem) error { return sink.Flush(b.Context(), items) })
				table := scalar[int64](b.Context(), b, seed, `SELECT pg_table_size('vitrina.views')`)
				index := scalar[int64](b.Context(), b, seed, `SELECT pg_indexes_size('vitrina.views')`)
				count := scalar[int64](b.Context(), b, seed, `SELECT count(*) FROM vitrina.views`)
				b.ReportMetric(float64(table)/float64(count), "table-B/view")
				b.ReportMetric(float64(index)/float64(count), "index-B/view")
			})
		}
	}
	const size = 20_000
	b.Run("cards alone", func(b *testing.B) {
		pool := newPool(b, dsn, PoolOptions{MaxConns: 1})
		gen.bench(b, pool, 1, size, func(items []ViewItem) error {
			fresh, _, _ := divide(items)
			batch := newViewBatch()
			batch.fill(fresh, &laneCache{mu: new(sync.RWMutex)}, new(delistedObjects))
			var counted uuidArray
			return pool.QueryRow(b.Context(), `SELECT o_counted FROM vitrina.add_popularity($1, $2)`, batch.distinct, batch.counts).Scan(counted.target())
		})
	})
	b.Run("known views", func(b *testing.B) {
		pool := newPool(b, dsn, PoolOptions{MaxConns: 1})
		sink := benchSink(b, pool)
		items := gen.next(size)
		require.NoError(b, sink.Flush(b.Context(), items))
		for i := range items {
			items[i].Kind = codecs.MarkOwn
		}
		gen.bench(b, pool, 1, size, func([]ViewItem) error { return sink.Flush(b.Context(), items) })
	})
}

func benchSink(b *testing.B, pool *pgxpool.Pool) *ViewsSink {
	sink, err := NewViewsSink(pool, ViewsConfig{Epoch: 1, SourceTopic: "views", LoopTopic: "loop", FirstTry: time.Second}, nil, ViewsMetrics{},
		telemetry.NewEventLog(slog.New(slog.DiscardHandler), 200, time.Now))
	require.NoError(b, err)
	return sink
}

// viewGenerator makes views with UUIDv7 ids, as the producer does: 150 a millisecond, read from six partitions of which each is some
// milliseconds further behind than the one before.
type viewGenerator struct {
	objects [][16]byte
	random  *rand.Rand
	zipf    *rand.Zipf
	now     time.Time
	offset  int64
	recent  []uuid.UUID
}

func (g *viewGenerator) next(n int) []ViewItem {
	items := make([]ViewItem, n)
	for i := range items {
		g.offset++
		partition := int32(i % 6)
		g.now = g.now.Add(time.Second / 150_000)
		item := ViewItem{
			ViewID: uuid.New(), ObjectID: g.objects[g.zipf.Uint64()], Kind: codecs.MarkNone, ViewSource: "Catalog", DurationSeconds: 60,
			Origin: codecs.Origin{Incarnation: 1, Partition: partition, Offset: g.offset}, Record: &record.Record{},
		}
		var stamp [8]byte
		binary.BigEndian.PutUint64(stamp[:], uint64(g.now.UnixMilli()-int64(partition)*15)<<16)
		copy(item.ViewID[:6], stamp[:6])
		if len(g.recent) > 0 && i%20 == 0 {
			item.ViewID, item.Kind, item.MarkAt = g.recent[g.random.IntN(len(g.recent))], codecs.MarkForeign, g.now
		}
		items[i] = item
	}
	g.recent = g.recent[:0]
	for i := range items {
		g.recent = append(g.recent, items[i].ViewID)
	}
	return items
}

func (g *viewGenerator) bench(b *testing.B, pool *pgxpool.Pool, writers, size int, apply func([]ViewItem) error) {
	require.NoError(b, apply(g.next(size))) // connections, plans
	batches := make([][]ViewItem, b.N)
	for i := range batches {
		batches[i] = g.next(size)
	}
	runtime.GC()
	before, clientBefore := sessionCPU(b, pool), processCPU(b)
	queue := make(chan []ViewItem)
	var wg sync.WaitGroup
	b.ResetTimer()
	for range writers {
		wg.Go(func() {
			for items := range queue {
				if err := apply(items); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for _, items := range batches {
		queue <- items
	}
	close(queue)
	wg.Wait()
	b.StopTimer()
	views := float64(b.N) * float64(size)
	b.ReportMetric(views/b.Elapsed().Seconds(), "views/s")
	b.ReportMetric(float64((processCPU(b)-clientBefore).Microseconds())/views, "client-µs/view")
	b.ReportMetric(float64((sessionCPU(b, pool)-before).Microseconds())/views, "db-µs/view")
}

// processCPU is the CPU time of this process.
func processCPU(b *testing.B) time.Duration {
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// sessionCPU is the CPU time of the server processes behind a pool.
func sessionCPU(b *testing.B, pool *pgxpool.Pool) time.Duration {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux this runs on
	var sum time.Duration
	for _, conn := range pool.AcquireAllIdle(b.Context()) {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", conn.Conn().PgConn().PID()))
		conn.Release()
		require.NoError(b, err)
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		for _, f := range fields[11:13] {
			n, err := strconv.Atoi(f)
			require.NoError(b, err)
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

// BenchmarkResetFromMarks measures the rebuild of the counters from marks: 500,000 of them for 20,000 cards. One operation is a rebuild.
func BenchmarkResetFromMarks(b *testing.B) {
	const marks, objects = 500_000, 20_000
	pool := migrated(b)
	exec(b, pool, `INSERT INTO catalog.property_object_cards (id, project_id, status) SELECT md5('o' || g)::uuid, md5('p' || g % 500)::uuid, 'Published' FROM generate_series(0, $1::int - 1) g`, objects)
	rows, err := pool.Query(b.Context(), `SELECT id FROM catalog.property_object_cards`)
	require.NoError(b, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	require.NoError(b, err)
	stream := func(yield func(ViewMark, error) bool) {
		for i := range marks {
			if !yield(ViewMark{ViewID: uuid.New(), Mark: codecs.Mark{Origin: at(0, int64(i)), ObjectID: ids[i%objects]}}, nil) {
				return
			}
		}
	}
	for b.Loop() {
		exec(b, pool, `UPDATE catalog.property_object_cards SET popularity_views = 0`)
		p, err := RaiseEpoch(b.Context(), pool, Popularity, "bench")
		require.NoError(b, err)
		require.NoError(b, pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
			r, err := ResetPopularityFromMarks(b.Context(), tx, []LaneOffset{{Lane: lane(0, false), Offset: marks}}, stream)
			if err != nil {
				return err
			}
			require.EqualValues(b, objects, r.Objects)
			return Reopen(b.Context(), tx, Popularity, p.Epoch)
		}))
	}
	b.ReportMetric(float64(b.N)*marks/b.Elapsed().Seconds(), "marks/s")
}

// BenchmarkPrepareViews measures what the client does before a call: sort a batch and encode it.
func BenchmarkPrepareViews(b *testing.B) {
	const size = 20_000
	random := rand.New(rand.NewPCG(1, 2))
	objects := make([][16]byte, size)
	for i := range objects {
		objects[i] = uuid.New()
	}
	gen := &viewGenerator{objects: objects, random: random, zipf: rand.NewZipf(random, 1.2, 8, size-1), now: time.Now()}
	items := gen.next(size)
	batch := newViewBatch()
	lanes := &laneCache{mu: new(sync.RWMutex)}
	for b.Loop() {
		fresh, _, _ := divide(items)
		batch.fill(fresh, lanes, new(delistedObjects))
		batch.empty()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/size, "ns/view")
}
