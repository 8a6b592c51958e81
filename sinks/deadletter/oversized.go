package deadletter

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	maxMessageBytes = "max.message.bytes"
	// overhead covers what a batch of one record adds to the record's own bytes.
	overhead = 64 << 10
)

// flushOversized writes one letter that its topic did not take, raising the topic's limit where that is allowed.
func (w *Writer) flushOversized(ctx context.Context, parcels []*parcel) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.cfg.AckTimeout, errNoAck)
	defer cancel()
	for _, p := range parcels {
		err := w.writeAlone(ctx, p)
		if err == nil {
			continue
		}
		if !TooLarge(err) {
			w.topic.adopt(ctx, w.client, w.cfg.Topic, err)
			return w.explain(err)
		}
		need := sizeOf(Encode(w.cfg.Topic, p.letter, w.cfg.Clock())) + overhead
		if grow := w.grow(ctx, need); grow != nil {
			return fmt.Errorf("the dead letter of %s needs %d bytes, more than %s takes, and its %s could not be raised (%w); raise it to %d or more "+
				"(`vitrina topics apply` or kafka-configs): the letter is kept and its record's partition commits no further until then",
				p.letter.Record.ID, need, w.cfg.Topic, maxMessageBytes, grow, need)
		}
		if err := w.writeAlone(ctx, p); err != nil {
			return w.explain(err)
		}
	}
	return nil
}

// grow raises the topic's max.message.bytes. It never lowers it.
func (w *Writer) grow(ctx context.Context, need int) error {
	if need > maxRequestBytes {
		return fmt.Errorf("this is beyond the %d bytes of a produce request", maxRequestBytes)
	}
	admin := kadm.NewClient(w.client)
	described, err := admin.DescribeTopicConfigs(ctx, w.cfg.Topic)
	if err != nil {
		return fmt.Errorf("read the topic's settings: %w", err)
	}
	topic, err := described.On(w.cfg.Topic, nil)
	if err == nil {
		err = topic.Err
	}
	if err != nil {
		return fmt.Errorf("read the topic's settings: %w", err)
	}
	for _, c := range topic.Configs {
		if c.Key != maxMessageBytes || c.Value == nil {
			continue
		}
		if now, err := strconv.Atoi(*c.Value); err == nil && now >= need {
			return fmt.Errorf("the topic already allows %d, so another limit refuses it, perhaps segment.bytes", now)
		}
	}
	value := strconv.Itoa(need)
	responses, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: maxMessageBytes, Value: &value}}, w.cfg.Topic)
	if err != nil {
		return fmt.Errorf("alter the topic: %w", err)
	}
	for _, r := range responses {
		if r.Err != nil {
			return fmt.Errorf("alter the topic: %w", r.Err)
		}
	}
	w.logger.Warn("the dead-letter topic was too small for a letter; its limit has been raised",
		slog.String("event", "dlq-topic-raised"), slog.String("topic", w.cfg.Topic), slog.Int(maxMessageBytes, need))
	return nil
}

// sizeOf is the size of a record before compression, which bounds that of its batch.
func sizeOf(r *kgo.Record) int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value) + 16
	}
	return n
}
