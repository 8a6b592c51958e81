package codecs

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	purchaseStateFormat = 1

	// MaxMessageIDs is how many message ids a purchase remembers: those of its highest versions. A repeat of an older one is
	// caught by the version guard all the same; only a repeat among more than this many snapshots of one Version would be applied.
	MaxMessageIDs = 256

	// MaxPurchaseStateSize is the most bytes that an encoded state takes.
	MaxPurchaseStateSize = 900 << 10

	maxTopicLen = 249 // Kafka's own limit
)

// Bits of the flags byte of a state and of the kind byte of its targets.
const (
	flagLoop      = 1 << 0
	flagEverKnown = 1 << 1

	targetIsObject  = 1 << 0
	targetIsCurrent = 1 << 1
)

// statuses are in the order of their stored forms, which never changes.
func statuses() [4]Status {
	return [...]Status{StatusActive, StatusExpired, StatusCancelled, StatusPending}
}

// statusCode is the stored form of a status, -1 for an unknown one.
func statusCode(s Status) int {
	all := statuses()
	return slices.Index(all[:], s)
}

// AppendBinary appends the state's encoded form. The error means a state that Decide does not make: unknown status, targets out of order
// or not among EverTargets, more of them than MaxTargets, more than MaxMessageIDs, negative coordinates.
func (s *PurchaseState) AppendBinary(b []byte) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("encoding a purchase state: %w", err)
	}
	var flags byte
	if s.Loop {
		flags |= flagLoop
	}
	if s.EverKnown {
		flags |= flagEverKnown
	}
	b = append(b, purchaseStateFormat, flags)
	b = binary.BigEndian.AppendUint32(b, s.Incarnation)
	b = binary.AppendUvarint(b, uint64(s.Partition))
	b = binary.AppendUvarint(b, uint64(s.Offset))
	b = binary.AppendUvarint(b, uint64(s.Version))
	b = binary.AppendUvarint(b, uint64(s.Revision))
	b = append(b, byte(statusCode(s.Status)))
	b = binary.AppendUvarint(b, uint64(s.BoostWeight))
	b = binary.AppendVarint(b, s.EndsAt.Unix())
	b = binary.AppendUvarint(b, uint64(s.EndsAt.Nanosecond()))
	b = appendBytes(b, []byte(s.Topic))
	b = binary.AppendUvarint(b, uint64(s.SourcePartition))
	b = binary.AppendUvarint(b, uint64(s.SourceOffset))

	b = binary.AppendUvarint(b, uint64(len(s.EverTargets)))
	current := s.Targets
	for _, t := range s.EverTargets {
		var k byte
		if t.Kind == KindPropertyObject {
			k |= targetIsObject
		}
		if len(current) > 0 && current[0] == t {
			k |= targetIsCurrent
			current = current[1:]
		}
		b = append(b, k)
		b = append(b, t.ID[:]...)
	}
	b = binary.AppendUvarint(b, uint64(len(s.MessageIDs)))
	for _, m := range s.MessageIDs {
		b = append(b, m.ID[:]...)
		b = binary.AppendUvarint(b, uint64(m.Version))
	}
	return b, nil
}

// MarshalBinary returns the state's encoded form; see AppendBinary.
func (s *PurchaseState) MarshalBinary() ([]byte, error) {
	return s.AppendBinary(make([]byte, 0, 128+17*len(s.EverTargets)+20*len(s.MessageIDs)))
}

// check says why a state has no stored form.
func (s *PurchaseState) check() error {
	switch {
	case s.Partition < 0 || s.Offset < 0 || s.SourcePartition < 0 || s.SourceOffset < 0:
		return fmt.Errorf("partition %d, offset %d (source %d, %d) is no place of a record", s.Partition, s.Offset, s.SourcePartition, s.SourceOffset)
	case s.Version < 0 || s.Revision < 0 || s.BoostWeight < 0:
		return fmt.Errorf("version %d, revision %d or weight %d is negative", s.Version, s.Revision, s.BoostWeight)
	case statusCode(s.Status) < 0:
		return fmt.Errorf("the status %q is unknown", s.Status)
	case s.EndsAt.Year() < 1 || s.EndsAt.Year() > 9999:
		return fmt.Errorf("the time EndsAt lies in year %d", s.EndsAt.Year())
	case len(s.Topic) > maxTopicLen:
		return fmt.Errorf("the topic's name has %d bytes, Kafka allows %d", len(s.Topic), maxTopicLen)
	case len(s.EverTargets) > MaxTargets:
		return fmt.Errorf("it has %d targets, %d is the most", len(s.EverTargets), MaxTargets)
	case len(s.MessageIDs) > MaxMessageIDs:
		return fmt.Errorf("it has %d message ids, %d is the most", len(s.MessageIDs), MaxMessageIDs)
	}
	return s.checkLists()
}

