package generate

import (
	"context"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// Partitioners are the ways in which records find their partition, as other teams' producers do it: librdkafka's CRC32,
// Java's murmur2, FNV-1a as sarama and Goka take it, and no relation to the key at all. They are written apart from the
// consumers' own hashers, on purpose.
func Partitioners() []string { return []string{"crc32", "murmur2", "fnv1a", "random"} }

// partitioner returns franz-go's choice of a partition for a name.
func partitioner(name string, seed uint64) (kgo.Partitioner, error) {
	s := &lockedSource{source: newSource(seed, 6)}
	var hashed func(key []byte, n int) int
	switch name {
	case "crc32":
		hashed = func(key []byte, n int) int { return int(crc32.ChecksumIEEE(key) % uint32(n)) }
	case "murmur2":
		return kgo.StickyKeyPartitioner(nil), nil // franz-go's default hasher is Java's
	case "fnv1a":
		hashed = kgo.SaramaCompatHasher(func(key []byte) uint32 {
			h := fnv.New32a()
			_, _ = h.Write(key) // a hash never fails
			return h.Sum32()
		})
	case "random":
	default:
		return nil, fmt.Errorf("partitioner %q is not one of %s", name, strings.Join(Partitioners(), ", "))
	}
	return kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
		return func(r *kgo.Record, n int) int {
			// A record without a key lies anywhere, whatever the producer.
			if hashed == nil || len(r.Key) == 0 {
				return s.intN(n)
			}
			return hashed(r.Key, n)
		}
	}), nil
}

type lockedSource struct {
	mu     sync.Mutex
	source source
}

func (s *lockedSource) intN(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.source.IntN(n)
}

// KafkaWriter produces records, acknowledged by all in-sync replicas and in order within a partition.
type KafkaWriter struct {
	client *kgo.Client
	mu     sync.Mutex
	failed error
}

// NewKafkaWriter connects with the given options. seed decides the random partitions.
func NewKafkaWriter(opts []kgo.Opt, partitionerName string, seed uint64) (*KafkaWriter, error) {
	chosen, err := partitioner(partitionerName, seed)
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(append(opts, kgo.RecordPartitioner(chosen), kgo.MaxBufferedRecords(50_000))...)
	if err != nil {
		return nil, fmt.Errorf("create the producer: %w", err)
	}
	return &KafkaWriter{client: client}, nil
}

// Write sends a record without waiting for it; it waits while too many are on their way. It returns the error of an
// earlier record, if one failed for good.
func (w *KafkaWriter) Write(ctx context.Context, rec *record.Record) error {
	out := &kgo.Record{Topic: rec.Topic, Key: rec.Key, Value: rec.Value, Timestamp: rec.Timestamp}
	for _, h := range rec.Headers {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	w.client.Produce(ctx, out, func(r *kgo.Record, err error) {
		if err == nil {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.failed == nil {
			w.failed = fmt.Errorf("produce to %s: %w", r.Topic, err)
		}
	})
	return w.err()
}

// Flush waits until every record is acknowledged.
func (w *KafkaWriter) Flush(ctx context.Context) error {
	if err := w.client.Flush(ctx); err != nil {
		return fmt.Errorf("wait for the broker's acknowledgements: %w", err)
	}
	return w.err()
}

// Close drops what was not flushed.
func (w *KafkaWriter) Close() { w.client.Close() }

func (w *KafkaWriter) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}
