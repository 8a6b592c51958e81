// Package deadletter is the one way by which a record that cannot be processed leaves: to its consumer's dead-letter topic,
// as it was, with the headers of contracts section 2. A letter is written until every in-sync replica has it; only then is
// its record finished.
package deadletter

import (
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
)

// The headers of a dead letter.
const (
	HeaderReason            = "x-dlq-reason"
	HeaderErrorCode         = "x-dlq-error-code"
	HeaderSourceTopic       = "x-source-topic"
	HeaderOriginalOffset    = "x-original-offset"
	HeaderOriginalPartition = "x-original-partition"
	HeaderTimestamp         = "x-dlq-timestamp"
	HeaderAttempts          = "x-dlq-attempts"
)

// Letter is one record that cannot be processed, and why.
type Letter struct {
	Record   *record.Record // the original record: of a looped one the one it was looped from
	Code     codecs.Code
	Reason   string // one sentence for a person, with no personal data
	Attempts int    // tries made, the first included; below 1 counts as 1
	// Attrs are what the log line says besides about the event: the ids that are known, never UserId, AnonymousId or SessionId.
	Attrs []slog.Attr
}

// IsOwnHeader tells whether a header is one that a dead letter adds. Names compare without case, as readers compare them.
func IsOwnHeader(name string) bool {
	for _, own := range [...]string{HeaderReason, HeaderErrorCode, HeaderSourceTopic, HeaderOriginalOffset, HeaderOriginalPartition, HeaderTimestamp, HeaderAttempts} {
		if strings.EqualFold(name, own) {
			return true
		}
	}
	return false
}

// Encode makes the Kafka record of a letter. Key, value and the record's own headers are those of the original, null staying
// null; headers of an earlier dead letter are replaced (D33). The record's timestamp is now: the original's would let the
// topic's retention delete a letter about an old record as soon as it is written.
func Encode(topic string, l Letter, now time.Time) *kgo.Record {
	headers := make([]kgo.RecordHeader, 0, len(l.Record.Headers)+7)
	for _, h := range l.Record.Headers {
		if !IsOwnHeader(h.Key) {
			headers = append(headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
	}
	add := func(name, value string) {
		headers = append(headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	add(HeaderReason, strings.ToValidUTF8(l.Reason, "\uFFFD"))
	add(HeaderErrorCode, string(l.Code))
	add(HeaderSourceTopic, l.Record.Topic)
	add(HeaderOriginalOffset, strconv.FormatInt(l.Record.Offset, 10))
	add(HeaderOriginalPartition, strconv.FormatInt(int64(l.Record.Partition), 10))
	add(HeaderTimestamp, now.UTC().Format(time.RFC3339Nano))
	add(HeaderAttempts, strconv.Itoa(max(1, l.Attempts)))
	return &kgo.Record{Topic: topic, Key: l.Record.Key, Value: l.Record.Value, Headers: headers, Timestamp: now}
}
