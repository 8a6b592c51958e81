package chaos

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/internal/ops/rebuild"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

// Rebuild after rebuild runs while events flow, and the instance that works on it is killed with SIGKILL at a random moment; some
// lose their disk. Another one ends what it began. In the end everything equals the independent model.
func TestRebuildsEndWhateverMomentTheirProcessDies(t *testing.T) {
	p := choose(t)
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any number
	random := rand.New(rand.NewPCG(seed, 2))
	t.Logf("seed %d, %d kills", seed, p.kills)

	s := harness.Start(t)
	instances := map[string]*harness.Instance{}
	for _, name := range []string{"a", "b"} {
		instances[name] = s.Instance(name, nil)
	}
	for _, i := range instances {
		i.WaitReady()
	}
	o := generate.Defaults()
	o.Seed, o.Start, o.Span = seed, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects, o.LateCards = p.views/2, p.purchases, p.prices, 50, 2_000, 0
	m := model.New(time.Now())
	sent := make(chan error, 1)
	go func() { sent <- s.Send(t.Context(), o, m, float64(o.Records())/float64(30*p.kills), "crc32") }()

	requests := []rebuild.Request{
		{Kind: rebuild.KindRebuild, Projection: postgres.PromotionBoost, Source: rebuild.FromTopic},
		{Kind: rebuild.KindRebuild, Projection: postgres.Popularity, Source: rebuild.FromTopic},
		{Kind: rebuild.KindRebuild, Projection: postgres.PromotionBoost, Source: rebuild.FromTable},
		{Kind: rebuild.KindReplay, Projection: postgres.PriceHistory, Source: rebuild.FromOffset},
		{Kind: rebuild.KindRebuild, Projection: postgres.Popularity, Source: rebuild.FromMarks},
	}
	for n, kills := 0, 0; kills < p.kills; n++ {
		if rebuildThroughKill(t, s, instances, requests[n%len(requests)], random) {
			kills++
		}
	}
	require.NoError(t, <-sent)
	// The last word has the topic: from the marks, a project's counter holds the frozen ones of its Delisted objects too.
	s.Run("rebuild", "popularity", "--from", "topic")
	s.Run("rebuild", "promotion-boost")
	s.WaitEqual(p.patience, afterRebuild(t, s.Pool, m.Expected()))
}

// rebuildThroughKill runs one operation and kills who works on it, once, at a random moment; false when it ended before.
func rebuildThroughKill(t *testing.T, s *harness.System, instances map[string]*harness.Instance, q rebuild.Request, random *rand.Rand) bool {
	t.Helper()
	op, _, err := rebuild.Submit(t.Context(), s.Pool, q, true)
	require.NoError(t, err)
	moment := time.Now().Add(time.Duration(random.Int64N(int64(14 * time.Second))))
	killed := ""
	s.Eventually(5*time.Minute, func() (bool, string) {
		op, err = postgres.ReadOperation(t.Context(), s.Pool, op.ID)
		if err != nil {
			return false, err.Error()
		}
		name, _, _ := strings.Cut(op.LeaseHolder, " ")
		if victim, ok := instances[name]; ok && killed == "" && op.Leased && time.Now().After(moment) {
			killed = fmt.Sprintf("%s at step %s", name, op.Step)
			victim.Kill()
			if random.IntN(3) == 0 {
				victim.LoseDisk()
				killed += ", its disk lost"
			}
			victim.Start()
		}
		return !op.Active(), fmt.Sprintf("%s of %s from %s is %s at %s: %s %s", op.Kind, op.Projection, op.Source, op.State, op.Step, op.Message, op.Error)
	})
	t.Logf("%s of %s from %s: killed %q", op.Kind, op.Projection, op.Source, killed)
	require.Equal(t, postgres.OperationSucceeded, op.State, op.Error)
	return killed != ""
}

// afterRebuild is what the model expects after a rebuild of boosts: a Hidden card that no purchase ever named has 0, because a
// rebuild does not know what it had before.
func afterRebuild(t *testing.T, pool *pgxpool.Pool, want *model.Expected) *model.Expected {
	t.Helper()
	hidden, err := pool.Query(t.Context(), `SELECT 'Project', id::text FROM catalog.project_cards WHERE status = 'Hidden'
		UNION ALL SELECT 'PropertyObject', id::text FROM catalog.property_object_cards WHERE status = 'Hidden'`)
	require.NoError(t, err)
	for hidden.Next() {
		var ref model.Ref
		err = errors.Join(err, hidden.Scan(&ref.Kind, &ref.ID))
		if _, named := want.Targets[ref]; !named {
			card := want.Cards[ref]
			card.PromotionBoost = 0
			want.Cards[ref] = card
		}
	}
	require.NoError(t, errors.Join(err, hidden.Err()))
	return want
}
