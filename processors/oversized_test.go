package processors_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/lovoo/goka/storage"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/backoff"
	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/internal/stream/tablestore"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
	"github.com/pin-marketplace/vitrina/processors"
	"github.com/pin-marketplace/vitrina/processors/popularity"
	"github.com/pin-marketplace/vitrina/processors/promotion"
	"github.com/pin-marketplace/vitrina/sinks/batch"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

// sink is a database that takes everything at once.
type sink[T any] struct{}

func (sink[T]) Submit(_ context.Context, item batch.Item[T]) error {
	item.Done(nil)
	return nil
}

// A record that compresses to less than its topic's limit may be larger than any record of ours. When it also lay in the wrong partition,
// the loop topic refused it and the processor restarted at it for ever.
func TestAnOversizedMisplacedRecordRestartedTheProcessorForEver(t *testing.T) {
	id := uuid.MustParse("0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01")
	const meta = `{"EventId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8aff","CreatedAt":"2026-11-30T10:15:30Z","ContractVersion":1,"Payload":`
	view := func(padding string) string {
		return fmt.Sprintf(meta+`{"PropertyObjectViewId":"%s","PropertyObjectId":"%[1]s","SessionId":"%[1]s","AnonymousId":"%[1]s","ViewSource":"Catalog",
			"ViewedAt":"2026-11-30T10:15:30Z","LastActivityAt":"2026-11-30T10:15:30Z","DurationSeconds":1,"FilterSnapshot":%q}}`, id, padding)
	}
	purchase := func(padding string) string {
		return fmt.Sprintf(meta+`{"PurchaseId":"%s","Targets":[{"TargetKind":"Project","TargetId":"%[1]s"}],"BoostWeight":50,"Status":"Active",
			"EndsAt":"2026-11-30T10:15:30Z","Version":1,"TenantId":"%[1]s","Comment":%q}}`, id, padding)
	}
	events := telemetry.NewEventLog(slog.New(slog.DiscardHandler), 0, time.Now)
	for name, tt := range map[string]struct {
		value     func(padding string) string
		callbacks func(processors.Letters) (source, loop stream.Callback)
	}{
		"popularity": {view, func(letters processors.Letters) (source, loop stream.Callback) {
			c := popularity.New(popularity.Config{Group: "g", Hasher: "crc32", Codec: codecs.NewViewCodec([]string{"Catalog"}), Sink: sink[popularity.Task]{}, Letters: letters,
				Metrics: telemetry.NewPopularity(prometheus.NewRegistry(), nil), Tracing: telemetry.NoTracing(), Events: events, Clock: time.Now})
			return c.Handle, c.HandleLoop
		}},
		"promotion": {purchase, func(letters processors.Letters) (source, loop stream.Callback) {
			c := promotion.New(promotion.Config{Group: "g", Hasher: "crc32", Sink: sink[promotion.Task]{}, Letters: letters,
				Metrics: telemetry.NewPromotion(prometheus.NewRegistry()), Tracing: telemetry.NoTracing(), Events: events, Clock: time.Now})
			return c.Handle, c.HandleLoop
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBroker(t)
			letters := b.letters(t)
			source, loop := tt.callbacks(letters)
			spec := stream.Spec{Name: name, Group: "g", Input: "in", TableCodec: codecs.Bytes{}, Callback: source, LoopCallback: loop, DeadLetter: "dlq"}

			home := stream.CRC32.Partition([]byte(id.String()), 2)
			huge := tt.value(strings.Repeat("a", 9<<20))
			noise := tt.value(base64.StdEncoding.EncodeToString(randomBytes(9 << 20))) // compressed it is larger than the dead-letter topic takes
			b.produce(t,
				&kgo.Record{Topic: "in", Partition: 1 - home, Key: []byte(id.String()), Value: []byte(huge)},
				&kgo.Record{Topic: "in", Partition: 1 - home, Key: []byte("other"), Value: []byte(noise)},
				&kgo.Record{Topic: "in", Partition: 1 - home, Key: []byte(id.String()), Value: []byte(tt.value("small"))},
				&kgo.Record{Topic: "in", Partition: home, Key: []byte(id.String()), Value: []byte(huge)}, // large, but where it belongs
			)
			runtime := b.run(t, spec)
			b.waitCommitted(t, "in", 4)
			require.Zero(t, runtime.State().Restarts)
			b.waitCommitted(t, stream.LoopTopic("g"), 1)

			for i, letter := range b.read(t, "dlq", 2) {
				require.Equal(t, sha256.Sum256([]byte([]string{huge, noise}[i])), sha256.Sum256(letter.Value), "whole, so that it can be put right")
				header := map[string]string{}
				for _, h := range letter.Headers {
					header[h.Key] = string(h.Value)
				}
				require.Equal(t, "RECORD_TOO_LARGE", header[deadletter.HeaderErrorCode])
				require.Contains(t, header[deadletter.HeaderReason], []string{"its key hashes to partition", "its Kafka key is not the P"}[i])
				require.Contains(t, header[deadletter.HeaderReason], fmt.Sprintf("than the %d that the loop topic takes", stream.MaxValueBytes))
				require.Contains(t, header[deadletter.HeaderReason], fmt.Sprintf("produce it with the key %s to partition %d", id, home))
			}
		})
	}
}

