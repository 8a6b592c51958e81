package codecs

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/pin-marketplace/vitrina/internal/record"
)

const (
	recordFormat = 1

	recordNullKey     = 1 << 0
	recordNullValue   = 1 << 1
	recordNoTimestamp = 1 << 2
)

// EncodeRecord writes a whole record in a compact binary form: the loop topic's value and the ledger's raw column. Nulls, empty values,
// repeated headers, their order, the timestamp and the record's place survive.
func EncodeRecord(rec *record.Record) []byte {
	size := 64 + len(rec.Topic) + len(rec.Key) + len(rec.Value)
	for _, h := range rec.Headers {
		size += 8 + len(h.Key) + len(h.Value)
	}
	b := make([]byte, 0, size)
	var flags byte
	if rec.Key == nil {
		flags |= recordNullKey
	}
	if rec.Value == nil {
		flags |= recordNullValue
	}
	if rec.Timestamp.IsZero() {
		flags |= recordNoTimestamp
	}
	b = append(b, recordFormat, flags)
	b = appendBytes(b, []byte(rec.Topic))
	b = binary.AppendVarint(b, int64(rec.Partition))
	b = binary.AppendVarint(b, rec.Offset)
	if !rec.Timestamp.IsZero() {
		b = binary.AppendVarint(b, rec.Timestamp.Unix())
		b = binary.AppendUvarint(b, uint64(rec.Timestamp.Nanosecond()))
	}
	if rec.Key != nil {
		b = appendBytes(b, rec.Key)
	}
	if rec.Value != nil {
		b = appendBytes(b, rec.Value)
	}
	b = binary.AppendUvarint(b, uint64(len(rec.Headers)))
	for _, h := range rec.Headers {
		b = appendBytes(b, []byte(h.Key))
		if h.Value == nil {
			b = append(b, 0)
			continue
		}
		b = binary.AppendUvarint(b, uint64(len(h.Value))+1)
		b = append(b, h.Value...)
	}
	return b
}

// DecodeRecord reads what EncodeRecord wrote; the timestamp comes back in UTC. The result shares data's memory: neither may be changed.
func DecodeRecord(data []byte) (*record.Record, error) {
	r := binaryReader{rest: data}
	r.format(recordFormat)
	flags := r.byte()
	if flags&^(recordNullKey|recordNullValue|recordNoTimestamp) != 0 {
		r.damaged("unknown flags")
	}
	rec := &record.Record{}
	rec.Topic = string(r.take(r.uvarint(math.MaxInt32)))
	partition := r.varint()
	if partition < math.MinInt32 || partition > math.MaxInt32 {
		r.damaged("the partition is out of range")
	}
	rec.Partition = int32(partition)
	rec.Offset = r.varint()
	if flags&recordNoTimestamp == 0 {
		seconds := r.varint()
		rec.Timestamp = time.Unix(seconds, int64(r.uvarint(999_999_999))).UTC()
		if rec.Timestamp.IsZero() {
			r.damaged("the timestamp is zero")
		}
	}
	if flags&recordNullKey == 0 {
		rec.Key = r.take(r.uvarint(math.MaxInt32))
	}
	if flags&recordNullValue == 0 {
		rec.Value = r.take(r.uvarint(math.MaxInt32))
	}
	if n := r.count(2); n > 0 {
		rec.Headers = make([]record.Header, n)
	}
	for i := range rec.Headers {
		rec.Headers[i].Key = string(r.take(r.uvarint(math.MaxInt32)))
		if n := r.uvarint(math.MaxInt32); n > 0 {
			rec.Headers[i].Value = r.take(n - 1)
		}
	}
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("decoding a raw record: %w", err)
	}
	return rec, nil
}
