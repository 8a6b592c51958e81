package codecs

import (
	"fmt"
	"math/bits"
	"unicode/utf8"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// The fields of the envelope.
const (
	envEventID = iota
	envMessageID
	envAggregateID
	envAggregateType
	envTenantID
	envCreatedAt
	envContractVersion
	envPayload
	envFields
)

// contractVersion is the version of all three contracts that this program is written for.
const contractVersion = 1

func envelopeFieldName(i int) string {
	return [...]string{"EventId", "MessageId", "AggregateId", "AggregateType", "TenantId", "CreatedAt", "ContractVersion", "Payload", ""}[i]
}

// envelopeField finds a field by its name: PascalCase or camelCase, nothing else (D20, D30).
func envelopeField(name []byte) int {
	switch string(name) {
	case "EventId", "eventId":
		return envEventID
	case "MessageId", "messageId":
		return envMessageID
	case "AggregateId", "aggregateId":
		return envAggregateID
	case "AggregateType", "aggregateType":
		return envAggregateType
	case "TenantId", "tenantId":
		return envTenantID
	case "CreatedAt", "createdAt":
		return envCreatedAt
	case "ContractVersion", "contractVersion":
		return envContractVersion
	case "Payload", "payload":
		return envPayload
	}
	return -1
}

// message is a scanned value: its payload's fields and its envelope.
type message struct {
	fields
	envelope         [envFields]span // all absent in the bare form
	envelopeRepeated uint32          // bit set of the envelope's fields that came more than once
}

// scan reads the whole value in one pass. It returns a fault for what is no JSON object of the agreed form (D23) and for a repeated
// field of the envelope; repeated fields of the payload are noted in fields.
func (m *message) scan(value []byte, payloadField func([]byte) int) *Fault {
	if value == nil {
		return undecodable("The value is null (a tombstone), which this topic has no meaning for.")
	}
	fault := m.scanText(value, payloadField)
	// What is not UTF-8 is never sound JSON, so only a value that is faulty already can have this fault, which comes first.
	if fault != nil && fault.Code == CodeUndecodable && !utf8.Valid(value) {
		return undecodable("The value is not valid UTF-8.")
	}
	return fault
}

func (m *message) scanText(value []byte, payloadField func([]byte) int) *Fault {
	m.data = value
	if m.nameOf == nil {
		m.nameOf = func(int) string { return "" }
	}
	s := scanner{data: value}
	pos := s.space(0)
	if pos == len(value) {
		return undecodable("The value is empty.")
	}
	if s.kind(pos) != kindObject {
		return undecodable("The value is not a JSON object.")
	}
	pos = m.outermost(&s, s.enter(pos), payloadField)
	if pos >= 0 {
		if pos = s.space(pos); pos < len(value) {
			pos = s.fail(pos, "something follows the end of the object")
		}
	}
	if pos < 0 {
		return undecodable(fmt.Sprintf("The value is not JSON: %s (byte %d of %d).", s.fault, s.space(s.at), len(value)))
	}

	if m.envelope[envPayload].kind == absent {
		// The bare form: the value is the payload, its metadata are headers. Names of the envelope mean nothing in it.
		m.envelope = [envFields]span{}
		return nil
	}
	if m.envelope[envPayload].kind != kindObject && m.envelopeRepeated>>envPayload&1 == 0 {
		return undecodable("Payload is not a JSON object.")
	}
	if m.envelopeRepeated != 0 {
		return repeatedField(envelopeFieldName(bits.TrailingZeros32(m.envelopeRepeated)))
	}
	return nil
}

// outermost consumes the members of the outermost object, which is an envelope if it has a Payload and a bare payload if not.
func (m *message) outermost(s *scanner, pos int, payloadField func([]byte) int) int {
	field, bare := -1, -1 // what the last name means in an envelope and in a bare payload; -1 is nothing
	for first := true; ; first = false {
		var more bool
		if pos, more = s.advance(pos, first); !more {
			return pos
		}
		if field, bare, pos = m.meaning(s, pos, field, bare, payloadField); pos < 0 {
			return pos
		}
		mayBeBare := m.envelope[envPayload].kind == absent
		if field == envPayload && mayBeBare && s.kind(pos) == kindObject {
			m.envelope[envPayload] = span{kind: kindObject, start: pos}
			m.forget()
			if pos = s.members(s.enter(pos), &m.fields, payloadField); pos < 0 {
				return pos
			}
			continue
		}
		var v span
		if v, pos = s.value(pos); pos < 0 {
			return pos
		}
		if field >= 0 {
			if m.envelope[field].kind != absent {
				m.envelopeRepeated |= 1 << field
			}
			m.envelope[field] = v
		}
		if bare >= 0 && mayBeBare {
			m.set(bare, v)
		}
	}
}

// meaning consumes the name of a member of the outermost object and says what it means; field and bare are what the last one meant.
func (m *message) meaning(s *scanner, pos, field, bare int, payloadField func([]byte) int) (newField, newBare, next int) {
	if bare >= 0 {
		if i, name, next := s.follows(pos, bare, m.nameOf); i >= 0 {
			return envelopeField(name), i, next
		}
	}
	if i, name, next := s.follows(pos, field, envelopeFieldName); i >= 0 {
		if i == envTenantID { // the only name that payloads have too
			return i, payloadField(name), next
		}
		return i, -1, next
	}
	name, next := s.name(pos)
	return envelopeField(name), payloadField(name), next
}

// members consumes the members of an entered object.
func (s *scanner) members(pos int, into *fields, field func([]byte) int) int {
	i := -1
	for first := true; ; first = false {
		var more bool
		if pos, more = s.advance(pos, first); !more {
			return pos
		}
		if i, _, pos = s.follows(pos, i, into.nameOf); i < 0 {
			var name []byte
			if name, pos = s.name(pos); pos < 0 {
				return pos
			}
			i = field(name)
		}
		if end := pos + quotedGUID; i >= 0 && s.is(pos, '"') && s.is(end-1, '"') {
			// Most strings are Guids: read here, each is looked at only once.
			if g, ok := readGUID(s.data[pos+1 : end-1]); ok {
				into.set(i, span{start: pos, end: end, kind: kindString})
				into.setGUID(i, g)
				pos = end
				continue
			}
		}
		var v span
		if v, pos = s.value(pos); pos < 0 {
			return pos
		}
		if i >= 0 {
			into.set(i, v)
		}
	}
}

// claim returns the text that stands for a field of the metadata, by the precedence that Meta describes. found says whether any
// place carries the field; the text is nil when it is no string there.
func (m *message) claim(rec *record.Record, field int, headers ...string) (text []byte, found bool) {
	if v := m.envelope[field]; v.kind > kindNull {
		text, _ = m.text(v)
		return text, true
	}
	for _, name := range headers {
		if value, ok := rec.Header(name); ok && value != nil {
			return value, true
		}
	}
	return nil, false
}

// meta reads the metadata. eventIDFound says whether there was an EventId at all, readable or not.
func (m *message) meta(rec *record.Record, meta *Meta) (eventIDFound bool) {
	id, found := m.claim(rec, envEventID)
	if !found {
		id, found = m.claim(rec, envMessageID, "EventId", "MessageId", "ce_id")
	}
	// The empty Guid identifies no message: taken for an id it would make every such event a repeat of the first.
	if id, ok := readGUID(id); ok && id != (guid{}) {
		id.put(&meta.MessageID)
		meta.HasMessageID = true
	}
	if b, ok := m.claim(rec, envAggregateID, "AggregateId"); ok {
		meta.AggregateID = cleanText(b)
	}
	if b, ok := m.claim(rec, envAggregateType, "AggregateType"); ok {
		meta.AggregateType = aggregateType(b)
	}
	if b, ok := m.claim(rec, envTenantID, "TenantId"); ok {
		meta.TenantID = cleanText(b)
	}
	if b, ok := m.claim(rec, envCreatedAt, "CreatedAt", "ce_time"); ok {
		if t, _, state := parseTime(b); state == fits {
			meta.CreatedAt = t
		}
	}
	version := m.envelope[envContractVersion]
	if version.kind > kindNull {
		meta.ContractVersion = smallInteger(m.data[version.start:version.end])
	} else if b, ok := rec.Header("ContractVersion"); ok {
		meta.ContractVersion = smallInteger(b)
	}
	meta.ContractMismatch = meta.ContractVersion != contractVersion
	return found
}

// EventID returns the id of an event in canonical form, empty where it has none that is readable: for the log line of a record that
// breaks its contract.
func EventID(rec *record.Record) string {
	var m message
	if fault := m.scan(rec.Value, func([]byte) int { return -1 }); fault != nil {
		m = message{} // the headers may still say it
	}
	var meta Meta
	m.meta(rec, &meta)
	if !meta.HasMessageID {
		return ""
	}
	return meta.MessageID.String()
}

// smallInteger reads an integer that only matters when it is sound; 0 otherwise.
func smallInteger(b []byte) int64 {
	if n, state := parseInteger(b); state == fits {
		return n
	}
	return 0
}

// aggregateType spares an allocation for the names that come with nearly every event.
func aggregateType(b []byte) string {
	switch string(b) {
	case "PropertyObjectView":
		return "PropertyObjectView"
	case "PropertyObject":
		return "PropertyObject"
	case "PromotionPurchase":
		return "PromotionPurchase"
	}
	return cleanText(b)
}