// randomBytes do not compress.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // it never fails
	return b
}

// broker is an in-process broker with a source of two partitions and a dead-letter topic of one.
type broker struct {
	kafka  stream.KafkaConfig
	admin  *stream.Admin
	client *kgo.Client
}

func startBroker(t *testing.T) *broker {
	t.Helper()
	b := &broker{kafka: stream.KafkaConfig{Brokers: devtest.Embedded(t), ClientID: "oversized", SessionTimeout: 10 * time.Second}}
	var err error
	b.admin, err = stream.NewAdmin(b.kafka)
	require.NoError(t, err)
	t.Cleanup(b.admin.Close)
	_, err = b.admin.Kadm().CreateTopic(t.Context(), 2, -1, map[string]*string{"max.message.bytes": kadm.StringPtr("33554432")}, "in")
	require.NoError(t, err)
	_, err = b.admin.Kadm().CreateTopic(t.Context(), 1, -1, map[string]*string{"max.message.bytes": kadm.StringPtr("1048576")}, "dlq")
	require.NoError(t, err)
	b.client, err = kgo.NewClient(append(b.kafka.KgoOpts(), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(64<<20))...)
	require.NoError(t, err)
	t.Cleanup(b.client.Close)
	return b
}

func (b *broker) produce(t *testing.T, records ...*kgo.Record) {
	t.Helper()
	for _, r := range records { // one a batch: their order is part of the test
		require.NoError(t, b.client.ProduceSync(t.Context(), r).FirstErr())
	}
}

// letters is the dead-letter writer as the program makes it.
func (b *broker) letters(t *testing.T) *deadletter.Writer {
	t.Helper()
	client, err := kgo.NewClient(append(b.kafka.KgoOpts(), deadletter.ClientOptions()...)...)
	require.NoError(t, err)
	logger := slog.New(slog.DiscardHandler)
	w, err := deadletter.New(deadletter.Config{Consumer: "test", Topic: "dlq", Clock: time.Now}, client, telemetry.NewEventLog(logger, 0, time.Now), logger, deadletter.Metrics{})
	require.NoError(t, err)
	background(t, w.Run, client.Close)
	return w
}

// run runs a consumer until the test ends.
func (b *broker) run(t *testing.T, spec stream.Spec) *stream.Runtime {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	r, err := stream.New(spec, stream.Options{Kafka: b.kafka, Admin: b.admin, StateDir: t.TempDir(), CreateTopics: true, Logger: logger,
		Store:   func(dir string) storage.Builder { return tablestore.Builder(tablestore.Config{Dir: dir}, logger, nil) },
		Backoff: backoff.Config{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond}})
	require.NoError(t, err)
	background(t, r.Run, func() {})
	return r
}

func background(t *testing.T, run func(context.Context) error, then func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return run(ctx) })
	t.Cleanup(func() {
		cancel()
		require.NoError(t, g.Wait())
		then()
	})
}

// waitCommitted waits until the group has finished so many records of a topic.
func (b *broker) waitCommitted(t *testing.T, topic string, records int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		positions, err := b.admin.GroupPositions(t.Context(), "g", topic)
		if err != nil {
			return false
		}
		finished := int64(0)
		for _, p := range positions[topic] {
			finished += max(0, p.Committed)
		}
		return finished == records
	}, 60*time.Second, 10*time.Millisecond)
}

// read returns the first n records of a topic.
func (b *broker) read(t *testing.T, topic string, n int) []*kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(append(b.kafka.KgoOpts(), kgo.ConsumeTopics(topic))...)
	require.NoError(t, err)
	defer client.Close()
	var got []*kgo.Record
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for len(got) < n {
		got = append(got, client.PollFetches(ctx).Records()...)
		require.NoError(t, ctx.Err(), "%d of %d records of %s", len(got), n, topic)
	}
	return got
}
