package dlq

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

// masked stands where a personal value was.
const masked = "***"

// maxShown bounds what is shown of a value.
const maxShown = 256 << 10

// personal tells whether a name, or a text, speaks of a personal value: UserId, AnonymousId, SessionId in any spelling ("USER ID",
// x-session-id, the letters of UTF-16), and what is made of them (UserIds).
func personal(text string) bool {
	letters := strings.Map(func(r rune) rune {
		if !unicode.IsLetter(r) {
			return -1
		}
		return unicode.ToLower(r)
	}, text)
	for _, name := range [...]string{"userid", "anonymousid", "sessionid"} {
		if strings.Contains(letters, name) {
			return true
		}
	}
	return false
}

// looksPersonal finds personal values in text; better a value too many than one too few.
var looksPersonal = regexp.MustCompile(`(?i)((?:user|anonymous|session)[_\-. ]?id["'\\]*\s*[:=>]\s*)("(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s,;}\]<]+)`)

// looksGUID finds what may be anybody's id.
var looksGUID = regexp.MustCompile(`(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}`)

// looksEncoded finds what may be base64 or hex of anything. A Guid is shorter.
var looksEncoded = regexp.MustCompile(`[A-Za-z0-9+/=_-]{44}`)

// mask hides the personal values of one record wherever they stand: payload, key, reason, headers.
type mask struct {
	value  []byte
	tree   any   // of the value; nil where it is no JSON
	err    error // why it is none
	values []string
	find   *regexp.Regexp  // any of values; made when it is needed
	known  map[string]bool // ids that the payload shows, which a text may show too
}

