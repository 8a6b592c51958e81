package generate

import (
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// field is one property of a JSON object; raw is its JSON.
type field struct{ name, raw string }

// doc is a JSON object in the order in which a producer writes it.
type doc []field

func (d *doc) add(name, raw string)        { *d = append(*d, field{name, raw}) }
func (d *doc) text(name, value string)     { d.add(name, strconv.Quote(value)) }
func (d *doc) number(name string, n int64) { d.add(name, strconv.FormatInt(n, 10)) }

func (d *doc) set(name, raw string) {
	for i := range *d {
		if (*d)[i].name == name {
			(*d)[i].raw = raw
		}
	}
}

func (d *doc) get(name string) string {
	for _, f := range *d {
		if f.name == name {
			return f.raw
		}
	}
	return ""
}

func (d *doc) drop(name string) {
	kept := (*d)[:0:0]
	for _, f := range *d {
		if f.name != name {
			kept = append(kept, f)
		}
	}
	*d = kept
}

func (d *doc) json(camel bool) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, f := range *d {
		if i > 0 {
			b.WriteByte(',')
		}
		name := f.name
		if camel && name != "" {
			name = strings.ToLower(name[:1]) + name[1:]
		}
		b.WriteByte('"')
		b.WriteString(name)
		b.WriteString(`":`)
		b.WriteString(f.raw)
	}
	b.WriteByte('}')
	return b.String()
}

// draft is a record in the making: the good event, before a form or a fault is chosen for it.
type draft struct {
	topic    string
	key      []byte
	at       time.Time
	envelope doc // without Payload
	payload  doc
	value    func(good []byte) []byte // replaces the value; nil: the good one
	bareMeta bool
}

// forms are the ways in which one event can be written (contracts, section 1; D18 to D20).
type forms struct {
	s      source
	bare   float64
	traced float64
}

func (f forms) guid(id uuid.UUID) string {
	text := id.String()
	switch f.s.IntN(60) {
	case 0:
		return strings.ToUpper(text)
	case 1:
		return "{" + text + "}"
	}
	return text
}

// moment writes a time as .NET does, or in one of the other forms RFC 3339 allows.
func (f forms) moment(at time.Time) string {
	switch f.s.IntN(6) {
	case 0:
		return at.UTC().Format("2006-01-02T15:04:05Z")
	case 1:
		return at.UTC().Format("2006-01-02T15:04:05.000Z")
	case 2:
		return at.In(time.FixedZone("", 5*3600+1800)).Format("2006-01-02T15:04:05.000000000-07:00")
	}
	return at.In(time.FixedZone("", 3*3600)).Format("2006-01-02T15:04:05.0000000-07:00")
}

// meta starts a draft with the metadata every event carries.
func (f forms) meta(topic, aggregateType string, aggregate uuid.UUID, tenant string, at time.Time) draft {
	d := draft{topic: topic, key: []byte(aggregate.String()), at: at}
	name := "EventId"
	if f.s.IntN(25) == 0 {
		name = "MessageId"
	}
	d.envelope.text(name, f.guid(f.s.id7(at)))
	d.envelope.text("AggregateId", aggregate.String())
	d.envelope.text("AggregateType", aggregateType)
	if tenant != "" {
		d.envelope.text("TenantId", tenant)
	}
	d.envelope.text("CreatedAt", f.moment(at))
	switch f.s.IntN(200) {
	case 0:
		d.envelope.number("ContractVersion", 2)
	case 1: // a missing version counts as a mismatch (D1)
	default:
		d.envelope.number("ContractVersion", 1)
	}
	d.bareMeta = f.s.chance(f.bare)
	return d
}

// record writes a draft down.
func (f forms) record(d draft) *record.Record {
	rec := &record.Record{ID: record.ID{Topic: d.topic, Partition: -1, Offset: -1}, Key: d.key, Timestamp: d.at}
	camel := f.s.IntN(20) == 0
	if d.bareMeta {
		rec.Value = []byte(d.payload.json(camel))
		rec.Headers = f.headers(d.envelope)
	} else {
		whole := append(doc{}, d.envelope...)
		whole.add("Payload", d.payload.json(camel))
		rec.Value = []byte(whole.json(camel))
	}
	if f.s.chance(f.traced) {
		trace := f.s.id4()
		span := f.s.Uint64() | 1
		rec.Headers = append(rec.Headers, record.Header{
			Key:   "traceparent",
			Value: []byte("00-" + strings.ReplaceAll(trace.String(), "-", "") + "-" + padHex(span) + "-01"),
		})
	}
	if d.value != nil {
		rec.Value = d.value(rec.Value)
	}
	return rec
}

func (f forms) headers(envelope doc) []record.Header {
	cloud, lower := f.s.IntN(10) == 0, f.s.IntN(10) == 0
	var headers []record.Header
	for _, m := range envelope {
		name := m.name
		switch {
		case cloud && (name == "EventId" || name == "MessageId"):
			name = "ce_id"
		case cloud && name == "CreatedAt":
			name = "ce_time"
		case lower:
			name = strings.ToLower(name)
		}
		headers = append(headers, record.Header{Key: name, Value: []byte(strings.Trim(m.raw, `"`))})
	}
	return headers
}

func padHex(n uint64) string {
	text := strconv.FormatUint(n, 16)
	return strings.Repeat("0", 16-len(text)) + text
}

// misplace gives a record a key that is not the payload's id.
func (f forms) misplace(d *draft, id uuid.UUID) {
	switch f.s.IntN(4) {
	case 0:
		d.key = []byte(strings.ToUpper(id.String()))
	case 1:
		d.key = []byte("{" + id.String() + "}")
	case 2:
		d.key = nil
	default:
		d.key = []byte(f.s.id4().String())
	}
}
