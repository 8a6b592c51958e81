package postgres

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pin-marketplace/vitrina/codecs"
)

// model is the promotion document and its decisions in the plainest form: no batches, no sums kept, no SQL.
type model struct {
	purchases map[uuid.UUID]*modelPurchase
	cards     map[codecs.Target]*modelCard
	noted     map[codecs.Target]bool // changed by the catalog since the last recompute
}

type modelPurchase struct {
	version, revision int64
	contributions     map[codecs.Target]modelContribution
}

type modelContribution struct {
	weight int32
	active bool
}

type modelCard struct {
	project    codecs.Target // of an object
	status     string
	boost      int32
	rowVersion int64
}

func newModel() *model {
	return &model{purchases: map[uuid.UUID]*modelPurchase{}, cards: map[codecs.Target]*modelCard{}, noted: map[codecs.Target]bool{}}
}

// apply is one snapshot, sequentially; it reports whether it was stale and adds the targets it touched.
func (m *model) apply(s Snapshot, touched map[codecs.Target]bool) (stale bool) {
	p, known := m.purchases[s.PurchaseID]
	if !known {
		p = &modelPurchase{contributions: map[codecs.Target]modelContribution{}}
		m.purchases[s.PurchaseID] = p
	}
	st := s.State
	if st.Version < p.version || st.Version == p.version && st.Revision < p.revision {
		return true
	}
	p.version, p.revision = st.Version, st.Revision
	for t, c := range p.contributions {
		if !slices.Contains(st.Targets, t) {
			c.active = false
			p.contributions[t] = c
		}
	}
	for _, t := range st.EverTargets {
		if _, known := p.contributions[t]; !known {
			p.contributions[t] = modelContribution{weight: st.BoostWeight}
		}
	}
	for _, t := range st.Targets {
		p.contributions[t] = modelContribution{weight: st.BoostWeight, active: st.Status == codecs.StatusActive}
	}
	for t := range p.contributions {
		touched[t] = true
	}
	return false
}

func (m *model) sum(t codecs.Target) (sum int32, named bool) {
	for _, p := range m.purchases {
		if c, ok := p.contributions[t]; ok {
			named = true
			if c.active {
				sum += c.weight
			}
		}
	}
	return sum, named
}

// settle recomputes one card.
func (m *model) settle(t codecs.Target) {
	c, ok := m.cards[t]
	if !ok || c.status == "Delisted" {
		return
	}
	boost, named := m.sum(t)
	if c.status != "Published" && !named {
		return
	}
	if t.Kind == codecs.KindPropertyObject {
		cascade, _ := m.sum(c.project)
		boost += cascade
	}
	if boost != c.boost {
		c.boost = boost
		c.rowVersion++
	}
}

// settleTouched recomputes every card that the targets reach.
func (m *model) settleTouched(touched map[codecs.Target]bool) {
	for t, c := range m.cards {
		if touched[t] || t.Kind == codecs.KindPropertyObject && touched[c.project] {
			m.settle(t)
		}
	}
}

const (
	modelProjects  = 3
	modelObjects   = 7
	modelPurchases = 5
)

var (
	modelStatuses = []codecs.Status{codecs.StatusActive, codecs.StatusActive, codecs.StatusActive, codecs.StatusExpired, codecs.StatusCancelled, codecs.StatusPending}
	cardStatuses  = []string{"Published", "Published", "Hidden", "Delisted"}
)

func drawTarget(t *rapid.T) codecs.Target {
	if rapid.Bool().Draw(t, "of project") {
		return project(rapid.IntRange(0, modelProjects-1).Draw(t, "project"))
	}
	return object(rapid.IntRange(0, modelObjects-1).Draw(t, "object"))
}

// boostRun drives sink and model through one history.
type boostRun struct {
	e      *boostEnv
	m      *model
	latest map[uuid.UUID]*codecs.PurchaseState // the group table
	sent   []Snapshot                          // everything that ever reached the sink
	forget bool                                // the group table may lose what it remembers of a purchase
}

