package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

// Both projections are rebuilt and prices replayed while events flow into two instances. The process that works on each
// rebuild is killed with SIGKILL in the middle, and others end what it began: everything equals the independent model.
func TestRebuildsAndReplayUnderLoadThroughKillsEqualTheModel(t *testing.T) {
	s := harness.Start(t)
	instances := map[string]*harness.Instance{"one": s.Instance("one", nil), "two": s.Instance("two", nil)}
	for _, i := range instances {
		i.WaitReady()
	}
	o := generate.Defaults()
	o.Seed, o.Start, o.Span = 31, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects, o.LateCards = 60_000, 6_000, 6_000, 50, 2_000, 0
	m := model.New(time.Now())
	sent := make(chan error, 1)
	go func() { sent <- s.Send(t.Context(), o, m, 700, "crc32") }()
	counted := counted(t, s)
	s.Eventually(2*time.Minute, func() (bool, string) { return counted() > 3_000, "too few views are counted" })

	// Boosts from the topic: the command line works on it and is killed once the projection is closed.
	ctx, kill := context.WithCancel(t.Context())
	killed := make(chan error, 1)
	go func() {
		_, err := s.TryUntil(ctx, "rebuild", "promotion-boost")
		killed <- err
	}()
	id := active(t, s, postgres.PromotionBoost)
	op := reaches(t, s, id, "leave", "epoch", "offsets", "reset", "catch-up")
	kill()
	require.ErrorContains(t, <-killed, "killed")
	t.Logf("killed %s at step %s", op.LeaseHolder, op.Step)
	out := s.Run("rebuild", "promotion-boost", "--output", "json") // joins it, or is a second rebuild
	require.Contains(t, out, `"state": "succeeded"`)
	require.Equal(t, postgres.OperationSucceeded, ended(t, s, id).State)

	// Counters from the marks, by the API: the instance that works on it is killed, and comes back without its disk.
	status, body := instances["one"].Request(http.MethodPost, "/admin/projections/rebuild", []byte(`{"projection":"popularity"}`), harness.AdminToken)
	require.Equal(t, http.StatusAccepted, status, string(body))
	var answer struct{ ID uuid.UUID }
	require.NoError(t, json.Unmarshal(body, &answer))
	op = reaches(t, s, answer.ID, "leave", "epoch", "offsets", "reset", "catch-up")
	name, _, _ := strings.Cut(op.LeaseHolder, " ")
	instances[name].Kill()
	t.Logf("killed %s at step %s", op.LeaseHolder, op.Step)
	instances[name].LoseDisk()
	instances[name].Start()
	require.Equal(t, postgres.OperationSucceeded, ended(t, s, answer.ID).State)

	// Counters from the topic, to the end.
	require.Contains(t, s.Run("rebuild", "popularity", "--from", "topic", "--output", "json"), `"state": "succeeded"`)
	require.Contains(t, s.Run("replay", "price-history", "--from-time", o.Start.Add(-time.Hour).Format(time.RFC3339), "--output", "json"), `"state": "succeeded"`)
	require.NoError(t, <-sent)

	// A rebuild gives a Hidden card that no purchase ever named 0; it does not know what the card had before.
	want := m.Expected()
	hidden, err := s.Pool.Query(t.Context(), `SELECT 'Project', id::text FROM catalog.project_cards WHERE status = 'Hidden'
		UNION ALL SELECT 'PropertyObject', id::text FROM catalog.property_object_cards WHERE status = 'Hidden'`)
	require.NoError(t, err)
	for hidden.Next() {
		var ref model.Ref
		require.NoError(t, hidden.Scan(&ref.Kind, &ref.ID))
		if _, named := want.Targets[ref]; !named {
			card := want.Cards[ref]
			card.PromotionBoost = 0
			want.Cards[ref] = card
		}
	}
	require.NoError(t, hidden.Err())
	s.WaitEqual(5*time.Minute, want)
	for _, i := range instances {
		_, err := i.Stop()
		require.NoErrorf(t, err, "instance %s", i.Name)
	}

	// While the group is empty too: a replay needs no instance until its records are to be read.
	out = s.Run("replay", "price-history", "--from-offset", "0", "--no-wait", "--output", "json")
	require.Contains(t, out, `"state": "pending"`)
}

// active returns the active operation of a projection, once there is one.
func active(t *testing.T, s *harness.System, projection string) (id uuid.UUID) {
	t.Helper()
	s.Eventually(time.Minute, func() (bool, string) {
		err := s.Pool.QueryRow(t.Context(), `SELECT id::text FROM vitrina.operations WHERE projection = $1 AND state IN ('pending', 'running')`, projection).Scan(&id)
		return err == nil, "no active operation"
	})
	return id
}

// reaches waits until somebody works on the operation at one of the steps.
func reaches(t *testing.T, s *harness.System, id uuid.UUID, steps ...string) (op postgres.Operation) {
	t.Helper()
	s.Eventually(2*time.Minute, func() (bool, string) {
		var err error
		op, err = postgres.ReadOperation(t.Context(), s.Pool, id)
		require.NoError(t, err)
		for _, step := range steps {
			if op.Step == step && op.Leased {
				return true, ""
			}
		}
		return false, op.State + " at " + op.Step + ": " + op.Message + " " + op.Error
	})
	return op
}

// ended returns the operation once it has ended.
func ended(t *testing.T, s *harness.System, id uuid.UUID) (op postgres.Operation) {
	t.Helper()
	s.Eventually(4*time.Minute, func() (bool, string) {
		var err error
		op, err = postgres.ReadOperation(t.Context(), s.Pool, id)
		require.NoError(t, err)
		return !op.Active(), op.State + " at " + op.Step + ": " + op.Message + " " + op.Error
	})
	return op
}
