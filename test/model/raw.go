package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// Dead-letter codes of contracts section 2, written here again on purpose.
const (
	undecodable  = "CONTRACT_UNDECODABLE"
	invalidField = "CONTRACT_INVALID_FIELD"
	outOfRangeC  = "VALUE_OUT_OF_RANGE"
	notFound     = "CATALOG_SYNC_PROPERTY_OBJECT_NOT_FOUND"
)

type fault struct{ code, field string }

func invalid(field string) *fault    { return &fault{invalidField, field} }
func outOfRange(field string) *fault { return &fault{outOfRangeC, field} }

// maxDepth lies between the 50 levels that are fine and the 1,000 that are refused (D31).
const maxDepth = 500

// object is a JSON object: each field's value, and which fields come twice (PascalCase and camelCase are one field).
type object struct {
	values   map[string]any
	repeated map[string]bool
	fault    *fault // the first one met
}

// event is a record whose value could be read.
type event struct {
	rec      *record.Record
	envelope *object // nil in the bare form
	payload  *object
}

func open(rec *record.Record) (*event, *fault) {
	if rec.Value == nil || !utf8.Valid(rec.Value) || !json.Valid(rec.Value) {
		return nil, &fault{code: undecodable}
	}
	d := json.NewDecoder(bytes.NewReader(rec.Value))
	d.UseNumber()
	value, err := parse(d, 0)
	root, ok := value.(*object)
	if err != nil || !ok {
		return nil, &fault{code: undecodable}
	}
	if !root.has("Payload") {
		return &event{rec: rec, payload: root}, nil
	}
	if root.repeated["Payload"] {
		return nil, invalid("Payload")
	}
	payload, ok := root.values["Payload"].(*object)
	if !ok {
		return nil, &fault{code: undecodable}
	}
	return &event{rec: rec, envelope: root, payload: payload}, nil
}

// parse reads one JSON value; objects become *object, arrays []any, numbers json.Number.
func parse(d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("too deep")
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		o := &object{values: map[string]any{}, repeated: map[string]bool{}}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			value, err := parse(d, depth+1)
			if err != nil {
				return nil, err
			}
			text, _ := key.(string) // the decoder gives nothing else as a key
			name := pascal(text)
			if _, ok := o.values[name]; ok {
				o.repeated[name] = true
			}
			o.values[name] = value
		}
		_, err := d.Token()
		return o, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			value, err := parse(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		_, err := d.Token()
		return list, err
	}
	return token, nil
}

// pascal makes camelCase names PascalCase (D20); any other spelling is another field (D30).
func pascal(name string) string {
	if name != "" && name[0] >= 'a' && name[0] <= 'z' {
		return string(name[0]-'a'+'A') + name[1:]
	}
	return name
}

// meta finds a metadata field: the envelope's, else the header's (contracts, section 1).
func (e *event) meta(fields, headers []string) any {
	if e.envelope != nil {
		for _, name := range fields {
			if v := e.envelope.values[name]; v != nil {
				return v
			}
		}
	}
	for _, name := range headers {
		if v, ok := e.rec.Header(name); ok {
			return string(v)
		}
	}
	return nil
}

func (e *event) messageID() (string, *fault) {
	if e.envelope != nil && (e.envelope.repeated["EventId"] || e.envelope.repeated["MessageId"]) {
		return "", invalid("EventId")
	}
	value := e.meta([]string{"EventId", "MessageId"}, []string{"EventId", "MessageId", "ce_id"})
	text, _ := value.(string)
	id, ok := canonical(text)
	if !ok {
		return "", invalid("EventId")
	}
	return id, nil
}

func (e *event) contractVersion() string {
	value := e.meta([]string{"ContractVersion"}, []string{"ContractVersion"})
	switch v := value.(type) {
	case json.Number:
		return v.String()
	case string:
		return v
	}
	return ""
}

func (o *object) has(name string) bool {
	_, ok := o.values[name]
	return ok
}

// get returns a required field's value, or notes a fault and returns nil.
func (o *object) get(name string) any {
	if o.repeated[name] || o.values[name] == nil {
		o.fail(invalid(name))
		return nil
	}
	return o.values[name]
}

// optional returns a field's value, nil where it is missing or null.
func (o *object) optional(name string) any {
	if o.repeated[name] {
		o.fail(invalid(name))
		return nil
	}
	return o.values[name]
}

func (o *object) fail(f *fault) {
	if o.fault == nil {
		o.fault = f
	}
}

