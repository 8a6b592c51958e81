package promotion

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/record"
)

var ends = time.Date(2026, 12, 31, 20, 59, 59, 0, time.UTC)

func card(n int) codecs.Target {
	if n < 3 {
		return codecs.Target{Kind: codecs.KindProject, ID: uuid.UUID{byte(n + 1)}}
	}
	return codecs.Target{Kind: codecs.KindPropertyObject, ID: uuid.UUID{byte(n + 1)}}
}

func cards(ns ...int) []codecs.Target {
	var out []codecs.Target
	for _, n := range ns {
		out = append(out, card(n))
	}
	slices.SortFunc(out, codecs.CompareTargets)
	return slices.Compact(out)
}

func message(n int) uuid.UUID { return uuid.UUID{0xff, byte(n >> 8), byte(n)} }

func event(msg int, version int64, targets ...int) *codecs.Purchase {
	return &codecs.Purchase{Meta: codecs.Meta{MessageID: message(msg), HasMessageID: true}, PurchaseID: uuid.UUID{9}, Targets: cards(targets...),
		BoostWeight: 50, Status: codecs.StatusActive, EndsAt: ends, Version: version}
}

func at(offset int64) codecs.Origin {
	return codecs.Origin{Incarnation: 7, Partition: 2, Offset: offset}
}

func from(offset int64) record.ID {
	return record.ID{Topic: "pin.promotion.purchase-changed.v1", Partition: 2, Offset: offset}
}

func decide(state *codecs.PurchaseState, offset int64, ev *codecs.Purchase) Decision {
	return Decide(state, ev, at(offset), from(offset))
}

func TestFirstSnapshot(t *testing.T) {
	d := decide(nil, 10, event(1, 3, 0, 4))
	require.Equal(t, Applied, d.Outcome)
	require.Equal(t, &codecs.PurchaseState{Origin: at(10), Version: 3, Status: codecs.StatusActive, BoostWeight: 50, EndsAt: ends, Targets: cards(0, 4),
		EverTargets: cards(0, 4), Topic: "pin.promotion.purchase-changed.v1", SourcePartition: 2, SourceOffset: 10,
		MessageIDs: []codecs.MessageRef{{ID: message(1), Version: 3}}, EverKnown: true}, d.State)
	require.Same(t, d.State, d.Emit)
}

func TestLoopedRecordKeepsItsSource(t *testing.T) {
	loop := codecs.Origin{Incarnation: 8, Loop: true, Partition: 1, Offset: 4}
	d := Decide(nil, event(1, 1, 0), loop, from(10))
	require.Equal(t, loop, d.State.Origin)
	require.EqualValues(t, 10, d.State.SourceOffset)
	require.EqualValues(t, 2, d.State.SourcePartition)
	require.Equal(t, Reapplied, Decide(d.State, event(1, 1, 0), loop, from(10)).Outcome)
	require.Equal(t, DuplicateReemit, decide(d.State, 4, event(1, 1, 0)).Outcome, "the source record is another record")
}

// D9, E3: the record that made the state writes and emits all of it again, although its MessageId is known.
func TestSameRecordAgain(t *testing.T) {
	state := decide(nil, 10, event(1, 3, 0)).State
	d := decide(state, 10, event(1, 3, 0))
	require.Equal(t, Decision{Outcome: Reapplied, State: state, Emit: state}, d)

	again := state.Origin
	again.Incarnation++ // the same offset of a topic made anew is another record
	require.Equal(t, DuplicateReemit, Decide(state, event(1, 3, 0), again, from(10)).Outcome)
}

func TestRepeatedMessage(t *testing.T) {
	first := decide(nil, 10, event(1, 3, 0)).State
	d := decide(first, 11, event(1, 3, 0))
	require.Equal(t, Decision{Outcome: DuplicateReemit, State: first, Emit: first}, d, "of the version applied last: its snapshot goes out again (D34)")

	second := decide(first, 12, event(2, 4, 1)).State
	require.Equal(t, Decision{Outcome: Duplicate, State: second}, decide(second, 13, event(1, 3, 0)), "older version and repeated id at once: a duplicate (D8)")
	require.Equal(t, Decision{Outcome: Duplicate, State: second}, decide(second, 13, event(1, 9, 5)), "the id decides, whatever the version")
}

