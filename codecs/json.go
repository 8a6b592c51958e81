package codecs

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxDepth is how deeply objects and arrays may nest in a value, the outermost object included. D31 wants 50 levels inside an
// ignored field accepted and 1,000 refused; the limit bounds the scanner's recursion.
const MaxDepth = 256

// kind is the JSON type of a scanned value.
type kind uint8

const (
	absent kind = iota
	kindNull
	kindBool
	kindNumber
	kindString
	kindObject
	kindArray
)

// span is one scanned value: where its text lies and what it is. Nothing is converted while scanning, because whether a field
// counts (envelope or bare form) is known only at the end of the text.
//
// Four fields at most: the compiler then keeps a span in registers.
type span struct {
	start, end int // of the text, quotes included
	kind       kind
	escaped    bool // a string that holds a backslash
}

// scanner checks and walks a JSON text (RFC 8259) in one pass over its bytes, without allocating. It is written by hand because
// views come at 100,000 a second and need three things together that the tokenizers at hand do not give: field spans without
// conversion, the sight of duplicated fields, and a bound on nesting (docs/decisions, "JSON decoding", has the measurements). A fuzz
// test holds it against encoding/json: it accepts exactly the texts that json.Valid accepts, but for UTF-8 and nesting.
//
// Bytes beyond ASCII are sound in strings only, so that is where UTF-8 is checked.
//
// Its methods take the position of what they consume and return the position behind it, negative after a fault: a position kept in a
// field would be stored and loaded again at every step, and the steps wait for each other.
type scanner struct {
	data  []byte
	depth int
	fault string // what is wrong; empty while nothing is
	at    int    // where it is wrong
}

func (s *scanner) fail(pos int, what string) int {
	s.fault, s.at = what, pos
	return -1
}

// space consumes white space, if there is any.
func (s *scanner) space(pos int) int {
	for pos < len(s.data) && s.data[pos] <= ' ' && isSpace(s.data[pos]) {
		pos++
	}
	return pos
}

// is says whether a byte is the one at pos.
func (s *scanner) is(pos int, b byte) bool { return pos < len(s.data) && s.data[pos] == b }

// enter consumes the bracket that opens an object or array.
func (s *scanner) enter(pos int) int {
	s.depth++
	if s.depth > MaxDepth {
		return s.fail(pos, "objects and arrays nest too deeply")
	}
	return pos + 1
}

// item moves to the next member or element of an entered object or array, which must be consumed next. false means the end, which is
// consumed, or a fault.
func (s *scanner) item(pos int, first bool, bracket byte) (next int, more bool) {
	pos = s.space(pos)
	switch {
	case s.is(pos, bracket):
		s.depth--
		return pos + 1, false
	case first:
		return pos, true
	case pos >= len(s.data):
		return s.fail(pos, "the text ends inside an object or array"), false
	case s.data[pos] != ',':
		return s.fail(pos, "a comma or closing bracket is missing"), false
	}
	return s.space(pos + 1), true
}

// advance is member, with a short way for one that follows without any space, as nearly all do.
func (s *scanner) advance(pos int, first bool) (next int, more bool) {
	if !first && s.is(pos, ',') && s.is(pos+1, '"') {
		return pos + 1, true
	}
	return s.member(pos, first)
}

// member moves to the name of the next member of an entered object. false means the end of the object, or a fault.
func (s *scanner) member(pos int, first bool) (next int, more bool) {
	if pos, more = s.item(pos, first, '}'); more && !s.is(pos, '"') {
		return s.fail(pos, "a field name is missing"), false
	}
	return pos, more
}

// name consumes the name of a member and moves to its value. The name is returned unescaped.
func (s *scanner) name(pos int) (name []byte, next int) {
	escaped, next := s.str(pos)
	if next < 0 {
		return nil, next
	}
	name = s.data[pos+1 : next-1]
	if escaped {
		// A name that is no text (half a surrogate pair) is no name of ours: it stays as it is, unknown.
		if plain, ok := unescape(name); ok {
			name = plain
		}
	}
	pos = s.space(next)
	if !s.is(pos, ':') {
		return nil, s.fail(pos, "a colon is missing after a field name")
	}
	return name, s.space(pos + 1)
}

