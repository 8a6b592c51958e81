package codecs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// The stored forms below (marks, purchase states, raw records) begin with a format byte, so that a later version can read what this one
// wrote and an older one refuses what it does not know. Each value has exactly one encoding and decoding is strict: a damaged or
// foreign value is an error and never a plausible state.

// errDamaged is the cause of every decoding error of a stored form but an unknown format.
var errDamaged = errors.New("the stored value is damaged")

// binaryReader takes a stored form apart. The first error sticks; later reads return zero values.
type binaryReader struct {
	rest []byte
	err  error
}

func (r *binaryReader) damaged(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", errDamaged, what)
		r.rest = nil
	}
}

// format checks the format byte.
func (r *binaryReader) format(want byte) {
	if got := r.byte(); r.err == nil && got != want {
		r.err = fmt.Errorf("the stored value has format %d, this version reads %d: it was written by another version, or is no such value", got, want)
		r.rest = nil
	}
}

// take returns the next n bytes, shared with the input.
func (r *binaryReader) take(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.damaged("it is too short")
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *binaryReader) byte() byte {
	if b := r.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (r *binaryReader) uint32() uint32 {
	if b := r.take(4); len(b) == 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *binaryReader) uuid() (id uuid.UUID) {
	copy(id[:], r.take(16))
	return id
}

// uvarint reads an unsigned number up to limit in its shortest form.
func (r *binaryReader) uvarint(limit uint64) uint64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 || size > 1 && r.rest[size-1] == 0 || n > limit {
		r.damaged("a number in it is out of range")
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

// varint reads a signed number (zigzag).
func (r *binaryReader) varint() int64 {
	n := r.uvarint(1<<64 - 1)
	return int64(n>>1) ^ -int64(n&1)
}

// count reads how many things follow that take at least size bytes each, so that a damaged count cannot claim memory.
func (r *binaryReader) count(size int) int {
	n := r.uvarint(uint64(len(r.rest)))
	if n > uint64(len(r.rest)/size) {
		r.damaged("it is too short")
		return 0
	}
	return int(n)
}

// end checks that nothing is left.
func (r *binaryReader) end() error {
	if len(r.rest) > 0 {
		r.damaged("something follows its end")
	}
	return r.err
}

func appendBytes(b, data []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(data)))
	return append(b, data...)
}
