// Package dlq lists, shows, puts back and drops dead letters (contracts, section 2; decisions D17, D33). Letters stay in their topic;
// what was done with them is in vitrina.dead_letter_actions.
//
// Putting back never loses and never loops: a letter is noted as put back after its record is acknowledged, so that an interruption
// repeats a few records, which is harmless (D17); a replay takes the ends of the topic when it begins, so that what comes back is not
// met again; and a record that has come back dead_letters.max_returns times is parked.
package dlq

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/sinks/deadletter"
)

// HeaderReturns counts how often a record was put back. It is none of the headers that a dead letter replaces, so it travels with the
// record through every further death.
const HeaderReturns = "x-vitrina-returns"

// Conventions by which a letter says what it is.
const (
	ConventionOwn     = "vitrina"
	ConventionConnect = "kafka-connect"
	ConventionStreams = "kafka-streams"
	ConventionSpring  = "spring"
	ConventionNone    = "none"
)

// States of a letter.
const (
	StateWaiting  = "waiting"
	StateReplayed = "replayed"
	StateDropped  = "dropped"
	StateParked   = "parked"
	StateUnknown  = "unknown" // the database that knows did not answer
)

// Place is where the original record lies, as far as the letter says.
type Place struct {
	Topic     string `json:"topic,omitempty"`
	Partition *int32 `json:"partition,omitempty"`
	Offset    *int64 `json:"offset,omitempty"`
}

// Letter is one dead letter as it may be shown: without personal values.
type Letter struct {
	ID         string    `json:"id"` // partition@offset
	Consumer   string    `json:"consumer"`
	Topic      string    `json:"topic"`
	Partition  int32     `json:"partition"`
	Offset     int64     `json:"offset"`
	Timestamp  time.Time `json:"timestamp"`
	Code       string    `json:"code"`
	Reason     string    `json:"reason"`
	Source     Place     `json:"source"`
	Attempts   int       `json:"attempts"`
	Key        *string   `json:"key"` // null where the record has none; size and hash where it is not the id of what the record is about
	Returns    int       `json:"returns"`
	Convention string    `json:"convention"`
	State      string    `json:"state"`
	Action     *Action   `json:"action,omitempty"`
	Headers    []Header  `json:"headers,omitempty"` // show only
	Payload    string    `json:"payload,omitempty"` // show only: readable, personal values masked
	Size       int       `json:"size"`              // bytes of the value
	rec        *kgo.Record
}

// Header is one header as text.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// ID is the id of a letter within its topic.
func ID(partition int32, offset int64) string { return fmt.Sprintf("%d@%d", partition, offset) }

// ParseID reads partition@offset or partition/offset.
func ParseID(s string) (partition int32, offset int64, err error) {
	p, o, ok := strings.Cut(strings.ReplaceAll(s, "/", "@"), "@")
	n, err1 := strconv.ParseInt(p, 10, 32)
	m, err2 := strconv.ParseInt(o, 10, 64)
	if !ok || err1 != nil || err2 != nil || n < 0 || m < 0 {
		return 0, 0, fmt.Errorf("%q is no id of a dead letter: write partition@offset, as in 3@1207", s)
	}
	return int32(n), m, nil
}

// read describes a record of a dead-letter topic. Headers of this project come first, then those of the conventions that other tools
// follow.
func read(consumer string, rec *kgo.Record) Letter {
	l := Letter{
		ID: ID(rec.Partition, rec.Offset), Consumer: consumer, Topic: rec.Topic, Partition: rec.Partition, Offset: rec.Offset,
		Timestamp: rec.Timestamp.UTC(), Attempts: 1, Convention: ConventionNone, State: StateWaiting, Size: len(rec.Value), rec: rec,
	}
	l.Returns = returnsOf(rec)
	for _, c := range conventions() {
		if c.apply(&l, rec) {
			l.Convention = c.name
			break
		}
	}
	m := maskerOf(rec)
	if l.Convention != ConventionOwn {
		l.Reason = m.leaf(l.Reason) // another tool's words may quote the record
	}
	l.Code, l.Reason = m.text(l.Code), m.text(l.Reason)
	if rec.Key != nil {
		key := m.key(rec.Key)
		l.Key = &key
	}
	return l
}