func (r *boostRun) drawSnapshot(t *rapid.T) Snapshot {
	if len(r.sent) > 0 && rapid.IntRange(0, 3).Draw(t, "again") == 0 {
		return r.sent[rapid.IntRange(0, len(r.sent)-1).Draw(t, "which")]
	}
	n := rapid.IntRange(0, modelPurchases-1).Draw(t, "purchase")
	targets := rapid.SliceOfNDistinct(rapid.Custom(drawTarget), 0, 3, rapid.ID).Draw(t, "targets")
	before := r.latest[purchaseID(n)]
	version := int64(1)
	if before != nil {
		version = max(1, before.Version+rapid.Int64Range(-2, 2).Draw(t, "step"))
	}
	if before != nil && version < before.Version && !r.forget { // an old snapshot names nothing that the newer ones do not remember
		targets = slices.DeleteFunc(targets, func(target codecs.Target) bool { return !slices.Contains(before.EverTargets, target) })
	}
	s := r.e.snapshot(n, version, rapid.SampledFrom(modelStatuses).Draw(t, "status"), rapid.Int32Range(1, 100).Draw(t, "weight"), targets...)
	lost := r.forget && rapid.IntRange(0, 4).Draw(t, "lost") == 0
	switch {
	case before == nil || lost:
	case version == before.Version:
		s.State.Revision = before.Revision + 1
		fallthrough
	default:
		s.State.EverTargets = slices.Clone(before.EverTargets)
		for _, target := range s.State.Targets {
			if !slices.Contains(s.State.EverTargets, target) {
				s.State.EverTargets = append(s.State.EverTargets, target)
			}
		}
	}
	if before == nil || version >= before.Version {
		r.latest[s.PurchaseID] = s.State // an older version never becomes the table's state
	}
	return s
}

func (r *boostRun) flush(t *rapid.T) {
	n := rapid.IntRange(1, 6).Draw(t, "batch")
	touched := map[codecs.Target]bool{}
	stale := 0
	var batch []Snapshot
	for range n {
		s := r.drawSnapshot(t)
		r.sent = append(r.sent, s)
		batch = append(batch, s)
		if r.m.apply(s, touched) {
			stale++
		}
	}
	r.m.settleTouched(touched)
	before := r.e.counts.stale
	require.NoError(t, r.e.sink.Flush(ctxOf(t), batch))
	// A stale snapshot before a newer one in the batch goes with that one, whatever the database had.
	require.LessOrEqual(t, r.e.counts.stale-before, stale, "stale snapshots")
	skipped, applied := r.e.events.take("skipped-stale"), r.e.events.take("recomputed")
	require.Len(t, skipped, r.e.counts.stale-before)
	require.Equal(t, n, len(skipped)+len(applied), "each snapshot has one line")
}

func (r *boostRun) catalog(t *rapid.T) {
	target := drawTarget(t)
	c, exists := r.m.cards[target]
	status := rapid.SampledFrom(cardStatuses).Draw(t, "card status")
	home := project(rapid.IntRange(0, modelProjects-1).Draw(t, "home"))
	if !exists {
		c = &modelCard{status: status, rowVersion: 1, boost: rapid.SampledFrom([]int32{0, 0, 50}).Draw(t, "stray boost")}
		r.m.cards[target] = c
		if target.Kind == codecs.KindProject {
			r.exec(t, `INSERT INTO catalog.project_cards (id, status, promotion_boost) VALUES ($1, $2, $3)`, target.ID, status, c.boost)
		} else {
			c.project = home
			r.exec(t, `INSERT INTO catalog.property_object_cards (id, status, promotion_boost, project_id) VALUES ($1, $2, $3, $4)`, target.ID, status, c.boost, home.ID)
		}
		r.m.noted[target] = true
		return
	}
	c.rowVersion++
	if target.Kind == codecs.KindProject {
		r.m.noted[target] = r.m.noted[target] || c.status != status
		r.exec(t, `UPDATE catalog.project_cards SET status = $2, row_version = row_version + 1 WHERE id = $1`, target.ID, status)
	} else {
		r.m.noted[target] = r.m.noted[target] || c.status != status || c.project != home
		c.project = home
		r.exec(t, `UPDATE catalog.property_object_cards SET status = $2, project_id = $3, row_version = row_version + 1 WHERE id = $1`, target.ID, status, home.ID)
	}
	c.status = status
}

func (r *boostRun) reconcile(t *rapid.T) {
	for target, noted := range r.m.noted {
		if noted {
			r.m.settle(target)
		}
	}
	clear(r.m.noted)
	_, err := r.e.sink.Reconcile(ctxOf(t))
	require.NoError(t, err)
}

func (r *boostRun) sweep(t *rapid.T) {
	for target := range r.m.cards {
		r.m.settle(target)
	}
	clear(r.m.noted)
	report, err := r.e.sink.Sweep(ctxOf(t))
	require.NoError(t, err)
	require.True(t, report.Swept)
}

