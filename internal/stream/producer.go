package stream

import (
	"context"
	"fmt"
	"hash"
	"sync"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka"
	"github.com/twmb/franz-go/pkg/kgo"
)

// franzProducer is Goka's producer on franz-go. It costs about half of sarama's CPU for each table write, and it can be given
// up: sarama's, once full or without a leader, holds a callback until the broker is back.
type franzProducer struct {
	client *kgo.Client
	ctx    context.Context //nolint:containedctx // goka.Producer has no context; this one ends what waits in Emit
	cancel context.CancelFunc
	close  sync.Once
}

// maxBuffered bounds the records that wait for the broker's acknowledgement; then Emit waits, which pauses the partition.
const maxBuffered = 100_000

// newFranzProducer makes a producer whose partitions are those of the hasher.
func newFranzProducer(ctx context.Context, k KafkaConfig, h Hasher) (*franzProducer, error) {
	opts := append(k.KgoOpts(),
		kgo.RecordPartitioner(kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
			return func(r *kgo.Record, n int) int { return int(h.Partition(r.Key, int32(n))) } //nolint:gosec // a partition count
		})),
		kgo.ProducerBatchMaxBytes(MaxRecordBytes),
		kgo.MaxBufferedRecords(maxBuffered),
		kgo.ProducerBatchCompression(kgo.Lz4Compression(), kgo.NoCompression()),
	)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("create the producer: %w", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &franzProducer{client: client, ctx: ctx, cancel: cancel}, nil
}

// Emit is part of goka.Producer.
func (p *franzProducer) Emit(topic, key string, value []byte) *goka.Promise {
	return p.EmitWithHeaders(topic, key, value, nil)
}

// EmitWithHeaders is part of goka.Producer. A nil value is a tombstone.
func (p *franzProducer) EmitWithHeaders(topic, key string, value []byte, headers goka.Headers) *goka.Promise {
	promise, finish := goka.NewPromiseWithFinisher()
	rec := &kgo.Record{Topic: topic, Key: []byte(key), Value: value}
	for name, v := range headers {
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: name, Value: v})
	}
	p.client.Produce(p.ctx, rec, func(r *kgo.Record, err error) {
		if err != nil {
			finish(nil, fmt.Errorf("produce to %s: %w", r.Topic, err))
			return
		}
		finish(&sarama.ProducerMessage{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}, nil)
	})
	return promise
}

// Close fails what is not acknowledged yet; Goka calls it when every partition is done. Its second call does nothing.
func (p *franzProducer) Close() error {
	p.close.Do(func() {
		p.cancel()
		p.client.Close()
	})
	return nil
}

// producers remembers the producer of the running processor, so that a stop can give up what the broker does not answer.
type producers struct {
	mu      sync.Mutex
	current *franzProducer
}

func (s *producers) builder(ctx context.Context, k KafkaConfig, h Hasher) goka.ProducerBuilder {
	return func([]string, string, func() hash.Hash32) (goka.Producer, error) {
		p, err := newFranzProducer(ctx, k, h)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		s.current = p
		s.mu.Unlock()
		return p, nil
	}
}

// abort fails everything that is not acknowledged, now and later; the records concerned stay unfinished and come again.
func (s *producers) abort() error {
	s.mu.Lock()
	p := s.current
	s.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.Close()
}
