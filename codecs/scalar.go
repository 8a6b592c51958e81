package codecs

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/big"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"
)

// fit says whether a text was of the right form and within its type.
type fit uint8

const (
	malformed fit = iota
	outOfRange
	fits
)

// guid is a Guid in two words, which pass through the decoder in registers; an array of bytes would not.
type guid struct{ first, second uint64 }

func (g guid) put(id *uuid.UUID) {
	binary.LittleEndian.PutUint64(id[:8], g.first)
	binary.LittleEndian.PutUint64(id[8:], g.second)
}

func (g guid) uuid() (id uuid.UUID) {
	g.put(&id)
	return id
}

// parseGUID is readGUID for those who want bytes.
func parseGUID(b []byte) (id uuid.UUID, ok bool) {
	g, ok := readGUID(b)
	return g.uuid(), ok
}

// readGUID reads 8-4-4-4-12 hexadecimal digits of any case, with or without braces (D18), and no other form.
func readGUID(b []byte) (id guid, ok bool) {
	if len(b) == 38 && b[0] == '{' && b[37] == '}' {
		b = b[1:37]
	}
	if len(b) != 36 || b[8] != '-' || b[13] != '-' || b[18] != '-' || b[23] != '-' {
		return guid{}, false
	}
	// Eight digits at a time: every view brings six Guids, and digit by digit they were a fifth of its cost.
	d1 := binary.LittleEndian.Uint64(b)
	d2 := uint64(binary.LittleEndian.Uint32(b[9:])) | uint64(binary.LittleEndian.Uint32(b[14:]))<<32
	d3 := uint64(binary.LittleEndian.Uint32(b[19:])) | uint64(binary.LittleEndian.Uint32(b[24:]))<<32
	d4 := binary.LittleEndian.Uint64(b[28:])
	if hexDigits(d1)&hexDigits(d2)&hexDigits(d3)&hexDigits(d4) != high {
		return guid{}, false
	}
	return guid{hexValue8(d1) | hexValue8(d2)<<32, hexValue8(d3) | hexValue8(d4)<<32}, true
}

// hexDigits looks at eight bytes at once and marks, by its highest bit, each that is a hexadecimal digit.
func hexDigits(text uint64) uint64 {
	ascii := text &^ high      // no sum below carries into the next byte
	lower := ascii | ones*0x20 // lower case for letters; no other byte becomes a letter by it
	digit := (ascii + ones*(0x80-'0')) &^ (ascii + ones*(0x80-'9'-1))
	letter := (lower + ones*(0x80-'a')) &^ (lower + ones*(0x80-'f'-1))
	return (digit | letter) &^ text & high
}

// hexValue8 returns the four bytes that eight hexadecimal digits stand for; the first is the lowest, in text and result.
func hexValue8(text uint64) uint64 {
	n := text&(ones*0x0F) + text>>6&ones*9 // bit 6 tells letters from digits
	n = (n<<4 | n>>8) & 0x00FF00FF00FF00FF // two digits make a byte, and the bytes move together
	n = (n | n>>8) & 0x0000FFFF0000FFFF
	return uint64(uint32(n | n>>16))
}

// parseInteger reads a JSON integer: digits with an optional minus, no fraction, no exponent (D24).
func parseInteger(b []byte) (int64, fit) {
	d, negative := b, false
	if len(b) > 0 && b[0] == '-' {
		d, negative = b[1:], true
	}
	if len(d) == 0 || digits(d) != len(d) || len(d) > 1 && d[0] == '0' {
		return 0, malformed
	}
	if len(d) > 19 {
		return 0, outOfRange
	}
	var n uint64 // 19 digits cannot overflow it
	for _, c := range d {
		n = n*10 + uint64(c-'0')
	}
	switch {
	case negative && n <= -math.MinInt64:
		return int64(-n), fits
	case !negative && n <= math.MaxInt64:
		return int64(n), fits
	}
	return 0, outOfRange
}

// parseTime reads an RFC 3339 time with 0 to 9 fractional digits and any offset (D19); T and Z may be lower case, as the RFC allows. A
// leap second (23:59:60 UTC at the end of a month) is the first second of the next minute, as in Unix time. offset is in seconds east
// of UTC. Instants outside the years 1 to 9999 UTC, which DateTimeOffset cannot hold, are out of range.
func parseTime(b []byte) (t time.Time, offset int, state fit) {
	if len(b) < len("0001-01-01T00:00:00Z") || b[4] != '-' || b[7] != '-' || b[10]|0x20 != 't' || b[13] != ':' || b[16] != ':' {
		return time.Time{}, 0, malformed
	}
	century, year, month, day := pair(b, 0), pair(b, 2), pair(b, 5), pair(b, 8)
	hour, minute, second := pair(b, 11), pair(b, 14), pair(b, 17)
	if century|year|month|day|hour|minute|second < 0 {
		return time.Time{}, 0, malformed
	}
	year += century * 100
	if month < 1 || month > 12 || day < 1 || day > daysIn(year, month) || hour > 23 || minute > 59 || second > 60 {
		return time.Time{}, 0, malformed
	}
	nanos, rest := 0, b[19:]
	if rest[0] == '.' {
		n := 1
		for n < len(rest) && isDigit(rest[n]) {
			nanos = nanos*10 + int(rest[n]-'0') // of no meaning, but harmless, beyond nine digits
			n++
		}
		if n < 2 || n > 10 {
			return time.Time{}, 0, malformed
		}
		for rest = rest[n:]; n < 10; n++ {
			nanos *= 10
		}
	}
	offset, ok := parseOffset(rest)
	if !ok {
		return time.Time{}, 0, malformed
	}
	seconds := unixDay(year, month, day)*86400 + int64(hour*3600+minute*60+second-offset)
	t = time.Unix(seconds, int64(nanos)).UTC()
	if second == 60 && (seconds%86400 != 0 || t.Day() != 1) {
		return time.Time{}, 0, malformed
	}
	if seconds < minSeconds || seconds > maxSeconds {
		return time.Time{}, 0, outOfRange
	}
	return t, offset, fits
}

