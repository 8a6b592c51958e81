package dlq

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/pin-marketplace/vitrina/codecs"
)

// masked stands where a personal value was.
const masked = "***"

// maxShown bounds what is shown of a value.
const maxShown = 256 << 10

// personal tells whether a name is that of a personal value: UserId, AnonymousId, SessionId in any spelling.
func personal(name string) bool {
	switch strings.ToLower(strings.NewReplacer("_", "", "-", "", ".", "").Replace(name)) {
	case "userid", "anonymousid", "sessionid":
		return true
	}
	return false
}

// looksPersonal finds personal values in text that is no sound JSON; better a value too many than one too few.
var looksPersonal = regexp.MustCompile(`(?i)((?:user|anonymous|session)[_-]?id["'\\]*\s*[:=]\s*)("(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s,;}\]]+)`)

// mask hides the personal values of one record wherever they stand: payload, key, reason, headers.
type mask struct {
	value  []byte
	tree   any // of the value; nil where it is no JSON object
	values []string
}

func masker(value []byte) *mask {
	m := &mask{value: value}
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	if tree, err := m.decode(decoder, false, codecs.MaxDepth); err == nil && !decoder.More() {
		m.tree = tree
		return m
	}
	for _, found := range looksPersonal.FindAllStringSubmatch(strings.ToValidUTF8(string(value), "\uFFFD"), -1) {
		m.note(strings.Trim(found[2], `"'\`))
	}
	return m
}

// member keeps the order of an object: people compare it with what the producer sent.
type member struct {
	name  string
	value any
}

// errTooDeep is why a value is shown as text: nothing else bounds the recursion, and a stack overflow ends the process.
var errTooDeep = errors.New("objects and arrays nest too deeply")

// decode reads one value that may nest so many levels deep, as the consumers' own decoder judges it (D31).
func (m *mask) decode(d *json.Decoder, hide bool, levels int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		if hide && token != nil {
			m.note(fmt.Sprint(token))
			return masked, nil
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
			value, err := m.decode(d, hide || personal(key), levels-1)
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
		value, err := m.decode(d, hide, levels-1)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	_, err = d.Token()
	return list, err
}

// What a record may make the masking of its texts cost: each value is looked for by an expression of its own.
const (
	longestID = 1 << 10
	maxIDs    = 100
)

func (m *mask) note(value string) {
	// What is short is no id, and masking it everywhere would make nonsense of the rest; what is long is none either.
	if len(value) >= 6 && len(value) <= longestID && len(m.values) <= maxIDs {
		m.values = append(m.values, value)
		if bare := strings.Trim(value, "{}"); bare != value {
			m.values = append(m.values, bare)
		}
	}
}

// text hides the record's personal values in a text.
func (m *mask) text(s string) string {
	if len(m.values) > maxIDs {
		return masked // no record of ours names so many people
	}
	for _, v := range m.values {
		s = regexp.MustCompile("(?i)"+regexp.QuoteMeta(v)).ReplaceAllLiteralString(s, masked)
	}
	return looksPersonal.ReplaceAllString(s, "${1}"+masked)
}

// payload is the value for a person.
func (m *mask) payload() string {
	switch {
	case m.value == nil:
		return "null (a tombstone)"
	case len(m.value) == 0:
		return "empty"
	case m.tree != nil:
		var out strings.Builder
		render(&out, m.tree, "")
		return cut(out.String())
	case !utf8.Valid(m.value):
		return cut(fmt.Sprintf("%d bytes that are not UTF-8: %s", len(m.value), m.text(strings.ToValidUTF8(string(m.value), "\uFFFD"))))
	}
	return cut(fmt.Sprintf("%d bytes that are no sound JSON: %s", len(m.value), m.text(string(m.value))))
}

func cut(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + fmt.Sprintf("… (%d more bytes)", len(s)-maxShown)
}

func render(out *strings.Builder, value any, indent string) {
	inner := indent + "  "
	switch v := value.(type) {
	case []member:
		if len(v) == 0 {
			out.WriteString("{}")
			return
		}
		out.WriteString("{\n")
		for i, x := range v {
			out.WriteString(inner + quoted(x.name) + ": ")
			render(out, x.value, inner)
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
			out.WriteString(inner)
			render(out, x, inner)
			out.WriteString(separator(i, len(v)))
		}
		out.WriteString(indent + "]")
	case string:
		out.WriteString(quoted(v))
	case nil:
		out.WriteString("null")
	default:
		fmt.Fprint(out, v)
	}
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