func (r *boostRun) exec(t *rapid.T, sql string, args ...any) {
	_, err := r.e.pool.Exec(ctxOf(t), sql, args...)
	require.NoError(t, err)
}

// check compares the whole database with the model.
func (r *boostRun) check(t *rapid.T) {
	type row struct {
		Boost      int32
		RowVersion int64
	}
	want, got := map[string]row{}, map[string]row{}
	for target, c := range r.m.cards {
		want[fmt.Sprint(target)] = row{c.boost, c.rowVersion}
	}
	rows, err := r.e.pool.Query(ctxOf(t), `SELECT 'Project', id, promotion_boost, row_version FROM catalog.project_cards
		UNION ALL SELECT 'PropertyObject', id, promotion_boost, row_version FROM catalog.property_object_cards`)
	require.NoError(t, err)
	var target codecs.Target
	var card row
	_, err = pgx.ForEachRow(rows, []any{&target.Kind, &target.ID, &card.Boost, &card.RowVersion}, func() error {
		got[fmt.Sprint(target)] = card
		return nil
	})
	require.NoError(t, err)
	if r.forget { // a batch may take several transactions then, and write a card in each
		for _, m := range []map[string]row{want, got} {
			for k, v := range m {
				m[k] = row{Boost: v.Boost}
			}
		}
	}
	require.Equal(t, want, got, "cards")

	wantContributions, gotContributions := map[string]modelContribution{}, map[string]modelContribution{}
	for id, p := range r.m.purchases {
		for target, c := range p.contributions {
			wantContributions[fmt.Sprint(id, target)] = c
		}
	}
	rows, err = r.e.pool.Query(ctxOf(t), `SELECT c.purchase_id, c.kind, c.target_id, c.boost_weight, c.active FROM vitrina.contributions c`)
	require.NoError(t, err)
	var purchase uuid.UUID
	var kind int16
	var c modelContribution
	_, err = pgx.ForEachRow(rows, []any{&purchase, &kind, &target.ID, &c.weight, &c.active}, func() error {
		gotContributions[fmt.Sprint(purchase, codecs.Target{Kind: KindName(kind), ID: target.ID})] = c
		return nil
	})
	require.NoError(t, err)
	for _, m := range []map[string]modelContribution{wantContributions, gotContributions} { // an inactive one's weight is a memory
		for k, c := range m {
			if !c.active {
				m[k] = modelContribution{}
			}
		}
	}
	require.Equal(t, wantContributions, gotContributions, "contributions")

	rows, err = r.e.pool.Query(ctxOf(t), `SELECT kind, id, boost, named FROM vitrina.promotion_targets`)
	require.NoError(t, err)
	var boost int32
	var named bool
	sums := map[codecs.Target]int32{}
	_, err = pgx.ForEachRow(rows, []any{&kind, &target.ID, &boost, &named}, func() error {
		key := codecs.Target{Kind: KindName(kind), ID: target.ID}
		sum, wasNamed := r.m.sum(key)
		require.Equal(t, sum, boost, "sum of %v", key)
		require.Equal(t, wasNamed, named, "%v named", key)
		sums[key] = boost
		return nil
	})
	require.NoError(t, err)
	for _, p := range r.m.purchases {
		for key := range maps.Keys(p.contributions) {
			require.Contains(t, sums, key)
		}
	}
}

// Random histories: duplicates, stale and equal versions, dropped targets, overlapping projects and objects, every status, cards
// missing, hidden, published, delisted, moved, recompute and sweep anywhere between. Sink and model agree after every step.
func TestBoostsMatchTheModel(t *testing.T) {
	for _, forget := range []bool{false, true} {
		t.Run(fmt.Sprintf("memory lost %v", forget), func(t *testing.T) {
			e := newBoostEnv(t)
			rapid.Check(t, func(rt *rapid.T) {
				e.clear(rt)
				r := &boostRun{e: e, m: newModel(), latest: map[uuid.UUID]*codecs.PurchaseState{}, forget: forget}
				rt.Repeat(map[string]func(*rapid.T){
					"flush":     r.flush,
					"catalog":   r.catalog,
					"catalog2":  r.catalog,
					"reconcile": r.reconcile,
					"sweep":     r.sweep,
					"":          r.check,
				})
				r.sweep(rt)
				r.check(rt)
			})
		})
	}
}