// The first and the last second of the years 1 to 9999 in Unix time.
const minSeconds, maxSeconds = -62135596800, 253402300799

// parseOffset reads Z or ±hh:mm, in seconds.
func parseOffset(b []byte) (seconds int, ok bool) {
	if len(b) == 1 && b[0]|0x20 == 'z' {
		return 0, true
	}
	if len(b) != 6 || b[0] != '+' && b[0] != '-' || b[3] != ':' {
		return 0, false
	}
	hours, minutes := pair(b, 1), pair(b, 4)
	if hours|minutes < 0 || hours > 23 || minutes > 59 {
		return 0, false
	}
	seconds = hours*3600 + minutes*60
	if b[0] == '-' {
		seconds = -seconds
	}
	return seconds, true
}

// pair reads the two decimal digits at i; negative for anything else.
func pair(b []byte, i int) int {
	tens, units := uint(b[i])-'0', uint(b[i+1])-'0'
	if tens > 9 || units > 9 {
		return -1
	}
	return int(tens*10 + units)
}

// unixDay counts the days from 1970-01-01. Years begin in March here, so that a leap day is the last of its year, and the months from
// March on have 31, 30, 31, 30, 31 days again and again: (153m+2)/5 in all before month m.
func unixDay(year, month, day int) int64 {
	if month < 3 {
		year, month = year-1, month+12
	}
	year += 400 // the same calendar, without negative numbers
	return int64(365*year + year/4 - year/100 + year/400 + (153*(month-3)+2)/5 + day - 865_566)
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// Bounds of parseDecimal. The widest column holds 16 digits before the point and .NET's decimal 29 in all; up to these bounds every
// value is exact, beyond them no value could matter.
const (
	maxDecimalDigits = 1000 // significant ones
	maxDecimalPlaces = 30   // digits before the point
	minDecimalPlaces = -30  // zeros after the point before the first other digit, negated
)

// parseDecimal reads a JSON number exactly. Time and memory depend on the length of the text only, whatever its exponent says:
// 1e999999999 is out of range, and 1e-999999999 is zero, because a value below 1e-30 rounds to zero everywhere, also divided by the
// smallest area there is (0.005).
func parseDecimal(b []byte) (decimal.Decimal, fit) {
	if len(b) == 0 || numberLen(b) != len(b) {
		return decimal.Decimal{}, malformed
	}
	negative := b[0] == '-'
	if negative {
		b = b[1:]
	}
	significant := make([]byte, 0, 40) // the digits from the first that is not zero
	exponent := int64(0)               // of the last of them
	point := false
	for len(b) > 0 && b[0]|0x20 != 'e' {
		switch c := b[0]; {
		case c == '.':
			point = true
		default:
			if point {
				exponent--
			}
			if c != '0' || len(significant) > 0 {
				significant = append(significant, c)
			}
		}
		b = b[1:]
	}
	if len(b) > 0 {
		exponent += parseExponent(b[1:])
	}
	for n := len(significant); n > 0 && significant[n-1] == '0'; n-- {
		significant = significant[:n-1]
		exponent++
	}
	places := exponent + int64(len(significant))
	switch {
	case len(significant) == 0 || places < minDecimalPlaces:
		return decimal.Decimal{}, fits
	case places > maxDecimalPlaces || len(significant) > maxDecimalDigits:
		return decimal.Decimal{}, outOfRange
	}
	coefficient := new(big.Int)
	if len(significant) <= 18 {
		n := int64(0)
		for _, c := range significant {
			n = n*10 + int64(c-'0')
		}
		coefficient.SetInt64(n)
	} else {
		coefficient.SetString(string(significant), 10)
	}
	if negative {
		coefficient.Neg(coefficient)
	}
	return decimal.NewFromBigInt(coefficient, int32(exponent)), fits
}

// parseExponent reads the digits of an exponent and its sign, up to ±1e12: no text is long enough to bring that back into range.
func parseExponent(b []byte) int64 {
	negative := b[0] == '-'
	if negative || b[0] == '+' {
		b = b[1:]
	}
	n := int64(0)
	for _, c := range b {
		n = min(n*10+int64(c-'0'), 1e12)
	}
	if negative {
		return -n
	}
	return n
}

// holds says whether a column Decimal(precision, 2) holds a value that has at most two decimals.
func holds(d decimal.Decimal, precision int) bool {
	return d.IsZero() || d.NumDigits()+int(d.Exponent()) <= precision-2
}

// Lengths, in bytes, of texts that end up in logs and reasons.
const (
	maxTextLen = 256
	maxEchoLen = 40
)

// cleanText makes a text from outside fit for a log: valid UTF-8, bounded.
func cleanText(b []byte) string {
	if !utf8.Valid(b) {
		b = bytes.ToValidUTF8(b, []byte("\uFFFD"))
	}
	return shorten(string(b), maxTextLen)
}

// shorten cuts a text at a rune's start.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && s[limit]&0xC0 == 0x80 {
		limit--
	}
	return s[:limit] + "…"
}
