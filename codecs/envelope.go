package codecs

import (
	"fmt"
	"unicode/utf8"

	"github.com/google/uuid"

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
	return [...]string{"EventId", "MessageId", "AggregateId", "AggregateType", "TenantId", "CreatedAt", "ContractVersion", "Payload"}[i]
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
	envelope [envFields]span // all absent in the bare form
}

// scan reads the whole value in one pass. It returns a fault for what is no JSON object of the agreed form (D23) and for a repeated
// field of the envelope; repeated fields of the payload are marked in their spans.
func (m *message) scan(value []byte, payloadField func([]byte) int) *Fault {
	if value == nil {
		return undecodable("The value is null (a tombstone), which this topic has no meaning for.")
	}
	if !utf8.Valid(value) {
		return undecodable("The value is not valid UTF-8.")
	}
	m.data = value
	s := scanner{data: value}
	s.space()
	if s.pos == len(value) {
		return undecodable("The value is empty.")
	}
	if s.next() != kindObject {
		return undecodable("The value is not a JSON object.")
	}
	var bare [maxFields]span
	s.enter()
	for first := true; s.fault == ""; first = false {
		name, more := s.member(first)
		if !more {
			break
		}
		field := envelopeField(name)
		if field == envPayload && m.envelope[envPayload].kind == absent && s.next() == kindObject {
			m.envelope[envPayload] = span{kind: kindObject, start: s.pos}
			s.enter()
			s.members(&m.spans, payloadField)
			continue
		}
		v, _ := s.value()
		if field >= 0 {
			m.envelope[field].set(v)
		}
		if i := payloadField(name); i >= 0 {
			bare[i].set(v)
		}
	}
	s.space()
	if s.fault == "" && s.pos < len(value) {
		s.fail("something follows the end of the object")
	}
	if s.fault != "" {
		return undecodable(fmt.Sprintf("The value is not JSON: %s (byte %d of %d).", s.fault, s.pos, len(value)))
	}

	if m.envelope[envPayload].kind == absent {
		// The bare form: the value is the payload, its metadata are headers. Names of the envelope mean nothing in it.
		m.envelope = [envFields]span{}
		m.spans = bare
		return nil
	}
	if !m.envelope[envPayload].repeated && m.envelope[envPayload].kind != kindObject {
		return undecodable("Payload is not a JSON object.")
	}
	for i, v := range m.envelope {
		if v.repeated {
			return repeatedField(envelopeFieldName(i))
		}
	}
	return nil
}

// members consumes the members of an entered object.
func (s *scanner) members(into *[maxFields]span, field func([]byte) int) {
	for first := true; ; first = false {
		name, more := s.member(first)
		if !more {
			return
		}
		v, ok := s.value()
		if !ok {
			return
		}
		if i := field(name); i >= 0 {
			into[i].set(v)
		}
	}
}

func (v *span) set(to span) {
	to.repeated = v.kind != absent
	*v = to
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
func (m *message) meta(rec *record.Record) (meta Meta, eventIDFound bool) {
	id, found := m.claim(rec, envEventID)
	if !found {
		id, found = m.claim(rec, envMessageID, "EventId", "MessageId", "ce_id")
	}
	// The empty Guid identifies no message: taken for an id it would make every such event a repeat of the first.
	if guid, ok := parseGUID(id); ok && guid != uuid.Nil {
		meta.MessageID, meta.HasMessageID = guid, true
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
	return meta, found
}

// EventID returns the id of an event in canonical form, empty where it has none that is readable: for the log line of a record that
// breaks its contract.
func EventID(rec *record.Record) string {
	var m message
	if fault := m.scan(rec.Value, func([]byte) int { return -1 }); fault != nil {
		m = message{} // the headers may still say it
	}
	meta, _ := m.meta(rec)
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