// follows is name for a member that is one of the two fields after the last one, in PascalCase or camelCase and without escapes; i is
// negative if it is not. Producers write fields in the order of the contract and leave out few, so this nearly always spares looking
// for the end of the name and then for its meaning.
func (s *scanner) follows(pos, last int, nameOf func(int) string) (i int, name []byte, next int) {
	b := s.data[pos:]
	for i = last + 1; i <= last+2; i++ {
		expected := nameOf(i)
		n := len(expected)
		if n == 0 {
			break
		}
		if len(b) > n+2 && b[n+1] == '"' && b[n+2] == ':' && b[1]|0x20 == expected[0]|0x20 && string(b[2:n+1]) == expected[1:] {
			return i, b[1 : n+1], s.space(pos + n + 3)
		}
	}
	return -1, nil, pos
}

// kind says what starts at pos.
func (s *scanner) kind(pos int) kind {
	if pos >= len(s.data) {
		return absent
	}
	switch c := s.data[pos]; c {
	case '"':
		return kindString
	case '{':
		return kindObject
	case '[':
		return kindArray
	case 't', 'f':
		return kindBool
	case 'n':
		return kindNull
	default:
		if c == '-' || isDigit(c) {
			return kindNumber
		}
		return absent
	}
}

// value consumes one value of any kind.
func (s *scanner) value(pos int) (v span, next int) {
	v.start, v.kind = pos, s.kind(pos)
	switch v.kind {
	case kindString:
		v.escaped, next = s.str(pos)
	case kindNumber:
		next = s.number(pos)
	case kindObject:
		next = s.skipObject(pos)
	case kindArray:
		next = s.skipArray(pos)
	case kindBool:
		if next = s.literal(pos, "true"); next < 0 {
			next = s.literal(pos, "false")
		}
	case kindNull:
		next = s.literal(pos, "null")
	case absent:
		next = s.fail(pos, "a value is missing")
	}
	v.end = next
	return v, next
}

// quotedGUID is the length of a Guid without braces, in quotes.
const quotedGUID = 38

func (s *scanner) skipObject(pos int) int {
	pos = s.enter(pos)
	for first, more := true, pos >= 0; more; first = false {
		if pos, more = s.member(pos, first); !more {
			break
		}
		if _, pos = s.name(pos); pos < 0 {
			break
		}
		_, pos = s.value(pos)
		more = pos >= 0
	}
	return pos
}

func (s *scanner) skipArray(pos int) int {
	pos = s.enter(pos)
	for first, more := true, pos >= 0; more; first = false {
		if pos, more = s.item(pos, first, ']'); more {
			_, pos = s.value(pos)
			more = pos >= 0
		}
	}
	return pos
}

func (s *scanner) literal(pos int, word string) int {
	if end := pos + len(word); end <= len(s.data) && string(s.data[pos:end]) == word {
		return end
	}
	return s.fail(pos, "a value is misspelt")
}

// Of eight bytes at once: each byte's lowest and highest bit.
const ones, high = 0x0101010101010101, 0x8080808080808080

// special marks, by its highest bit, the first of eight bytes that is a control character, a quote or a backslash; there are none if it
// marks nothing. The first two are what is below 0x21 once bit 1 is flipped. Bytes behind the first may be marked wrongly, by borrows,
// and so may bytes beyond ASCII.
func special(w uint64) uint64 { return (w ^ ones*2 - ones*0x21) | (w ^ ones*'\\' - ones) }