// returnsOf reads how often a record was put back; what cannot be read counts as never.
func returnsOf(rec *kgo.Record) int {
	n, err := strconv.Atoi(header(rec, HeaderReturns))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// convention is one family of headers.
type convention struct {
	name                                             string
	code, reason, topic, partition, offset, attempts string
	binary                                           bool // numbers are big endian, as Spring writes them
}

func conventions() []convention {
	return []convention{
		{ConventionOwn, deadletter.HeaderErrorCode, deadletter.HeaderReason, deadletter.HeaderSourceTopic, deadletter.HeaderOriginalPartition, deadletter.HeaderOriginalOffset, deadletter.HeaderAttempts, false},
		{ConventionConnect, "__connect.errors.exception.class.name", "__connect.errors.exception.message", "__connect.errors.topic", "__connect.errors.partition", "__connect.errors.offset", "", false},
		{ConventionStreams, "__streams.errors.exception", "__streams.errors.message", "__streams.errors.topic", "__streams.errors.partition", "__streams.errors.offset", "", false},
		{ConventionSpring, "kafka_dlt-exception-fqcn", "kafka_dlt-exception-message", "kafka_dlt-original-topic", "kafka_dlt-original-partition", "kafka_dlt-original-offset", "", true},
	}
}

// foreign are the prefixes of the other conventions' headers: like our own they are not the record's.
func foreign(name string) bool {
	name = strings.ToLower(name)
	return strings.HasPrefix(name, "__connect.errors.") || strings.HasPrefix(name, "__streams.errors.") || strings.HasPrefix(name, "kafka_dlt-")
}

func (c convention) apply(l *Letter, rec *kgo.Record) bool {
	found := false
	for _, name := range []string{c.code, c.reason, c.topic, c.offset} {
		found = found || has(rec, name)
	}
	if !found {
		return false
	}
	l.Code, l.Reason, l.Source.Topic = header(rec, c.code), header(rec, c.reason), header(rec, c.topic)
	if n, ok := c.number(rec, c.partition); ok && n >= 0 && n <= 1<<30 {
		p := int32(n)
		l.Source.Partition = &p
	}
	if n, ok := c.number(rec, c.offset); ok && n >= 0 {
		l.Source.Offset = &n
	}
	if n, ok := c.number(rec, c.attempts); ok && n > 0 && n <= 1<<30 {
		l.Attempts = int(n)
	}
	return true
}

func (c convention) number(rec *kgo.Record, name string) (int64, bool) {
	if name == "" || !has(rec, name) {
		return 0, false
	}
	raw := []byte(header(rec, name))
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return n, true
	}
	switch {
	case c.binary && len(raw) == 4:
		return int64(int32(binary.BigEndian.Uint32(raw))), true //nolint:gosec // Spring's int
	case c.binary && len(raw) == 8:
		return int64(binary.BigEndian.Uint64(raw)), true //nolint:gosec // Spring's long
	}
	return 0, false
}

// header is the value of the last header of that name; names compare without case.
func header(rec *kgo.Record, name string) string {
	for i := len(rec.Headers) - 1; i >= 0; i-- {
		if strings.EqualFold(rec.Headers[i].Key, name) {
			return string(rec.Headers[i].Value)
		}
	}
	return ""
}

func has(rec *kgo.Record, name string) bool {
	for _, h := range rec.Headers {
		if strings.EqualFold(h.Key, name) {
			return true
		}
	}
	return false
}

// printable shows bytes as text where they are text.
func printable(b []byte) string {
	if utf8.Valid(b) {
		return strings.Map(func(r rune) rune {
			if r < ' ' && r != '\n' && r != '\t' {
				return '\uFFFD'
			}
			return r
		}, string(b))
	}
	return fmt.Sprintf("%d bytes that are no text: %.64x", len(b), b)
}

// show adds what a list leaves out.
func (l *Letter) show() {
	m := maskerOf(l.rec)
	l.Headers = make([]Header, 0, len(l.rec.Headers))
	for _, h := range l.rec.Headers {
		value := m.header(h.Key, h.Value)
		if l.Convention == ConventionSpring && foreign(h.Key) && (len(h.Value) == 4 || len(h.Value) == 8) {
			if n, ok := (convention{binary: true}).number(&kgo.Record{Headers: []kgo.RecordHeader{h}}, h.Key); ok {
				value = strconv.FormatInt(n, 10)
			}
		}
		l.Headers = append(l.Headers, Header{Name: m.name(h.Key), Value: value})
	}
	l.Payload = m.payload()
}
