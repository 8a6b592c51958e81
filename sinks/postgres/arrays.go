package postgres

import (
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"
)

// encodedArray is an array argument in PostgreSQL's binary format, without nulls. pgx boxes each element of a slice that it
// encodes; the views sink sends a hundred thousand views a second, and that was a third of its own work.
type encodedArray []byte

const arrayHeader = 20 // dimensions, null flag, element type, length, lower bound: four bytes each

// begin empties the array for n elements of a type, n above 0, and keeps its memory.
func (a encodedArray) begin(element uint32, n int) encodedArray {
	a = binary.BigEndian.AppendUint32(a[:0], 1)
	a = binary.BigEndian.AppendUint32(a, 0)
	a = binary.BigEndian.AppendUint32(a, element)
	a = binary.BigEndian.AppendUint32(a, uint32(n)) //nolint:gosec // the length of a slice of views
	return binary.BigEndian.AppendUint32(a, 1)
}

func (a encodedArray) int16(v int16) encodedArray {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(a, 2), uint16(v)) //nolint:gosec // its bits
}

func (a encodedArray) int64(v int64) encodedArray {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(a, 8), uint64(v)) //nolint:gosec // its bits
}

func (a encodedArray) uuid(v [16]byte) encodedArray {
	return append(binary.BigEndian.AppendUint32(a, 16), v[:]...)
}

// registerEncodedArrays lets encodedArray be an argument of the types it is used for. Other values are encoded as before.
func registerEncodedArrays(m *pgtype.Map) {
	for _, oid := range []uint32{pgtype.Int2ArrayOID, pgtype.Int8ArrayOID, pgtype.UUIDArrayOID} {
		if known, ok := m.TypeForOID(oid); ok {
			m.RegisterType(&pgtype.Type{Name: known.Name, OID: oid, Codec: arrayCodec{known.Codec}})
		}
	}
}

type arrayCodec struct{ pgtype.Codec }

// PlanEncode is of pgtype.Codec.
func (c arrayCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.(encodedArray); ok && format == pgtype.BinaryFormatCode {
		return encodedPlan{}
	}
	return c.Codec.PlanEncode(m, oid, format, value)
}

type encodedPlan struct{}

// Encode is of pgtype.EncodePlan.
func (encodedPlan) Encode(value any, buf []byte) ([]byte, error) {
	array, ok := value.(encodedArray)
	if !ok {
		return nil, fmt.Errorf("%T is no encoded array", value)
	}
	return append(buf, array...), nil
}

// uuidArray is an array of an answer as it came, null being empty: most elements are never looked at.
type uuidArray []byte

func (a *uuidArray) target() *pgtype.UndecodedBytes { return (*pgtype.UndecodedBytes)(a) }

// check says whether at may be used; it makes an array of no dimension empty.
func (a *uuidArray) check() error {
	raw := *a
	switch {
	case len(raw) == 0:
		return nil
	case len(raw) == 12 && binary.BigEndian.Uint32(raw) == 0:
		*a = nil
		return nil
	case len(raw) >= arrayHeader && binary.BigEndian.Uint32(raw) == 1 && binary.BigEndian.Uint32(raw[4:]) == 0 &&
		binary.BigEndian.Uint32(raw[8:]) == pgtype.UUIDOID && len(raw) == arrayHeader+20*int(binary.BigEndian.Uint32(raw[12:])):
		return nil
	default:
		return fmt.Errorf("PostgreSQL answered with %d bytes that are no array of uuid without nulls", len(raw))
	}
}

func (a uuidArray) len() int { return max(0, len(a)-arrayHeader) / 20 }

func (a uuidArray) at(i int) [16]byte { return [16]byte(a[arrayHeader+20*i+4:]) }