// A repeat of an older message of the version applied last emits the newer snapshot, not its own.
func TestRepeatEmitsTheStatesSnapshot(t *testing.T) {
	first := decide(nil, 10, event(1, 3, 0)).State
	second := decide(first, 11, event(2, 3, 1)).State
	require.Equal(t, Decision{Outcome: DuplicateReemit, State: second, Emit: second}, decide(second, 12, event(1, 3, 0)))
}

func TestStaleVersion(t *testing.T) {
	state := decide(nil, 10, event(1, 3, 0)).State
	d := decide(state, 11, event(2, 2, 1))
	require.Equal(t, Stale, d.Outcome)
	require.Nil(t, d.Emit)
	want := *state
	want.MessageIDs = []codecs.MessageRef{{ID: message(2), Version: 2}, {ID: message(1), Version: 3}}
	require.Equal(t, &want, d.State, "only the id is added: Origin and snapshot stay (E3)")
	require.Len(t, state.MessageIDs, 1, "the state decided upon is not changed")
	require.Equal(t, Decision{Outcome: Duplicate, State: d.State}, decide(d.State, 12, event(2, 2, 1)), "D8")
	require.Equal(t, Reapplied, decide(d.State, 10, event(1, 3, 0)).Outcome, "the record that made the state is still known")
}

func TestEqualVersionIsApplied(t *testing.T) {
	first := decide(nil, 10, event(1, 3, 0)).State
	second := decide(first, 11, event(2, 3, 1))
	require.Equal(t, Applied, second.Outcome, "D7")
	require.EqualValues(t, 1, second.State.Revision)
	third := decide(second.State, 12, event(3, 3, 2))
	require.EqualValues(t, 2, third.State.Revision)
	require.EqualValues(t, 0, decide(third.State, 13, event(4, 4, 2)).State.Revision, "revisions count within a version")
}

func TestDroppedTargetsAreRemembered(t *testing.T) {
	state := decide(nil, 10, event(1, 1, 0, 4)).State
	state = decide(state, 11, event(2, 2, 4, 5)).State
	require.Equal(t, cards(4, 5), state.Targets)
	require.Equal(t, cards(0, 4, 5), state.EverTargets)
	d := decide(state, 12, event(3, 3))
	require.Equal(t, Applied, d.Outcome, "a known purchase: its contributions become inactive (D4, D3)")
	require.Empty(t, d.State.Targets)
	require.Equal(t, cards(0, 4, 5), d.State.EverTargets)
	require.True(t, d.State.EverKnown)
}

func TestPostOnly(t *testing.T) {
	d := decide(nil, 10, event(1, 2))
	require.Equal(t, PostOnly, d.Outcome)
	require.False(t, d.State.EverKnown)
	require.Same(t, d.State, d.Emit, "stored by the sink too: an older version put back later stays stale (E5)")
	require.Equal(t, Stale, decide(d.State, 11, event(2, 1, 0)).Outcome)
	require.Equal(t, PostOnly, decide(d.State, 11, event(2, 3)).Outcome)
	require.Equal(t, DuplicateReemit, decide(d.State, 11, event(1, 2)).Outcome, "a repeated MessageId is a duplicate first (D8)")
	known := decide(d.State, 11, event(2, 3, 0))
	require.Equal(t, Applied, known.Outcome)
	require.True(t, known.State.EverKnown)
}

func TestMessageIDsAreBounded(t *testing.T) {
	var state *codecs.PurchaseState
	for i := range codecs.MaxMessageIDs + 10 {
		state = decide(state, int64(i), event(i, int64(i+1), 0)).State
	}
	require.Len(t, state.MessageIDs, codecs.MaxMessageIDs)
	require.Equal(t, message(10), state.MessageIDs[0].ID)
	d := decide(state, 1000, event(3, 4, 0))
	require.Equal(t, Decision{Outcome: Stale, State: state}, d, "a forgotten one is stale and is not remembered again")
	require.Equal(t, Decision{Outcome: Duplicate, State: state}, decide(state, 1000, event(10, 11, 0)))
	_, err := state.MarshalBinary()
	require.NoError(t, err)
}

