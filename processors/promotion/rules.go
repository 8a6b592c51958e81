// Package promotion keeps the replica of promotion purchases: which cards each purchase promotes, how much and whether it counts.
// The rules are pure; consumer.go carries events to them and their outcome to the sink.
package promotion

import (
	"cmp"
	"slices"

	"github.com/google/uuid"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
)

// Outcome says what an event did to the replica; it is what is counted and logged.
type Outcome int

// The outcomes. The zero value is none of them.
const (
	Applied         Outcome = iota + 1 // a new snapshot
	Reapplied                          // the very record that made the state, delivered again (D9)
	DuplicateReemit                    // repeated MessageId of the version applied last, as another record (D34)
	Duplicate                          // repeated MessageId
	Stale                              // older version
	PostOnly                           // a new snapshot of a purchase that never named a Project or PropertyObject (D4)
)

// String is the outcome's name in logs and metrics.
func (o Outcome) String() string {
	switch o {
	case Applied:
		return "applied"
	case Reapplied:
		return "reapplied"
	case DuplicateReemit:
		return "skipped-duplicate-reemitted"
	case Duplicate:
		return "skipped-duplicate"
	case Stale:
		return "skipped-stale"
	case PostOnly:
		return "post-only"
	}
	return "none"
}

// Decision is what to do about an event. State and Emit may be the same value as the state decided upon: none may be changed.
type Decision struct {
	Outcome Outcome
	State   *codecs.PurchaseState // to write to the group table, always: a skip writes what is there again
	Emit    *codecs.PurchaseState // snapshot for the sink; nil: nothing
}

// Decide is the consumer's rule (specification 000, "Алгоритм"; decisions D3 to D9, D34; design E3, E5, section 12.8). state is what the
// group table holds for the purchase, nil if nothing; origin is the record as delivered, source the original record (another one
// where the event came through the loop topic). The order of the questions matters:
//
//  1. The record that made the state, again: all it did may have been lost in a crash but the local state, so state and output
//     go out again in full, as they are.
//  2. A message seen before is a duplicate, whatever its version. Of the version applied last it is emitted again, for a message
//     put back after its effect was dead-lettered; what is emitted is the state's snapshot, because an older message of the same
//     version must not undo a newer one.
//  3. An older version is stale. Its id is remembered, so that its repeat is a duplicate (D8).
//  4. Anything else is a new snapshot, an equal version too (D7).
//
// A skip changes neither the snapshot nor the record that made it, but it writes the state again: after a crash the local state may be
// ahead of the changelog by several records, and the first of them, committed as a duplicate without a write, would be missing from
// the memory of the next owner, who has the changelog only (ids, dropped targets; the crash test finds this).
//
// A snapshot that names no card of ours is stored and emitted like any other: an older version put back later must find it.
func Decide(state *codecs.PurchaseState, ev *codecs.Purchase, origin codecs.Origin, source record.ID) Decision {
	switch {
	case state == nil:
		return apply(nil, ev, origin, source)
	case state.Origin == origin:
		return Decision{Outcome: Reapplied, State: state, Emit: state}
	case remembers(state.MessageIDs, ev.MessageID):
		if ev.Version == state.Version {
			return Decision{Outcome: DuplicateReemit, State: state, Emit: state}
		}
		return Decision{Outcome: Duplicate, State: state}
	case ev.Version < state.Version:
		return Decision{Outcome: Stale, State: rememberOnly(state, ev)}
	}
	return apply(state, ev, origin, source)
}

// apply makes the state that the event's snapshot leaves.
func apply(state *codecs.PurchaseState, ev *codecs.Purchase, origin codecs.Origin, source record.ID) Decision {
	next := &codecs.PurchaseState{
		Origin:          origin,
		Version:         ev.Version,
		Status:          ev.Status,
		BoostWeight:     ev.BoostWeight,
		EndsAt:          ev.EndsAt,
		Targets:         ev.Targets,
		EverTargets:     ev.Targets,
		Topic:           source.Topic,
		SourcePartition: source.Partition,
		SourceOffset:    source.Offset,
	}
	var seen []codecs.MessageRef
	if state != nil {
		if state.Version == ev.Version {
			next.Revision = state.Revision + 1
		}
		next.EverTargets = merge(ev.Targets, state.EverTargets)
		seen = state.MessageIDs
	}
	next.MessageIDs = remember(seen, codecs.MessageRef{ID: ev.MessageID, Version: ev.Version})
	next.EverKnown = len(next.EverTargets) > 0
	outcome := Applied
	if !next.EverKnown {
		outcome = PostOnly
	}
	return Decision{Outcome: outcome, State: next, Emit: next}
}

// rememberOnly is state with one more message id.
func rememberOnly(state *codecs.PurchaseState, ev *codecs.Purchase) *codecs.PurchaseState {
	ref := codecs.MessageRef{ID: ev.MessageID, Version: ev.Version}
	if len(state.MessageIDs) >= codecs.MaxMessageIDs && ref.Version <= state.MessageIDs[0].Version {
		return state // it would be the next one forgotten
	}
	next := *state
	next.MessageIDs = remember(state.MessageIDs, ref)
	return &next
}

func remembers(refs []codecs.MessageRef, id uuid.UUID) bool {
	return slices.ContainsFunc(refs, func(m codecs.MessageRef) bool { return m.ID == id })
}

// remember adds a message id behind those of its version and forgets the first, which is the oldest of the lowest version, when there are
// too many: the version guard still knows what to do about that one.
func remember(refs []codecs.MessageRef, ref codecs.MessageRef) []codecs.MessageRef {
	at, _ := slices.BinarySearchFunc(refs, ref.Version, func(m codecs.MessageRef, version int64) int {
		if m.Version <= version {
			return -1
		}
		return 1
	})
	out := make([]codecs.MessageRef, 0, len(refs)+1)
	out = append(append(append(out, refs[:at]...), ref), refs[at:]...)
	return out[max(0, len(out)-codecs.MaxMessageIDs):]
}

// merge unites two sorted lists of targets. Beyond codecs.MaxTargets only those that the snapshot names are sure of their place: a
// dropped one that is forgotten here is still an inactive contribution in the database.
func merge(named, ever []codecs.Target) []codecs.Target {
	room := codecs.MaxTargets - len(named)
	out := make([]codecs.Target, 0, min(len(named)+len(ever), codecs.MaxTargets))
	for len(named) > 0 || len(ever) > 0 {
		order := cmp.Compare(len(ever), 0) - cmp.Compare(len(named), 0) // the list that is left, if only one is
		if order == 0 {
			order = codecs.CompareTargets(named[0], ever[0])
		}
		switch {
		case order > 0:
			if room > 0 {
				out = append(out, ever[0])
				room--
			}
			ever = ever[1:]
		default:
			out = append(out, named[0])
			if order == 0 {
				ever = ever[1:]
			}
			named = named[1:]
		}
	}
	return out
}
