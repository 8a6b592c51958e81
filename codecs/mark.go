package codecs

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// MaxMarkSize is the most bytes that an encoded mark takes; one of a topic of six partitions and a billion records takes 31.
const MaxMarkSize = 40

const (
	markFormat     = 1
	markFormatLoop = 2 // the same, made by a record of the loop topic
)

// AppendBinary appends the mark's encoded form, at most MaxMarkSize bytes. At is cut to whole seconds and kept within 1970 to 2106. The
// error means a negative partition or offset, which no delivered record has.
func (m Mark) AppendBinary(b []byte) ([]byte, error) {
	if m.Partition < 0 || m.Offset < 0 {
		return nil, fmt.Errorf("encoding a mark: partition %d, offset %d is no place of a record", m.Partition, m.Offset)
	}
	format := byte(markFormat)
	if m.Loop {
		format = markFormatLoop
	}
	b = append(b, format)
	b = binary.BigEndian.AppendUint32(b, m.Incarnation)
	b = binary.BigEndian.AppendUint32(b, uint32(min(max(m.At.Unix(), 0), math.MaxUint32)))
	b = append(b, m.ObjectID[:]...)
	b = binary.AppendUvarint(b, uint64(m.Partition))
	return binary.AppendUvarint(b, uint64(m.Offset)), nil
}

// MarshalBinary returns the mark's encoded form; see AppendBinary.
func (m Mark) MarshalBinary() ([]byte, error) {
	return m.AppendBinary(make([]byte, 0, MaxMarkSize))
}

// DecodeMark reads what MarshalBinary wrote.
func DecodeMark(data []byte) (Mark, error) {
	var m Mark
	r := binaryReader{rest: data}
	if len(data) > 0 && data[0] == markFormatLoop {
		m.Loop = true
		r.format(markFormatLoop)
	} else {
		r.format(markFormat)
	}
	m.Incarnation = r.uint32()
	m.At = time.Unix(int64(r.uint32()), 0).UTC()
	m.ObjectID = r.uuid()
	m.Partition = int32(r.uvarint(math.MaxInt32))
	m.Offset = int64(r.uvarint(math.MaxInt64))
	if err := r.end(); err != nil {
		return Mark{}, fmt.Errorf("decoding a mark: %w", err)
	}
	return m, nil
}
