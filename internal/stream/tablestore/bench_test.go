package tablestore

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/bits-and-blooms/bloom/v3"
	"github.com/google/uuid"
	"github.com/lovoo/goka/storage"
	"github.com/stretchr/testify/require"
	"github.com/syndtr/goleveldb/leveldb"
)

// Run them over a million records with
//
//	go test ./internal/stream/tablestore -run '^$' -bench . -benchtime 1000000x -timeout 5m
//
// The records are those of popularity: a view's id, in 95 of 100 a new one, a mark of 40 bytes, an acknowledgement behind each.

// benchKey is a random id; one of twenty is an earlier one again.
func benchKey(i int) string {
	if i%20 == 19 {
		i -= 1 + (i*31)%min(i, 500_000)
	}
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(i)*0x9E3779B97F4A7C15)
	binary.BigEndian.PutUint64(id[8:], uint64(i)*0xC2B2AE3D27D4EB4F)
	return id.String()
}

// timeOrderedKey is a version 7 id, 70 to the millisecond.
func timeOrderedKey(i int) string {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], (1_750_000_000_000+uint64(i)/70)<<16|uint64(i)*0x9E3779B97F4A7C15>>52)
	binary.BigEndian.PutUint64(id[8:], uint64(i)*0xC2B2AE3D27D4EB4F)
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}

func plainGoka(b *testing.B, dir string) storage.Storage {
	b.Helper()
	db, err := leveldb.OpenFile(filepath.Join(dir, "plain"), nil)
	require.NoError(b, err)
	st, err := storage.New(db)
	require.NoError(b, err)
	require.NoError(b, st.Open())
	return st
}

func ours(b *testing.B, dir string) storage.Storage {
	b.Helper()
	return openStore(b, newTables(b, Config{Dir: dir}))
}

// cpuTime is what the process has used so far, LevelDB's merging and the collector included.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func report(b *testing.B, since time.Duration) {
	b.Helper()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64((cpuTime(b)-since).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
}

func eachStore(b *testing.B, run func(b *testing.B, build func(*testing.B, string) storage.Storage)) {
	for name, build := range map[string]func(*testing.B, string) storage.Storage{"table-store": ours, "plain-goka": plainGoka} {
		b.Run(name, func(b *testing.B) { run(b, build) })
	}
}

// BenchmarkRecords is what a processor does: read the key, write it if it is new, note the acknowledgement.
func BenchmarkRecords(b *testing.B) {
	for _, existing := range []int{0, 1_000_000} {
		b.Run(fmt.Sprintf("existing=%d", existing), func(b *testing.B) {
			eachStore(b, func(b *testing.B, build func(*testing.B, string) storage.Storage) {
				st := build(b, b.TempDir())
				mark := make([]byte, 40)
				for i := range existing {
					require.NoError(b, st.Set(benchKey(1_000_000_000+i*20), mark))
				}
				require.NoError(b, st.MarkRecovered())
				b.ResetTimer()
				cpu := cpuTime(b)
				offset := int64(0)
				for i := range b.N {
					key := benchKey(i)
					old, err := st.Get(key)
					if err != nil {
						b.Fatal(err)
					}
					if old != nil {
						continue
					}
					if err := st.Set(key, mark); err != nil {
						b.Fatal(err)
					}
					if offset > 0 {
						if err := st.SetOffset(offset); err != nil {
							b.Fatal(err)
						}
					}
					offset++
				}
				require.NoError(b, st.Close()) // the flush belongs to it
				report(b, cpu)
			})
		})
	}
}

// BenchmarkViews is BenchmarkRecords as the processor meets it: the six stores of a topic side by side, keys whose making is not
// measured, acknowledgements some time behind the writes.
func BenchmarkViews(b *testing.B) {
	const partitions, behind = 6, 1000
	for name, makeKey := range map[string]func(int) string{"random": benchKey, "time-ordered": timeOrderedKey} {
		b.Run(name, func(b *testing.B) {
			keys := make([]string, b.N)
			for i := range keys {
				keys[i] = makeKey(i)
			}
			tables := newTables(b, Config{Dir: b.TempDir()})
			var stores [partitions]storage.Storage
			for p := range stores {
				st, err := tables.Build(testTopic, int32(p))
				require.NoError(b, err)
				require.NoError(b, st.Open())
				require.NoError(b, st.MarkRecovered())
				stores[p] = st
			}
			mark := make([]byte, 31)
			b.ReportAllocs()
			b.ResetTimer()
			cpu := cpuTime(b)
			for i, key := range keys {
				st := stores[i%partitions]
				if _, err := st.Get(key); err != nil {
					b.Fatal(err)
				}
				if err := st.Set(key, mark); err != nil {
					b.Fatal(err)
				}
				if offset := int64(i/partitions - behind); offset > 0 {
					if err := st.SetOffset(offset); err != nil {
						b.Fatal(err)
					}
				}
			}
			for _, st := range stores {
				require.NoError(b, st.Close())
			}
			report(b, cpu)
		})
	}
}