var (
	guidForm = regexp.MustCompile(`^(?:\{[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\}|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})$`)
	timeForm = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$`)
	intForm  = regexp.MustCompile(`^-?\d+$`)
)

const emptyGUID = "00000000-0000-0000-0000-000000000000"

func canonical(text string) (string, bool) {
	if !guidForm.MatchString(text) {
		return "", false
	}
	return strings.ToLower(strings.Trim(text, "{}")), true
}

// anyGUID reads a required Guid, the empty one too.
func (o *object) anyGUID(name string) string {
	text, _ := o.get(name).(string)
	id, ok := canonical(text)
	if !ok {
		o.fail(invalid(name))
	}
	return id
}

// guid reads a required Guid that is not the empty one.
func (o *object) guid(name string) string {
	id := o.anyGUID(name)
	if id == emptyGUID && name != "TenantId" {
		o.fail(invalid(name))
	}
	return id
}

func (o *object) optionalGUID(name string) {
	switch v := o.optional(name).(type) {
	case nil:
	case string:
		if _, ok := canonical(v); !ok {
			o.fail(invalid(name))
		}
	default:
		o.fail(invalid(name))
	}
}

func (o *object) text(name string) string {
	text, ok := o.get(name).(string)
	if !ok {
		o.fail(invalid(name))
	}
	return text
}

func (o *object) oneOf(name string, known ...string) string {
	text := o.text(name)
	if !slices.Contains(known, text) {
		o.fail(invalid(name))
	}
	return text
}

func (o *object) when(name string) time.Time {
	text := o.text(name)
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || !timeForm.MatchString(text) {
		o.fail(invalid(name))
	}
	return at
}

// integer reads a whole number of so many bits (33: unsigned 32), from low to high where high is not 0, from low where
// low is not 0.
func (o *object) integer(name string, bits int, low, high int64) int64 {
	number, ok := o.get(name).(json.Number)
	if !ok || !intForm.MatchString(number.String()) {
		o.fail(invalid(name))
		return 0
	}
	n, err := strconv.ParseInt(number.String(), 10, 64)
	least, most := int64(-1)<<(min(bits, 64)-1), int64(1)<<(min(bits, 63)-1)-1
	if bits == 64 {
		most = 1<<63 - 1
	}
	if bits == 33 {
		least, most = 0, 1<<32-1
	}
	switch {
	case err != nil || n < least || n > most:
		o.fail(outOfRange(name))
	case low != 0 && n < low, high != 0 && n > high:
		o.fail(invalid(name))
	}
	return n
}

func digits(n int64) string { return strconv.FormatInt(n, 10) }

func (o *object) targets() []Ref {
	list, ok := o.get("Targets").([]any)
	if !ok {
		o.fail(invalid("Targets"))
		return nil
	}
	var out []Ref
	for _, item := range list {
		target, ok := item.(*object)
		if !ok {
			o.fail(invalid("Targets"))
			return nil
		}
		kind := target.text("TargetKind")
		var id string
		if kind == Project || kind == PropertyObject {
			id = target.guid("TargetId")
		}
		if target.fault != nil {
			o.fail(target.fault)
			return nil
		}
		if ref := (Ref{kind, id}); id != "" && !slices.Contains(out, ref) {
			out = append(out, ref)
		}
	}
	return out
}

func (o *object) isoCode() string {
	snapshot, ok := o.get("CurrencySnapshot").(*object)
	if !ok {
		o.fail(invalid("CurrencySnapshot"))
		return ""
	}
	code := snapshot.text("IsoCode")
	if snapshot.fault != nil {
		o.fail(snapshot.fault)
	}
	return code
}

// number is an exact decimal.
type number struct{ r *big.Rat }

func (o *object) decimal(name string) *number {
	if o.get(name) == nil {
		return &number{new(big.Rat)}
	}
	n := o.optionalDecimal(name)
	if n == nil {
		return &number{new(big.Rat)}
	}
	return n
}

func (o *object) optionalDecimal(name string) *number {
	var text string
	switch v := o.optional(name).(type) {
	case nil:
		return nil
	case json.Number:
		text = v.String()
	case string:
		text = v
	}
	if !decimalForm.MatchString(text) {
		o.fail(invalid(name))
		return nil
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		o.fail(invalid(name))
		return nil
	}
	return &number{r}
}

var decimalForm = regexp.MustCompile(`^-?\d+(\.\d+)?([eE][+-]?\d{1,4})?$`)

func (n *number) sign() int { return n.r.Sign() }

func (n *number) per(area *number) *number { return &number{new(big.Rat).Quo(n.r, area.r)} }

// round rounds half away from zero (D12).
func (n *number) round(places int) *number {
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(places)), nil)
	scaled := new(big.Rat).Mul(n.r, new(big.Rat).SetInt(scale))
	twice := new(big.Int).Mul(new(big.Int).Abs(scaled.Num()), big.NewInt(2))
	twice.Add(twice, scaled.Denom())
	whole := twice.Quo(twice, new(big.Int).Mul(scaled.Denom(), big.NewInt(2)))
	if scaled.Sign() < 0 {
		whole.Neg(whole)
	}
	return &number{new(big.Rat).SetFrac(whole, scale)}
}

// column is the text of a Decimal column with two decimals and so many digits before the point.
func (n *number) column(name string, integerDigits int) (string, *fault) {
	rounded := n.round(2)
	limit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(integerDigits)), nil)
	if new(big.Rat).Abs(rounded.r).Cmp(new(big.Rat).SetInt(limit)) >= 0 {
		return "", outOfRange(name)
	}
	return rounded.r.FloatString(2), nil
}
