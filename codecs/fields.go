package codecs

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"time"

	"github.com/shopspring/decimal"
)

// maxFields is the number of fields of the largest payload.
const maxFields = 16

// fields converts the scanned spans of one object. The first fault sticks: later calls return zero values, so that a decoder reads as
// a list of its fields and the fault reported is that of the first field of the contract, not of the text.
//
// The spans lie inside, not behind a pointer: so a decoder's whole working state stays on the stack.
type fields struct {
	data     []byte           // the whole text
	nameOf   func(int) string // the name of a field, by its place in spans; empty behind the last
	spans    [maxFields]span
	guids    [maxFields]guid // of the fields in isGUID
	isGUID   uint32          // bit set of the fields that are known to be Guids; others may be too
	seen     uint32          // bit set of the fields that came
	repeated uint32          // bit set of the fields that came more than once
	secret   uint32          // bit set of fields whose value no reason may show
	list     string          // name of the array or the field that holds the object, if any
	index    int             // the object's place in the array, notIndexed if it is in none
	fault    *Fault
}

const notIndexed = -1

// set notes the value of a field; of repeated ones the last.
func (f *fields) set(i int, v span) {
	f.repeated |= f.seen & (1 << i)
	f.seen |= 1 << i
	f.isGUID &^= 1 << i
	f.spans[i] = v
}

// setGUID notes after set that the value is this Guid.
func (f *fields) setGUID(i int, id guid) {
	f.isGUID |= 1 << i
	f.guids[i] = id
}

// forget undoes every set.
func (f *fields) forget() {
	if f.seen != 0 {
		f.spans, f.seen, f.repeated, f.isGUID = [maxFields]span{}, 0, 0, 0
	}
}

func undecodable(reason string) *Fault { return &Fault{Code: CodeUndecodable, Reason: reason} }

func repeatedField(name string) *Fault {
	return &Fault{Code: CodeInvalidField, Field: name,
		Reason: "The field " + name + " is there more than once (PascalCase and camelCase are one field)."}
}

// name is a field's name in faults: "BoostWeight", "Targets[3].TargetId".
func (f *fields) name(i int) string {
	switch {
	case f.list == "":
		return f.nameOf(i)
	case f.index == notIndexed:
		return f.list + "." + f.nameOf(i)
	}
	return f.list + "[" + strconv.Itoa(f.index) + "]." + f.nameOf(i)
}

func (f *fields) fail(code Code, i int, format string, args ...any) {
	if f.fault == nil {
		name := f.name(i)
		f.fault = &Fault{Code: code, Field: name, Reason: "The field " + name + " " + fmt.Sprintf(format, args...) + "."}
	}
}

// reject faults a field whose value breaks a rule or has the wrong form.
func (f *fields) reject(i int, must string) {
	f.fail(CodeInvalidField, i, "must be %s, but it is %s", must, f.show(i))
}

// overflow faults a field whose value is beyond its type or column.
func (f *fields) overflow(i int, limit string) {
	f.fail(CodeValueOutOfRange, i, "is beyond %s: %s", limit, f.show(i))
}

// text returns the string of a span, unescaped; false for other kinds and for half a surrogate pair.
func (f *fields) text(v span) ([]byte, bool) {
	if v.kind != kindString {
		return nil, false
	}
	b := f.data[v.start+1 : v.end-1]
	if v.escaped {
		return unescape(b)
	}
	return b, true
}

// show describes a value for a person: shortened, quoted, and not at all where it is personal.
func (f *fields) show(i int) string {
	v := f.spans[i]
	switch v.kind {
	case kindObject:
		return "an object"
	case kindArray:
		return "an array"
	case kindNull:
		return "null"
	case absent:
		return "missing"
	case kindBool, kindNumber, kindString:
	}
	if f.secret>>i&1 == 1 {
		return "not (its value is not shown)"
	}
	if v.kind != kindString {
		return shorten(string(f.data[v.start:v.end]), maxEchoLen)
	}
	if b, ok := f.text(v); ok {
		return strconv.Quote(shorten(string(b), maxEchoLen))
	}
	return "a string with half a surrogate pair"
}

// checkRepeated faults the first field that came more than once, the fields that nobody reads included (D20).
func (f *fields) checkRepeated() {
	if f.repeated != 0 && f.fault == nil {
		f.fault = repeatedField(f.name(bits.TrailingZeros32(f.repeated)))
	}
}

