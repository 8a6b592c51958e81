// Package popularity counts ended views of property objects, each exactly once. The rules are pure; consumer.go carries events to them
// and their outcome to the sink.
package popularity

import (
	"time"

	"github.com/pin-marketplace/vitrina/codecs"
)

// Decision is what to do about a view.
type Decision struct {
	Kind   codecs.MarkKind
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
		return Decision{Kind: codecs.MarkNone, MarkAt: at, Write: codecs.Mark{Origin: origin, ObjectID: view.ObjectID, At: at}}
	}
	d := Decision{Kind: codecs.MarkForeign, MarkAt: mark.At, Write: *mark}
	switch {
	case mark.Origin == origin:
		d.Kind = codecs.MarkOwn
	case mark.Loop == origin.Loop && mark.Incarnation != origin.Incarnation:
		d.Kind = codecs.MarkEarlier
	}
	return d
}
