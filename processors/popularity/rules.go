// Package popularity counts ended views of property objects, each exactly once. The rules are pure; consumer.go carries events to them
// and their outcome to the sink.
package popularity

import (
	"time"

	"github.com/pin-marketplace/vitrina/codecs"
)

// MarkKind says how the mark of a view relates to the record at hand. What becomes of the view is the sink's to decide, in the
// transaction that counts it (design, E4): a mark is a filter and a long memory, never a proof.
type MarkKind int

// The kinds. The zero value is none of them.
const (
	MarkNone    MarkKind = iota + 1 // no mark yet: to the ledger
	MarkOwn                         // made by this very record, delivered again: to the ledger (E3)
	MarkForeign                     // made by another record: to the ledger while younger than its window, else a duplicate
	MarkEarlier                     // made by a record of an earlier incarnation of the same topic: finished and foreign (section 12.3)
)

// String is the kind's name in logs.
func (k MarkKind) String() string {
	switch k {
	case MarkNone:
		return "none"
	case MarkOwn:
		return "own"
	case MarkForeign:
		return "foreign"
	case MarkEarlier:
		return "earlier"
	}
	return "unknown"
}

// Decision is what to do about a view.
type Decision struct {
	Kind   MarkKind
	MarkAt time.Time   // when the view was first marked, whole seconds; now for MarkNone
	Write  codecs.Mark // to write to the group table
}

// Decide classifies the mark of a view for the record that was delivered as origin (nil: there is none). A first record makes the
// mark. Every later record, the same or another, writes that mark again as it is, because its changelog record may have been lost in
// a crash that the local store survived (E3): a duplicate that is committed without the write would leave the next owner without a
// mark, and once the ledger's row is pruned nothing else would know the view.
//
// Incarnations can be told apart only within one topic: a record of the source and one of the loop topic are foreign to each other.
func Decide(mark *codecs.Mark, view *codecs.View, origin codecs.Origin, now time.Time) Decision {
	if mark == nil {
		at := now.UTC().Truncate(time.Second)
		return Decision{Kind: MarkNone, MarkAt: at, Write: codecs.Mark{Origin: origin, ObjectID: view.ObjectID, At: at}}
	}
	d := Decision{Kind: MarkForeign, MarkAt: mark.At, Write: *mark}
	switch {
	case mark.Origin == origin:
		d.Kind = MarkOwn
	case mark.Loop == origin.Loop && mark.Incarnation != origin.Incarnation:
		d.Kind = MarkEarlier
	}
	return d
}