func TestEverTargetsAreBounded(t *testing.T) {
	list := func(from, n int) []codecs.Target {
		out := make([]codecs.Target, n)
		for i := range out {
			out[i] = codecs.Target{Kind: codecs.KindPropertyObject, ID: uuid.UUID{1, byte((from + i) >> 16), byte((from + i) >> 8), byte(from + i)}}
		}
		return out
	}
	first, second := event(1, 1), event(2, 2)
	first.Targets, second.Targets = list(0, codecs.MaxTargets), list(codecs.MaxTargets-10, 20_000)
	state := decide(decide(nil, 1, first).State, 2, second).State
	require.Len(t, state.EverTargets, codecs.MaxTargets)
	require.Equal(t, second.Targets, state.Targets)
	data, err := state.MarshalBinary()
	require.NoError(t, err, "what the snapshot names is always among them")
	require.Less(t, len(data), codecs.MaxPurchaseStateSize)
}

func TestOutcomeNames(t *testing.T) {
	names := map[string]bool{}
	for o := Outcome(0); o <= PostOnly; o++ {
		names[o.String()] = true
	}
	require.Len(t, names, 7)
}

// --- The model: what a purchase is after a log of records, told without states, ids or origins.

type logged struct {
	origin codecs.Origin
	source record.ID
	ev     *codecs.Purchase
}

// known is what the model knows of a purchase.
type known struct {
	last *codecs.Purchase // the snapshot that counts
	ever map[codecs.Target]bool
	seen map[uuid.UUID]bool
}

// truth folds the log; outcomes are those of each record when it first comes.
func truth(log []logged) (k known, outcomes []Outcome) {
	k.ever, k.seen = map[codecs.Target]bool{}, map[uuid.UUID]bool{}
	for _, r := range log {
		switch {
		case k.seen[r.ev.MessageID] && k.last.Version == r.ev.Version:
			outcomes = append(outcomes, DuplicateReemit)
		case k.seen[r.ev.MessageID]:
			outcomes = append(outcomes, Duplicate)
		case k.last != nil && r.ev.Version < k.last.Version:
			outcomes = append(outcomes, Stale)
		default:
			k.last = r.ev
			for _, target := range r.ev.Targets {
				k.ever[target] = true
			}
			outcomes = append(outcomes, Applied)
			if len(k.ever) == 0 {
				outcomes[len(outcomes)-1] = PostOnly
			}
		}
		k.seen[r.ev.MessageID] = true
	}
	return k, outcomes
}

func genLog(t *rapid.T) []logged {
	var log []logged
	for i := range rapid.IntRange(1, 14).Draw(t, "records") {
		r := logged{origin: codecs.Origin{Incarnation: 7, Partition: 2, Offset: int64(i)}, source: from(int64(i))}
		if rapid.IntRange(0, 4).Draw(t, "loop") == 0 { // re-keyed: delivered by the loop topic, whose offsets are its own
			r.origin = codecs.Origin{Incarnation: 8, Loop: true, Partition: 2, Offset: int64(i)}
		}
		fresh := event(i, rapid.Int64Range(1, 3).Draw(t, "version"), rapid.SliceOfN(rapid.IntRange(0, 6), 0, 4).Draw(t, "cards")...)
		fresh.Status = rapid.SampledFrom([]codecs.Status{codecs.StatusActive, codecs.StatusExpired, codecs.StatusCancelled, codecs.StatusPending}).Draw(t, "status")
		fresh.BoostWeight = rapid.Int32Range(1, 100).Draw(t, "weight")
		r.ev = fresh
		if i > 0 {
			earlier := log[rapid.IntRange(0, i-1).Draw(t, "earlier")].ev
			switch rapid.IntRange(0, 5).Draw(t, "repeat") {
			case 0, 1: // the same message as another record
				r.ev = earlier
			case 2: // another message that took its id
				r.ev.MessageID = earlier.MessageID
			}
		}
		log = append(log, r)
	}
	return log
}

// stored sends a state through its stored form.
func stored(t *rapid.T, s *codecs.PurchaseState) *codecs.PurchaseState {
	data, err := s.MarshalBinary()
	require.NoError(t, err)
	out, err := codecs.DecodePurchaseState(data)
	require.NoError(t, err)
	return out
}

func TestOutcomesAgainstTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := genLog(t)
		_, outcomes := truth(log)
		var state *codecs.PurchaseState
		for i, r := range log {
			d := Decide(state, r.ev, r.origin, r.source)
			require.Equal(t, outcomes[i], d.Outcome, "record %d", i)
			state = stored(t, d.State)
			model, _ := truth(log[:i+1])
			requireState(t, model, state)
			if d.Emit != nil {
				requireState(t, model, d.Emit)
			}
		}
	})
}