// BenchmarkRecover is the replay of a changelog into an empty store.
func BenchmarkRecover(b *testing.B) {
	eachStore(b, func(b *testing.B, build func(*testing.B, string) storage.Storage) {
		st := build(b, b.TempDir())
		mark := make([]byte, 40)
		b.ResetTimer()
		cpu := cpuTime(b)
		for i := range b.N {
			if err := st.Set(benchKey(i*20), mark); err != nil {
				b.Fatal(err)
			}
			if err := st.SetOffset(int64(i)); err != nil {
				b.Fatal(err)
			}
		}
		require.NoError(b, st.MarkRecovered())
		require.NoError(b, st.Close())
		report(b, cpu)
	})
}

// BenchmarkStart opens a store of b.N keys: with its filter, and with a scan.
func BenchmarkStart(b *testing.B) {
	dir := b.TempDir()
	tables := newTables(b, Config{Dir: dir})
	s := openStore(b, tables)
	for i := range b.N {
		require.NoError(b, s.Set(benchKey(i*20), make([]byte, 40)))
	}
	require.NoError(b, s.Close())
	start := func(unit string, scanned bool) {
		begin := time.Now()
		s := openStore(b, tables)
		took := time.Since(begin)
		require.Equal(b, scanned, s.Stats().Scanned)
		b.ReportMetric(float64(took.Microseconds())/1000, unit)
		require.NoError(b, s.Close())
	}
	start("ms-after-journal", false) // LevelDB puts its journal into a table first
	start("ms-with-filter", false)
	require.NoError(b, os.Remove(filepath.Join(dir, testTopic+".3", filterFile)))
	start("ms-with-scan", true)
}

// BenchmarkFilter compares the blocked filter with the plain one of bits-and-blooms, both in our layers' proportions.
func BenchmarkFilter(b *testing.B) {
	const keys = 4_000_000
	hashes := make([]uint64, 1<<20)
	for i := range hashes {
		hashes[i] = hashOf(benchKey(i * 20))
	}
	b.Run("blocked/miss", func(b *testing.B) {
		f := newFilter()
		for i := range keys {
			f.add(uint64(i) * 0x9E3779B97F4A7C15)
		}
		b.ReportMetric(float64(f.bytes())/keys*8, "bits/key")
		b.ResetTimer()
		wrong := 0
		for i := range b.N {
			if f.has(hashes[i%len(hashes)]) {
				wrong++
			}
		}
		b.ReportMetric(float64(wrong)*100/float64(b.N), "%false")
	})
	b.Run("blocked/add", func(b *testing.B) {
		f := newFilter()
		for i := range b.N {
			f.add(hashes[i%len(hashes)])
		}
	})
	b.Run("bits-and-blooms/miss", func(b *testing.B) {
		f := bloom.NewWithEstimates(keys, 0.005)
		var buf [8]byte
		for i := range keys {
			binary.BigEndian.PutUint64(buf[:], uint64(i)*0x9E3779B97F4A7C15)
			f.Add(buf[:])
		}
		b.ResetTimer()
		wrong := 0
		for i := range b.N {
			binary.BigEndian.PutUint64(buf[:], hashes[i%len(hashes)])
			if f.Test(buf[:]) {
				wrong++
			}
		}
		b.ReportMetric(float64(wrong)*100/float64(b.N), "%false")
	})
	b.Run("bits-and-blooms/add", func(b *testing.B) {
		f := bloom.NewWithEstimates(keys, 0.005)
		var buf [8]byte
		for i := range b.N {
			binary.BigEndian.PutUint64(buf[:], hashes[i%len(hashes)])
			f.Add(buf[:])
		}
	})
}
