// Package promotion keeps the replica of promotion purchases.
package promotion

import (
	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
)

// Outcome says what an event did to the replica.
type Outcome int

// The outcomes.
const (
	Applied         Outcome = iota // a new snapshot
	Reapplied                      // the very record that made the state, delivered again (D9)
	DuplicateReemit                // repeated MessageId of the version applied last, as another record (D34)
	Duplicate                      // repeated MessageId
	Stale                          // older version
	PostOnly                       // new snapshot of a purchase that never named a Project or PropertyObject (D4)
)

// Decision is what to do about an event.
type Decision struct {
	Outcome Outcome
	State   *codecs.PurchaseState // to write to the group table; nil: no write
	Emit    *codecs.PurchaseState // snapshot for the sink; nil: nothing
}

// Decide is the rule of the consumer.
func Decide(state *codecs.PurchaseState, ev *codecs.Purchase, origin codecs.Origin, source record.ID) Decision {
	return Decision{}
}