// str consumes a string, looking at eight bytes at a time.
func (s *scanner) str(pos int) (escaped bool, next int) {
	data, i := s.data, pos+1
	if isPlain36(data[i:]) {
		return false, i + 37
	}
	seen := uint64(0) // all bytes of the string, and some behind it, or'ed
	for {
		for i+8 <= len(data) {
			w := binary.LittleEndian.Uint64(data[i:])
			seen |= w
			if hit := special(w) &^ w & high; hit != 0 {
				i += bits.TrailingZeros64(hit) >> 3
				break
			}
			i += 8
		}
		for i < len(data) && data[i] != '"' && data[i] != '\\' && data[i] >= 0x20 {
			seen |= uint64(data[i])
			i++
		}
		if i >= len(data) {
			return escaped, s.fail(i, "the text ends inside a string")
		}
		switch data[i] {
		case '"':
			if seen&high != 0 && !utf8.Valid(data[pos:i]) {
				return escaped, s.fail(pos, "a string is not UTF-8")
			}
			return escaped, i + 1
		case '\\':
			escaped = true
			n := escapeLen(data[i:])
			if n == 0 {
				return escaped, s.fail(i, "a string holds a broken escape")
			}
			i += n
		default:
			return escaped, s.fail(i, "a string holds a control character")
		}
	}
}

// isPlain36 says whether the string that b is the inside of has 36 bytes, all ASCII without escapes: a Guid, as most strings here are.
func isPlain36(b []byte) bool {
	if len(b) < 37 || b[36] != '"' {
		return false
	}
	odd := uint64(0)
	for i := 0; i <= 24; i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		odd |= w | special(w)
	}
	w := binary.LittleEndian.Uint64(b[28:])
	return (odd|w|special(w))&high == 0
}

// escapeLen returns the length of the escape sequence at the start of b, 0 if it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hex4(b); ok {
			return 6
		}
	}
	return 0
}

// hex4 reads \uXXXX at the start of b.
func hex4(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range b[2:6] {
		h := hexValue(c)
		if h < 0 {
			return 0, false
		}
		r = r<<4 | rune(h)
	}
	return r, true
}

// unescape resolves the escapes of a scanned string's inside. false: half a surrogate pair, which is no text.
func unescape(b []byte) ([]byte, bool) {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); {
		if b[i] != '\\' {
			out = append(out, b[i])
			i++
			continue
		}
		switch c := b[i+1]; c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, _ := hex4(b[i:])
			i += 6
			if utf16.IsSurrogate(r) {
				low, _ := hex4(b[i:])
				r = utf16.DecodeRune(r, low)
				if r == utf8.RuneError {
					return nil, false
				}
				i += 6
			}
			out = utf8.AppendRune(out, r)
			continue
		default:
			out = append(out, c)
		}
		i += 2
	}
	return out, true
}

// number consumes a number by the grammar of RFC 8259.
func (s *scanner) number(pos int) int {
	n := numberLen(s.data[pos:])
	if n == 0 {
		return s.fail(pos, "a number is malformed")
	}
	return pos + n
}

// numberLen returns the length of the JSON number at the start of b, 0 if there is none.
func numberLen(b []byte) int {
	i := 0
	if len(b) > 0 && b[0] == '-' {
		i = 1
	}
	first := i
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	if i == first || i > first+1 && b[first] == '0' {
		return 0
	}
	if i < len(b) && b[i] == '.' {
		n := digits(b[i+1:])
		if n == 0 {
			return 0
		}
		i += 1 + n
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		n := digits(b[i:])
		if n == 0 {
			return 0
		}
		i += n
	}
	return i
}

// digits counts the decimal digits at the start of b.
func digits(b []byte) int {
	n := 0
	for n < len(b) && isDigit(b[n]) {
		n++
	}
	return n
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// hexValue returns the value of a hexadecimal digit, -1 if it is none.
func hexValue(c byte) int {
	if isDigit(c) {
		return int(c - '0')
	}
	if letter := c | 0x20; 'a' <= letter && letter <= 'f' {
		return int(letter-'a') + 10
	}
	return -1
}
