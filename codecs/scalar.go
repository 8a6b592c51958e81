package codecs

import (
	"bytes"
	"encoding/hex"
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

// parseGUID reads 8-4-4-4-12 hexadecimal digits of any case, with or without braces (D18), and no other form.
func parseGUID(b []byte) (id uuid.UUID, ok bool) {
	if len(b) == 38 && b[0] == '{' && b[37] == '}' {
		b = b[1:37]
	}
	if len(b) != 36 || b[8] != '-' || b[13] != '-' || b[18] != '-' || b[23] != '-' {
		return uuid.Nil, false
	}
	for _, part := range [...]struct{ to, from, until int }{{0, 0, 8}, {4, 9, 13}, {6, 14, 18}, {8, 19, 23}, {10, 24, 36}} {
		if _, err := hex.Decode(id[part.to:], b[part.from:part.until]); err != nil {
			return uuid.Nil, false
		}
	}
	return id, true
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
	year, month, day := number(b[0:4]), number(b[5:7]), number(b[8:10])
	hour, minute, second := number(b[11:13]), number(b[14:16]), number(b[17:19])
	if year|month|day|hour|minute|second < 0 || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) ||
		hour > 23 || minute > 59 || second > 60 {
		return time.Time{}, 0, malformed
	}
	b = b[19:]
	nanos := 0
	if b[0] == '.' {
		n := digits(b[1:])
		if n < 1 || n > 9 {
			return time.Time{}, 0, malformed
		}
		nanos = number(b[1 : 1+n])
		for i := n; i < 9; i++ {
			nanos *= 10
		}
		b = b[1+n:]
	}
	offset, ok := parseOffset(b)
	if !ok {
		return time.Time{}, 0, malformed
	}
	t = time.Date(year, time.Month(month), day, hour, minute, second-offset, nanos, time.UTC)
	if second == 60 && (t.Day() != 1 || t.Hour() != 0 || t.Minute() != 0 || t.Second() != 0) {
		return time.Time{}, 0, malformed
	}
	if t.Year() < 1 || t.Year() > 9999 {
		return time.Time{}, 0, outOfRange
	}
	return t, offset, fits
}

// parseOffset reads Z or ±hh:mm, in seconds.
func parseOffset(b []byte) (seconds int, ok bool) {
	if len(b) == 1 && b[0]|0x20 == 'z' {
		return 0, true
	}
	if len(b) != 6 || b[0] != '+' && b[0] != '-' || b[3] != ':' {
		return 0, false
	}
	hours, minutes := number(b[1:3]), number(b[4:6])
	if hours|minutes < 0 || hours > 23 || minutes > 59 {
		return 0, false
	}
	seconds = hours*3600 + minutes*60
	if b[0] == '-' {
		seconds = -seconds
	}
	return seconds, true
}

// number reads decimal digits only, at most nine; -1 for anything else.
func number(b []byte) int {
	n := 0
	for _, c := range b {
		if !isDigit(c) {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
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
