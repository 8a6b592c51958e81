package deadletter

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
)

var now = time.Date(2026, 11, 30, 10, 15, 30, 123456789, time.FixedZone("", 3*3600))

func headers(pairs ...string) []kgo.RecordHeader {
	var hs []kgo.RecordHeader
	for i := 0; i < len(pairs); i += 2 {
		hs = append(hs, kgo.RecordHeader{Key: pairs[i], Value: []byte(pairs[i+1])})
	}
	return hs
}

func added(reason, code, topic, offset, partition, attempts string) []kgo.RecordHeader {
	return headers("x-dlq-reason", reason, "x-dlq-error-code", code, "x-source-topic", topic, "x-original-offset", offset,
		"x-original-partition", partition, "x-dlq-timestamp", "2026-11-30T07:15:30.123456789Z", "x-dlq-attempts", attempts)
}

func TestALetterIsTheRecordAsItWas(t *testing.T) {
	id := record.ID{Topic: "pin.source.v1", Partition: 5, Offset: 9007199254740993}
	own := added("NewPrice is below 0.", "CONTRACT_INVALID_FIELD", "pin.source.v1", "9007199254740993", "5", "1")
	for name, tc := range map[string]struct {
		rec     record.Record
		headers []kgo.RecordHeader
	}{
		"key, value and no header": {record.Record{Key: []byte("k"), Value: []byte("v")}, nil},
		"null key":                 {record.Record{Value: []byte("v")}, nil},
		"empty key, empty value":   {record.Record{Key: []byte{}, Value: []byte{}}, nil},
		"a tombstone":              {record.Record{Key: []byte("k")}, nil},
		"bytes that are no text":   {record.Record{Key: []byte{0, 255}, Value: []byte{254, 0, 1}}, nil},
		"own headers in order, repeated ones, null and empty values": {
			record.Record{Headers: []record.Header{{Key: "b", Value: []byte("1")}, {Key: "a"}, {Key: "b", Value: []byte{}}, {Key: "traceparent", Value: []byte("00-x")}, {Key: "b", Value: []byte("1")}}},
			[]kgo.RecordHeader{{Key: "b", Value: []byte("1")}, {Key: "a"}, {Key: "b", Value: []byte{}}, {Key: "traceparent", Value: []byte("00-x")}, {Key: "b", Value: []byte("1")}}},
		"headers of an earlier letter, in any case and repeated (D33)": {
			record.Record{Headers: []record.Header{{Key: "x-dlq-reason", Value: []byte("old")}, {Key: "a", Value: []byte("1")}, {Key: "X-Source-Topic", Value: []byte("old")},
				{Key: "x-original-offset"}, {Key: "x-original-offset", Value: []byte("2")}, {Key: "x-original-partition"}, {Key: "x-dlq-timestamp"}, {Key: "x-dlq-attempts"}, {Key: "x-dlq-error-code"}}},
			headers("a", "1")},
		"other x- headers are the producer's": {
			record.Record{Headers: []record.Header{{Key: "x-request-id", Value: []byte("7")}, {Key: "x-dlq", Value: []byte("8")}}},
			headers("x-request-id", "7", "x-dlq", "8")},
	} {
		t.Run(name, func(t *testing.T) {
			tc.rec.ID = id
			got := Encode("dlq", Letter{Record: &tc.rec, Code: codecs.CodeInvalidField, Reason: "NewPrice is below 0."}, now)
			require.Equal(t, "dlq", got.Topic)
			require.Equal(t, tc.rec.Key, got.Key)
			require.Equal(t, tc.rec.Value, got.Value)
			require.Equal(t, append(tc.headers, own...), got.Headers)
			require.Equal(t, now, got.Timestamp)
		})
	}
}

func TestAttemptsAndReasonAreMadeFit(t *testing.T) {
	got := Encode("dlq", Letter{Record: &record.Record{ID: record.ID{Topic: "t"}}, Code: codecs.CodePropertyObjectNotFound, Reason: "bad \xff byte", Attempts: 7}, now)
	require.Equal(t, added("bad \uFFFD byte", "CATALOG_SYNC_PROPERTY_OBJECT_NOT_FOUND", "t", "0", "0", "7"), got.Headers)
}
