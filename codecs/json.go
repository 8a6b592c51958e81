package codecs

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how deeply objects and arrays may nest in a value, the outermost object included. D31 wants 50 levels inside an
// ignored field accepted and 1,000 refused; the limit bounds the scanner's recursion.
const maxDepth = 256

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
type span struct {
	start, end int // of the text, quotes included
	kind       kind
	escaped    bool // a string that holds a backslash
	repeated   bool // the field came more than once
}

// scanner checks and walks a JSON text (RFC 8259) in one pass over its bytes, without allocating. It is written by hand because
// views come at 100,000 a second and need three things together that the tokenizers at hand do not give: field spans without
// conversion, the sight of duplicated fields, and a bound on nesting (docs/decisions, "JSON decoding", has the measurements). A fuzz
// test holds it against encoding/json: it accepts exactly the texts that json.Valid accepts, but for UTF-8 and nesting.
//
// The text must have passed utf8.Valid before.
type scanner struct {
	data  []byte
	pos   int
	depth int
	fault string // what is wrong at pos; empty while nothing is
}

func (s *scanner) fail(what string) bool {
	if s.fault == "" {
		s.fault = what
	}
	return false
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// enter consumes the bracket that opens an object or array.
func (s *scanner) enter() bool {
	s.depth++
	if s.depth > maxDepth {
		return s.fail("objects and arrays nest too deeply")
	}
	s.pos++
	return true
}

// leave consumes the closing bracket if it is next.
func (s *scanner) leave(bracket byte) bool {
	s.space()
	if s.pos < len(s.data) && s.data[s.pos] == bracket {
		s.pos++
		s.depth--
		return true
	}
	return false
}

// comma consumes the comma before the next member or element.
func (s *scanner) comma() bool {
	if s.pos >= len(s.data) {
		return s.fail("the text ends inside an object or array")
	}
	if s.data[s.pos] != ',' {
		return s.fail("a comma or closing bracket is missing")
	}
	s.pos++
	s.space()
	return true
}

// member moves to the next member of an entered object and returns its name, unescaped; the value must be consumed next. false means
// the end of the object, or a fault.
func (s *scanner) member(first bool) ([]byte, bool) {
	if s.leave('}') {
		return nil, false
	}
	if !first && !s.comma() {
		return nil, false
	}
	if s.pos >= len(s.data) || s.data[s.pos] != '"' {
		return nil, s.fail("a field name is missing")
	}
	start := s.pos
	escaped, ok := s.str()
	if !ok {
		return nil, false
	}
	name := s.data[start+1 : s.pos-1]
	if escaped {
		// A name that is no text (half a surrogate pair) is no name of ours: it stays as it is, unknown.
		if plain, ok := unescape(name); ok {
			name = plain
		}
	}
	s.space()
	if s.pos >= len(s.data) || s.data[s.pos] != ':' {
		return nil, s.fail("a colon is missing after a field name")
	}
	s.pos++
	s.space()
	return name, true
}

// element moves to the next element of an entered array, which must be consumed next. false means the end of the array, or a fault.
func (s *scanner) element(first bool) bool {
	if s.leave(']') {
		return false
	}
	return first || s.comma()
}

// next says what starts at pos.
func (s *scanner) next() kind {
	if s.pos >= len(s.data) {
		return absent
	}
	switch c := s.data[s.pos]; c {
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
func (s *scanner) value() (span, bool) {
	v := span{start: s.pos, kind: s.next()}
	var ok bool
	switch v.kind {
	case kindString:
		v.escaped, ok = s.str()
	case kindNumber:
		ok = s.number()
	case kindObject:
		ok = s.skipObject()
	case kindArray:
		ok = s.skipArray()
	case kindBool:
		ok = s.literal("true") || s.literal("false") || s.fail("a value is misspelt")
	case kindNull:
		ok = s.literal("null") || s.fail("a value is misspelt")
	case absent:
		ok = s.fail("a value is missing")
	}
	v.end = s.pos
	return v, ok
}

func (s *scanner) skipObject() bool {
	if !s.enter() {
		return false
	}
	for first := true; ; first = false {
		if _, more := s.member(first); !more {
			return s.fault == ""
		}
		if _, ok := s.value(); !ok {
			return false
		}
	}
}

func (s *scanner) skipArray() bool {
	if !s.enter() {
		return false
	}
	for first := true; s.element(first); first = false {
		if _, ok := s.value(); !ok {
			return false
		}
	}
	return s.fault == ""
}

func (s *scanner) literal(word string) bool {
	if len(s.data)-s.pos >= len(word) && string(s.data[s.pos:s.pos+len(word)]) == word {
		s.pos += len(word)
		return true
	}
	return false
}

// str consumes a string, looking at eight bytes at a time for a quote, a backslash or a control character.
func (s *scanner) str() (escaped, ok bool) {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	data, i := s.data, s.pos+1
	for {
		for i+8 <= len(data) {
			w := binary.LittleEndian.Uint64(data[i:])
			quote, slash := w^(ones*'"'), w^(ones*'\\')
			// The lowest marked byte is exact; borrows can mark wrongly only above it.
			hit := ((w-ones*0x20)&^w | (quote-ones)&^quote | (slash-ones)&^slash) & high
			if hit != 0 {
				i += bits.TrailingZeros64(hit) >> 3
				break
			}
			i += 8
		}
		for i < len(data) && data[i] != '"' && data[i] != '\\' && data[i] >= 0x20 {
			i++
		}
		s.pos = i
		if i >= len(data) {
			return escaped, s.fail("the text ends inside a string")
		}
		switch data[i] {
		case '"':
			s.pos++
			return escaped, true
		case '\\':
			escaped = true
			n := escapeLen(data[i:])
			if n == 0 {
				return escaped, s.fail("a string holds a broken escape")
			}
			i += n
		default:
			return escaped, s.fail("a string holds a control character")
		}
	}
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
func (s *scanner) number() bool {
	n := numberLen(s.data[s.pos:])
	if n == 0 {
		return s.fail("a number is malformed")
	}
	s.pos += n
	return true
}

// numberLen returns the length of the JSON number at the start of b, 0 if there is none.
func numberLen(b []byte) int {
	i := 0
	if i < len(b) && b[i] == '-' {
		i++
	}
	switch n := digits(b[i:]); {
	case n == 0, n > 1 && b[i] == '0':
		return 0
	default:
		i += n
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
