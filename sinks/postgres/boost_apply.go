package postgres

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pin-marketplace/vitrina/codecs"
)

// The kinds of cards as the tables hold them; the numbers are the order of the locks.
const (
	kindProject = int16(1)
	kindObject  = int16(2)
)

func kindOf(k codecs.TargetKind) int16 {
	if k == codecs.KindProject {
		return kindProject
	}
	return kindObject
}

// KindName is the kind behind its number in vitrina.contributions and vitrina.promotion_targets.
func KindName(k int16) codecs.TargetKind {
	if k == kindProject {
		return codecs.KindProject
	}
	return codecs.KindPropertyObject
}

func compareUUID(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }

// entry is a snapshot to apply, with the older ones of the batch that it stands for.
type entry struct {
	Snapshot
	coalesced []Snapshot
}

// plan coalesces a batch: rounds hold one entry for each purchase, sorted by purchase; stale are snapshots older than one that
// came before them in the batch. A snapshot stands for the older ones whose targets it remembers (EverTargets), which is all of
// them as long as the group table has lost nothing: then there is one round. Others are applied in a round of their own
// before, so that every target which a purchase ever named gets its contribution (D27).
func plan(values []Snapshot) (rounds [][]entry, stale []Snapshot) {
	purchases := make(map[uuid.UUID][]entry, len(values))
	for _, v := range values {
		list := purchases[v.PurchaseID]
		if n := len(list); n > 0 && compareStates(v.State, list[n-1].State) < 0 {
			stale = append(stale, v)
			continue
		}
		e := entry{Snapshot: v}
		for n := len(list); n > 0 && remembers(v.State, list[n-1].State); n = len(list) {
			older := list[n-1]
			e.coalesced = append(append(older.coalesced, older.Snapshot), e.coalesced...)
			list = list[:n-1]
		}
		purchases[v.PurchaseID] = append(list, e)
	}
	depth := 0
	for _, list := range purchases {
		depth = max(depth, len(list))
	}
	ids := slices.SortedFunc(maps.Keys(purchases), compareUUID)
	rounds = make([][]entry, depth)
	for _, id := range ids {
		for i, e := range purchases[id] {
			rounds[i] = append(rounds[i], e)
		}
	}
	return rounds, stale
}

// compareStates orders the snapshots of one purchase.
func compareStates(a, b *codecs.PurchaseState) int {
	return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(a.Revision, b.Revision))
}

func remembers(newer, older *codecs.PurchaseState) bool {
	forgotten := func(t codecs.Target) bool {
		return !slices.Contains(newer.Targets, t) && !slices.Contains(newer.EverTargets, t)
	}
	return !slices.ContainsFunc(older.Targets, forgotten) && !slices.ContainsFunc(older.EverTargets, forgotten)
}

const applyPurchases = `SELECT r.affected, r.written, r.lost, r.lost_purchases, r.lost_cards, r.conflicts
	FROM vitrina.apply_purchases($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19) r`

// applyArgs are the arrays of vitrina.apply_purchases: one element for each purchase, and one for each of its targets.
type applyArgs struct {
	ids        []uuid.UUID
	versions   []int64
	revisions  []int64
	statuses   []string
	weights    []int32
	endsAt     []time.Time
	topics     []string
	partitions []int32
	offsets    []int64

	targetPurchases []uuid.UUID
	targetVersions  []int64
	targetRevisions []int64
	targetKinds     []int16
	targetIDs       []uuid.UUID
	targetNamed     []bool
}

// newApplyArgs takes a round of plan.
func newApplyArgs(snapshots []entry) *applyArgs {
	n := len(snapshots)
	a := &applyArgs{
		ids: make([]uuid.UUID, 0, n), versions: make([]int64, 0, n), revisions: make([]int64, 0, n), statuses: make([]string, 0, n),
		weights: make([]int32, 0, n), endsAt: make([]time.Time, 0, n), topics: make([]string, 0, n), partitions: make([]int32, 0, n),
		offsets: make([]int64, 0, n), targetPurchases: make([]uuid.UUID, 0, 2*n), targetVersions: make([]int64, 0, 2*n),
		targetRevisions: make([]int64, 0, 2*n), targetKinds: make([]int16, 0, 2*n), targetIDs: make([]uuid.UUID, 0, 2*n), targetNamed: make([]bool, 0, 2*n),
	}
	for _, s := range snapshots {
		st := s.State
		a.ids = append(a.ids, s.PurchaseID)
		a.versions = append(a.versions, st.Version)
		a.revisions = append(a.revisions, st.Revision)
		a.statuses = append(a.statuses, string(st.Status))
		a.weights = append(a.weights, st.BoostWeight)
		a.endsAt = append(a.endsAt, st.EndsAt)
		a.topics = append(a.topics, st.Topic)
		a.partitions = append(a.partitions, st.SourcePartition)
		a.offsets = append(a.offsets, st.SourceOffset)
		for _, t := range st.Targets {
			a.addTarget(s.Snapshot, t, true)
		}
		for _, t := range st.EverTargets {
			if !slices.Contains(st.Targets, t) {
				a.addTarget(s.Snapshot, t, false)
			}
		}
	}
	return a
}

func (a *applyArgs) addTarget(s Snapshot, t codecs.Target, named bool) {
	a.targetPurchases = append(a.targetPurchases, s.PurchaseID)
	a.targetVersions = append(a.targetVersions, s.State.Version)
	a.targetRevisions = append(a.targetRevisions, s.State.Revision)
	a.targetKinds = append(a.targetKinds, kindOf(t.Kind))
	a.targetIDs = append(a.targetIDs, t.ID)
	a.targetNamed = append(a.targetNamed, named)
}

// list gives the arguments in order; cards false leaves the cards alone, skipLocked those that another transaction has locked.
func (a *applyArgs) list(epoch int64, cards bool, retries int, skipLocked bool) []any {
	return []any{
		epoch, a.ids, a.versions, a.revisions, a.statuses, a.weights, a.endsAt, a.topics, a.partitions, a.offsets,
		a.targetPurchases, a.targetVersions, a.targetRevisions, a.targetKinds, a.targetIDs, a.targetNamed, cards, retries, skipLocked,
	}
}

// applyResult is the row that vitrina.apply_purchases returns.
type applyResult struct {
	Affected      []int32     // for each snapshot: the written cards that its purchase reaches, or superseded
	Written       int         // cards written
	Lost          int         // cards that moved under each try (or stayed locked)
	LostPurchases []uuid.UUID // purchases that reach a lost card, sorted
	LostCards     []string    // one such card for each of them
	Conflicts     int         // cards read again
}

// superseded is the count of a snapshot older than what is stored.
const superseded = -1

func (r *applyResult) scan(row pgx.Row) error {
	*r = applyResult{}
	var written, lost *int // null where the cards were left to the caller
	if err := row.Scan(&r.Affected, &written, &lost, &r.LostPurchases, &r.LostCards, &r.Conflicts); err != nil {
		return fmt.Errorf("in vitrina.apply_purchases: %w", err)
	}
	if written != nil && lost != nil {
		r.Written, r.Lost = *written, *lost
	}
	return nil
}
