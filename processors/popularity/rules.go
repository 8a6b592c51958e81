// Package popularity counts ended views.
package popularity

import (
	"time"

	"github.com/pin-marketplace/vitrina/codecs"
)

// MarkKind says how a view's mark relates to the record at hand.
type MarkKind int

// The kinds.
const (
	MarkNone    MarkKind = iota // no mark yet
	MarkOwn                     // made by this very record
	MarkForeign                 // made by another record
	MarkEarlier                 // made by a record of an earlier incarnation of the topic: finished and foreign
)

// Decision is what to do about a view.
type Decision struct {
	Kind   MarkKind
	MarkAt time.Time
	Write  *codecs.Mark // nil: no table write
}

// Decide classifies the mark.
func Decide(mark *codecs.Mark, view *codecs.View, origin codecs.Origin, now time.Time) Decision {
	return Decision{}
}