func requireSnapshot(t require.TestingT, k known, s *codecs.PurchaseState) {
	require.Equal(t, k.last.Version, s.Version)
	require.Equal(t, k.last.Status, s.Status)
	require.Equal(t, k.last.BoostWeight, s.BoostWeight)
	require.ElementsMatch(t, k.last.Targets, s.Targets)
	require.ElementsMatch(t, slices.Collect(maps.Keys(k.ever)), s.EverTargets)
	require.Equal(t, len(k.ever) > 0, s.EverKnown)
}

func requireState(t require.TestingT, k known, s *codecs.PurchaseState) {
	requireSnapshot(t, k, s)
	var ids []uuid.UUID
	for _, m := range s.MessageIDs {
		ids = append(ids, m.ID)
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(k.seen)), ids)
}

// world is one partition with its instance, the changelog behind its table, and the sink.
type world struct {
	t         *rapid.T
	log       []logged
	committed int                     // records before it are finished: written, emitted and applied (E1)
	decided   []Decision              // about the records from committed on
	local     []*codecs.PurchaseState // on the instance's disk after each record from committed on; the first is before any of them
	changelog *codecs.PurchaseState   // what another instance would restore
	row       *codecs.PurchaseState   // the sink's, under the guard of E5
	zombie    []*codecs.PurchaseState // emitted before a crash, not applied yet
}

func (w *world) apply(snapshot *codecs.PurchaseState) {
	if snapshot == nil {
		return
	}
	if w.row == nil || snapshot.Version > w.row.Version || snapshot.Version == w.row.Version && snapshot.Revision >= w.row.Revision {
		w.row = snapshot
	}
}

// deliver has the next record processed.
func (w *world) deliver() {
	r, state := w.log[w.committed+len(w.decided)], w.local[len(w.local)-1]
	d := Decide(state, r.ev, r.origin, r.source)
	w.local, w.decided = append(w.local, stored(w.t, d.State)), append(w.decided, d)
}

// commit finishes n records: changelog writes and emitted snapshots are acknowledged.
func (w *world) commit(n int) {
	for _, d := range w.decided[:n] {
		w.changelog = d.State
		w.apply(d.Emit)
	}
	w.committed, w.decided, w.local = w.committed+n, w.decided[n:], w.local[n:]
}

// crash loses what is not finished: changelog writes from some record on, each snapshot or not until a zombie applies it later, and with
// the disk also the local state, which may be ahead of the changelog.
func (w *world) crash() {
	draw := func(label string, low, high int) int { return rapid.IntRange(low, high).Draw(w.t, label) }
	w.commit(draw("finished", 0, len(w.decided)))
	acknowledged := draw("in the changelog", 0, len(w.decided))
	if acknowledged > 0 {
		w.changelog = w.decided[acknowledged-1].State
	}
	for _, d := range w.decided {
		if rapid.Bool().Draw(w.t, "kept by a zombie") {
			w.zombie = append(w.zombie, d.Emit)
		}
	}
	restored := w.changelog
	if rapid.Bool().Draw(w.t, "same disk") {
		restored = w.local[draw("on disk", acknowledged, len(w.decided))]
	}
	w.decided, w.local = nil, []*codecs.PurchaseState{restored}
}

// When all records have come, through crashes at any point, sink and changelog hold the model's truth.
func TestSinkAndTableAgainstTheModelThroughCrashes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, log: genLog(t), local: []*codecs.PurchaseState{nil}}
		for crashes := rapid.IntRange(0, 4).Draw(t, "crashes"); ; {
			all := w.committed+len(w.decided) == len(w.log)
			switch {
			case crashes > 0 && (all || rapid.IntRange(0, 4).Draw(t, "crash") == 0):
				crashes--
				w.crash()
				continue
			case !all:
				w.deliver()
			}
			if len(w.zombie) > 0 && rapid.Bool().Draw(t, "zombie") {
				w.apply(w.zombie[0])
				w.zombie = w.zombie[1:]
			}
			if all {
				break
			}
		}
		w.commit(len(w.decided))
		for _, late := range w.zombie {
			w.apply(late)
		}
		model, _ := truth(w.log)
		requireSnapshot(t, model, w.row)
		requireState(t, model, w.changelog)
	})
}

func ExampleOutcome() {
	fmt.Println(Stale, DuplicateReemit)
	// Output: skipped-stale skipped-duplicate-reemitted
}