// present says whether an optional field has a value.
func (f *fields) present(i int) bool { return f.fault == nil && f.spans[i].kind > kindNull }

// require faults a field that is missing or null (D14).
func (f *fields) require(i int) bool {
	switch {
	case f.fault != nil:
		return false
	case f.spans[i].kind == absent:
		f.fail(CodeInvalidField, i, "is required, but it is missing")
		return false
	case f.spans[i].kind == kindNull:
		f.fail(CodeInvalidField, i, "is required, but it is null")
		return false
	}
	return true
}

// requireKind is require with a JSON type.
func (f *fields) requireKind(i int, k kind, must string) bool {
	if !f.require(i) {
		return false
	}
	if f.spans[i].kind != k {
		f.reject(i, must)
		return false
	}
	return true
}

// guid reads a required Guid; the empty one too.
func (f *fields) guid(i int) guid {
	if !f.require(i) {
		return guid{}
	}
	if f.isGUID>>i&1 == 1 {
		return f.guids[i]
	}
	if b, ok := f.text(f.spans[i]); ok {
		if id, ok := readGUID(b); ok {
			return id
		}
	}
	f.reject(i, "a Guid (8-4-4-4-12 hexadecimal digits)")
	return guid{}
}

// id reads a required Guid that must not be empty.
func (f *fields) id(i int) guid {
	id := f.guid(i)
	if id == (guid{}) {
		f.reject(i, "a Guid that is not empty")
	}
	return id
}

// string reads a required string, as bytes that may be the text's own.
func (f *fields) string(i int) []byte {
	if !f.require(i) {
		return nil
	}
	b, ok := f.text(f.spans[i])
	if !ok {
		f.reject(i, "a string")
	}
	return b
}

// integer reads a required integer of the given range, which is that of its .NET type.
func (f *fields) integer(i int, low, high int64, typeName string) int64 {
	if !f.require(i) {
		return 0
	}
	v := f.spans[i]
	if v.kind != kindNumber {
		f.reject(i, "an integer")
		return 0
	}
	n, state := parseInteger(f.data[v.start:v.end])
	switch {
	case state == malformed:
		f.reject(i, "an integer (no fraction, no exponent)")
		return 0
	case state == outOfRange || n < low || n > high:
		f.overflow(i, "the range of "+typeName)
		return 0
	}
	return n
}

func (f *fields) int64(i int) int64 {
	return f.integer(i, math.MinInt64, math.MaxInt64, "a 64-bit integer")
}
func (f *fields) int32(i int) int64 {
	return f.integer(i, math.MinInt32, math.MaxInt32, "a 32-bit integer")
}

// positive reads a required 64-bit integer above zero.
func (f *fields) positive(i int) int64 {
	n := f.int64(i)
	if f.fault == nil && n <= 0 {
		f.reject(i, "above 0")
	}
	return n
}

// time reads a required time; offset as parseTime.
func (f *fields) time(i int) (t time.Time, offset int) {
	b := f.string(i)
	if f.fault != nil {
		return time.Time{}, 0
	}
	t, offset, state := parseTime(b)
	switch state {
	case malformed:
		f.reject(i, "an RFC 3339 time with an offset")
	case outOfRange:
		f.overflow(i, "the range of DateTimeOffset")
	case fits:
	}
	return t, offset
}

// decimal reads a required decimal, a number or a string that holds one, exactly.
func (f *fields) decimal(i int) decimal.Decimal {
	if !f.require(i) {
		return decimal.Decimal{}
	}
	v := f.spans[i]
	var b []byte
	if v.kind == kindNumber {
		b = f.data[v.start:v.end]
	} else {
		b, _ = f.text(v) // nil for anything but a string
	}
	d, state := parseDecimal(b)
	switch state {
	case malformed:
		f.reject(i, "a decimal number, or a string that holds one")
	case outOfRange:
		f.overflow(i, "the range of decimal")
	case fits:
	}
	return d
}

// money rounds an amount to the scale of the price columns (D12) and checks that they hold it (D13).
func (f *fields) money(i int, exact decimal.Decimal) decimal.Decimal {
	d := exact.Round(2)
	if f.fault == nil && !holds(d, 18) {
		f.overflow(i, "the column Decimal(18,2)")
	}
	return d
}