func (s *PurchaseState) checkLists() error {
	current := s.Targets
	for i, t := range s.EverTargets {
		if t.Kind != KindProject && t.Kind != KindPropertyObject {
			return fmt.Errorf("the target kind %q is unknown", t.Kind)
		}
		if i > 0 && CompareTargets(s.EverTargets[i-1], t) >= 0 {
			return fmt.Errorf("target %d is out of order", i)
		}
		if len(current) > 0 && current[0] == t {
			current = current[1:]
		}
	}
	if len(current) > 0 {
		return fmt.Errorf("%d of its targets are out of order or not among those ever named", len(current))
	}
	for i, m := range s.MessageIDs {
		if m.Version < 0 || i > 0 && s.MessageIDs[i-1].Version > m.Version {
			return fmt.Errorf("message id %d is out of order", i)
		}
	}
	return nil
}

// DecodePurchaseState reads what MarshalBinary wrote. The result shares no memory with data.
func DecodePurchaseState(data []byte) (*PurchaseState, error) {
	r := binaryReader{rest: data}
	r.format(purchaseStateFormat)
	flags := r.byte()
	if flags&^(flagLoop|flagEverKnown) != 0 {
		r.damaged("unknown flags")
	}
	s := &PurchaseState{EverKnown: flags&flagEverKnown != 0}
	s.Loop = flags&flagLoop != 0
	s.Incarnation = r.uint32()
	s.Partition = int32(r.uvarint(math.MaxInt32))
	s.Offset = int64(r.uvarint(math.MaxInt64))
	s.Version = int64(r.uvarint(math.MaxInt64))
	s.Revision = int64(r.uvarint(math.MaxInt64))
	all := statuses()
	if code := int(r.byte()); code < len(all) {
		s.Status = all[code]
	} else {
		r.damaged("unknown status")
	}
	s.BoostWeight = int32(r.uvarint(math.MaxInt32))
	seconds := r.varint()
	s.EndsAt = time.Unix(seconds, int64(r.uvarint(999_999_999))).UTC()
	s.Topic = string(r.take(r.uvarint(maxTopicLen)))
	s.SourcePartition = int32(r.uvarint(math.MaxInt32))
	s.SourceOffset = int64(r.uvarint(math.MaxInt64))
	s.decodeTargets(&r)
	if n := r.count(17); n > 0 {
		s.MessageIDs = make([]MessageRef, n)
	}
	for i := range s.MessageIDs {
		s.MessageIDs[i] = MessageRef{ID: r.uuid(), Version: int64(r.uvarint(math.MaxInt64))}
	}
	err := r.end()
	if err == nil {
		err = s.check()
	}
	if err != nil {
		return nil, fmt.Errorf("decoding a purchase state: %w", err)
	}
	return s, nil
}

func (s *PurchaseState) decodeTargets(r *binaryReader) {
	n := r.count(17)
	if n == 0 {
		return
	}
	s.EverTargets = make([]Target, n)
	for i := range s.EverTargets {
		k := r.byte()
		if k&^(targetIsObject|targetIsCurrent) != 0 {
			r.damaged("unknown target flags")
		}
		t := Target{Kind: KindProject, ID: r.uuid()}
		if k&targetIsObject != 0 {
			t.Kind = KindPropertyObject
		}
		s.EverTargets[i] = t
		if k&targetIsCurrent != 0 {
			s.Targets = append(s.Targets, t)
		}
	}
}