func masker(value []byte) *mask {
	m := &mask{value: value, known: make(map[string]bool)}
	if m.tree, m.err = parse(value, codecs.MaxDepth); m.err == nil {
		m.tree = m.hide(m.tree, false)
		if _, _, ok := m.object(); !ok {
			clear(m.known) // nothing of it is shown
		}
		return m
	}
	for _, found := range looksPersonal.FindAllStringSubmatch(strings.ToValidUTF8(string(value), "\uFFFD"), maxIDs+1) {
		m.note(strings.Trim(found[2], `"'\`))
	}
	return m
}

// maskerOf makes the mask of a record: the event's ids may stand in its headers.
func maskerOf(rec *kgo.Record) *mask {
	m := masker(rec.Value)
	for _, h := range rec.Headers {
		if metadata(h.Key) {
			m.know(string(h.Value))
		}
	}
	return m
}

// member keeps the order of an object: people compare it with what the producer sent.
type member struct {
	name  string
	value any
}

// embedded is JSON in a JSON string, as a serialiser leaves it that was called twice.
type embedded struct{ value any }

// hidden stands for a text of which only size and hash are shown.
type hidden string

var (
	// errTooDeep is why a value is not shown: nothing else bounds the recursion, and a stack overflow ends the process.
	errTooDeep  = errors.New("objects and arrays nest too deeply")
	errTrailing = errors.New("something follows the value")
)

// parse reads a value that may nest so many levels deep, as the consumers' own decoder judges it (D31).
func parse(value []byte, levels int) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	tree, err := decode(decoder, levels)
	if err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errTrailing
	}
	return tree, nil
}

func decode(d *json.Decoder, levels int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		if s, ok := token.(string); ok {
			return unpacked(s, levels), nil
		}
		return token, nil
	}
	if levels == 0 {
		return nil, errTooDeep
	}
	if delim == '{' {
		object := []member{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			key, _ := name.(string)
			value, err := decode(d, levels-1)
			if err != nil {
				return nil, err
			}
			object = append(object, member{key, value})
		}
		_, err := d.Token()
		return object, err
	}
	list := []any{}
	for d.More() {
		value, err := decode(d, levels-1)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	_, err = d.Token()
	return list, err
}

// unpacked is a string, or what it holds if that is JSON. What only looks like an object or an array is not shown.
func unpacked(s string, levels int) any {
	text := strings.TrimLeft(s, " \t\r\n\uFEFF")
	if text == "" || !strings.ContainsRune(`{["`, rune(text[0])) {
		return s
	}
	if levels > 0 {
		if tree, err := parse([]byte(text), levels-1); err == nil {
			return embedded{tree}
		}
	}
	if text[0] == '"' || !strings.ContainsAny(text, `"\\`) {
		return s // a Guid in braces, or words
	}
	return hidden(s)
}

// object is the value where it is one, double encoding undone.
func (m *mask) object() (object []member, packed, ok bool) {
	tree := m.tree
	for {
		inner, is := tree.(embedded)
		if !is {
			break
		}
		tree, packed = inner.value, true
	}
	object, ok = tree.([]member)
	return object, packed, ok
}

// hide masks and notes what stands under a personal name, or beside one in a list or an object of names and values.
func (m *mask) hide(value any, all bool) any {
	switch v := value.(type) {
	case []member:
		for _, x := range v {
			all = all || named(x.value)
		}
		for i, x := range v {
			v[i].value = m.hide(x.value, all || personal(x.name))
		}
		return v
	case []any:
		for _, x := range v {
			all = all || named(x)
		}
		for i, x := range v {
			v[i] = m.hide(x, all)
		}
		return v
	case embedded:
		return embedded{m.hide(v.value, all)}
	case nil:
		return nil
	}
	if all {
		m.note(fmt.Sprint(value))
		return masked
	}
	if s, ok := value.(string); ok {
		m.know(s)
	}
	return value
}

// named tells whether a value is the name of a personal one.
func named(value any) bool {
	s, ok := value.(string)
	return ok && len(s) <= longestName && personal(s)
}

// What a record may make the masking of its texts cost.
const (
	longestID = 1 << 10
	maxIDs    = 100
	maxLeaf   = 1 << 10

	longestName = 40 // of a field; what is longer is a text
)

func (m *mask) note(value string) {
	// What is short is no id, and masking it everywhere would make nonsense of the rest; what is long is none either.
	if len(value) < 6 || len(value) > longestID || len(m.values) > maxIDs {
		return
	}
	m.find = nil
	m.values = append(m.values, value)
	bare := strings.Trim(value, "{}")
	if bare != value {
		m.values = append(m.values, bare)
	}
	if looksGUID.MatchString(bare) {
		m.values = append(m.values, strings.ReplaceAll(bare, "-", ""))
	}
}

// know notes an id that is nobody's.
func (m *mask) know(s string) {
	if id := guid(s); len(id) == 32 && looksGUID.MatchString(id) {
		m.known[id] = true
	}
}

// guid is a Guid without its punctuation and case.
func guid(s string) string {
	if len(s) > 38 {
		return ""
	}
	return strings.ToLower(strings.ReplaceAll(strings.Trim(s, "{}"), "-", ""))
}

// noted hides the record's personal values in a text.
func (m *mask) noted(s string) string {
	switch {
	case len(m.values) == 0:
		return s
	case len(m.values) > maxIDs:
		return masked // no record of ours names so many people
	case m.find == nil:
		quoted := make([]string, len(m.values))
		for i, v := range m.values {
			quoted[i] = regexp.QuoteMeta(v)
		}
		m.find = regexp.MustCompile("(?i)" + strings.Join(quoted, "|"))
	}
	return m.find.ReplaceAllLiteralString(s, masked)
}

// text hides in a text the record's personal values, what looks like one, and every id that the payload does not show.
func (m *mask) text(s string) string {
	s = looksPersonal.ReplaceAllString(m.noted(s), "${1}"+masked)
	return looksGUID.ReplaceAllStringFunc(s, func(id string) string {
		if m.known[guid(id)] {
			return id
		}
		return masked
	})
}

// leaf is a text of somebody else's: shown where it is short and speaks of nobody.
func (m *mask) leaf(s string) string {
	if len(s) > maxLeaf || personal(s) || looksEncoded.MatchString(s) {
		return hash([]byte(s))
	}
	return m.noted(s)
}

// key shows a record's key where it is the id of what the record is about: producers may take a person's.
func (m *mask) key(key []byte) string {
	object, _, _ := m.object()
	if len(key) == 0 || m.names(object, string(key), 2) {
		return m.leaf(printable(key))
	}
	return hash(key)
}

// metadata tells whether a header is of those by which producers describe an event (contracts, section 1). ce_subject may be a person.
func metadata(name string) bool {
	switch strings.ToLower(name) {
	case "eventid", "messageid", "aggregateid", "aggregatetype", "tenantid", "createdat", "contractversion",
		"ce_id", "ce_time", "ce_type", "ce_specversion", "content-type":
		return true
	}
	return false
}

// traceparent is the form of that header; whatever else stands in it is not shown.
var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// header is a header's value for a person. Nobody knows what the headers that are not known hold: baggage carries users and sessions.
func (m *mask) header(name string, value []byte) string {
	text, lower := printable(value), strings.ToLower(name)
	switch {
	case len(value) == 0:
		return ""
	case deadletter.IsOwnHeader(name), lower == HeaderReturns:
		return m.text(text)
	case foreign(name) && (strings.Contains(lower, "message") || strings.Contains(lower, "stacktrace")):
		return m.text(m.leaf(text)) // another tool's words may quote the record
	case foreign(name):
		return m.text(text)
	case metadata(name):
		return m.leaf(text)
	case lower == "traceparent" && traceparent.MatchString(text):
		return m.noted(text)
	}
	return fmt.Sprintf("%s (%d bytes)", masked, len(value))
}

// names tells whether an object, or its Payload, has this id.
func (m *mask) names(object []member, id string, levels int) bool {
	for _, x := range object {
		value := x.value
		for {
			inner, ok := value.(embedded)
			if !ok {
				break
			}
			value = inner.value
		}
		switch strings.ToLower(x.name) {
		case "propertyobjectviewid", "purchaseid", "propertyobjectid":
			if s, ok := value.(string); ok && (strings.EqualFold(s, id) || guid(s) != "" && guid(s) == guid(id)) {
				return true
			}
		case "payload":
			if inner, ok := value.([]member); ok && levels > 1 && m.names(inner, id, levels-1) {
				return true
			}
		}
	}
	return false
}

// payload is the value for a person.
func (m *mask) payload() string {
	object, packed, ok := m.object()
	switch {
	case m.value == nil:
		return "null (a tombstone)"
	case len(m.value) == 0:
		return "empty"
	case ok:
		var out strings.Builder
		if packed {
			out.WriteString("JSON in a JSON string:\n")
		}
		m.render(&out, object, "")
		return m.cut(out.String())
	case m.tree != nil:
		return fmt.Sprintf("%s: JSON, but no object", hash(m.value))
	case !utf8.Valid(m.value):
		return fmt.Sprintf("%s: not UTF-8; it begins like %s", hash(m.value), shape(m.value))
	}
	why := "JSON null"
	var syntax *json.SyntaxError
	switch {
	case errors.As(m.err, &syntax):
		why = fmt.Sprintf("not JSON at byte %d", syntax.Offset)
	case errors.Is(m.err, io.EOF), errors.Is(m.err, io.ErrUnexpectedEOF):
		why = "not JSON: it ends too early"
	case m.err != nil:
		why = "not JSON: " + m.err.Error()
	}
	return fmt.Sprintf("%s: %s; it begins like %s", hash(m.value), why, shape(m.value))
}

// hash stands for bytes that are not shown: two of them can be told apart, and found again in the topic.
func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return fmt.Sprintf("%s (%d bytes, sha256 %x…)", masked, len(b), sum[:4])
}

// shape shows of what kind the first bytes are: every letter and digit is an x, every byte that is no ASCII a ?, a control character a dot.
func shape(b []byte) string {
	out := []byte(nil)
	for _, c := range b[:min(len(b), 48)] {
		switch {
		case c >= utf8.RuneSelf:
			c = '?'
		case unicode.IsLetter(rune(c)), unicode.IsDigit(rune(c)):
			c = 'x'
		case c < ' ' || c == 0x7F:
			c = '.'
		}
		out = append(out, c)
	}
	return string(out)
}

func (m *mask) cut(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + fmt.Sprintf("… (cut: the value has %d bytes)", len(m.value))
}

// render stops where enough is written to be cut: hiding costs more than reading.
func (m *mask) render(out *strings.Builder, value any, indent string) {
	if out.Len() > maxShown {
		return
	}
	inner := indent + "  "
	switch v := value.(type) {
	case []member:
		if len(v) == 0 {
			out.WriteString("{}")
			return
		}
		out.WriteString("{\n")
		for i, x := range v {
			if out.Len() > maxShown {
				return
			}
			out.WriteString(inner + quoted(m.name(x.name)) + ": ")
			m.render(out, x.value, inner)
			out.WriteString(separator(i, len(v)))
		}
		out.WriteString(indent + "}")
	case []any:
		if len(v) == 0 {
			out.WriteString("[]")
			return
		}
		out.WriteString("[\n")
		for i, x := range v {
			if out.Len() > maxShown {
				return
			}
			out.WriteString(inner)
			m.render(out, x, inner)
			out.WriteString(separator(i, len(v)))
		}
		out.WriteString(indent + "]")
	case embedded:
		// It stays a string, so that what was wrong with it can be seen.
		var text strings.Builder
		var compact bytes.Buffer
		m.render(&text, v.value, "")
		if json.Compact(&compact, []byte(text.String())) != nil {
			compact.Reset()
			compact.WriteString(masked) // it was too long to be rendered whole
		}
		out.WriteString(quoted(compact.String()))
	case hidden:
		out.WriteString(quoted(hash([]byte(v))))
	case string:
		if v == masked {
			out.WriteString(quoted(masked))
			return
		}
		out.WriteString(quoted(m.leaf(v)))
	case nil:
		out.WriteString("null")
	default:
		text := fmt.Sprint(v)
		if len(text) > maxLeaf || m.noted(text) != text {
			text = quoted(masked)
		}
		out.WriteString(text)
	}
}

// name is the name of a member: a producer's map may have a person's id for one.
func (m *mask) name(s string) string {
	if len(s) > maxLeaf || looksEncoded.MatchString(s) {
		return hash([]byte(s))
	}
	return m.text(s)
}

func separator(i, n int) string {
	if i == n-1 {
		return "\n"
	}
	return ",\n"
}

func quoted(s string) string {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(s); err != nil {
		return `"` + masked + `"`
	}
	return strings.TrimSuffix(b.String(), "\n")
}
