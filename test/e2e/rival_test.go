package e2e

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

// A rival changes the price of random cards all the time, under the optimistic lock that every writer of a card checks and raises,
// while purchases flow: in the end every boost equals the model, every price is the rival's, and the lag stayed under a minute. With
// VITRINA_RIVAL_CARDS=200000 it is the run of the size that the issue names.
func TestBoostsEqualTheModelBesideARivalWriter(t *testing.T) {
	cards := 20_000
	if text := os.Getenv("VITRINA_RIVAL_CARDS"); text != "" {
		var err error
		cards, err = strconv.Atoi(text)
		require.NoError(t, err, "VITRINA_RIVAL_CARDS")
	}
	s := harness.Start(t)
	i := s.Instance("one", []string{"--roles", "promotion"})
	i.WaitReady()
	o := generate.Defaults()
	o.Seed, o.Start, o.Span = 41, time.Now().UTC().Truncate(time.Second), 20*time.Second
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects, o.LateCards, o.Reordered = 0, 4_000, 0, cards/200, cards, 0.02, 0
	m := model.New(time.Now())
	sent := make(chan error, 1)
	go func() { sent <- s.Send(t.Context(), o, m, 250, "crc32") }()

	rivalCtx, stop := context.WithCancel(t.Context())
	defer stop()
	var rivals sync.WaitGroup
	var written, conflicts int64
	rivals.Go(func() { written, conflicts = rival(rivalCtx, t, s) })
	worst := 0.0
	for done := false; !done; {
		select {
		case err := <-sent:
			require.NoError(t, err)
			done = true
		case <-time.After(500 * time.Millisecond): // how often the lag is looked at
			lag, found := i.Metric("catalog_promotion_lag_seconds")
			require.True(t, found)
			worst = max(worst, lag/3) // summed over the topic's 3 partitions
		}
	}
	s.WaitEqual(3*time.Minute, m.Expected())
	stop()
	rivals.Wait()
	require.Less(t, worst, 60.0, "the lag stays under a minute")
	require.Positive(t, written)

	var strange int
	require.NoError(t, s.Pool.QueryRow(t.Context(), `SELECT count(*) FROM catalog.property_object_cards c LEFT JOIN public.rival r USING (id) WHERE r.price IS DISTINCT FROM c.price AND r.id IS NOT NULL`).Scan(&strange))
	require.Zero(t, strange, "the rival's prices stay as it wrote them")
	s.WaitEqual(time.Minute, m.Expected())
	read := func(name string) float64 { v, _ := i.Metric(name); return v }
	t.Logf("%d cards; rival: %d writes, %d of its tries lost to us; ours: %.0f cards written, %.0f read again after a conflict, %.0f retries, %.0f dead letters; worst mean lag %.1f s",
		cards, written, conflicts, read("catalog_promotion_cards_recomputed_total"), read("catalog_promotion_card_lock_conflicts_total"),
		read("catalog_promotion_retries_total"), read("catalog_promotion_dlq_total"), worst)
}

// rival reads a card and writes its price back under its row version, as the catalog's other consumers do.
func rival(ctx context.Context, t *testing.T, s *harness.System) (written, conflicts int64) {
	random := rand.New(rand.NewPCG(3, 4))
	_, err := s.Pool.Exec(t.Context(), `CREATE TABLE public.rival (id uuid PRIMARY KEY, price numeric(18,2))`)
	require.NoError(t, err)
	for ctx.Err() == nil {
		price := float64(random.IntN(1_000_000)) / 100
		tag, err := s.Pool.Exec(t.Context(), `
			WITH picked AS (SELECT id, row_version FROM catalog.property_object_cards TABLESAMPLE SYSTEM (1) LIMIT 20),
			written AS (UPDATE catalog.property_object_cards c SET price = $1, row_version = c.row_version + 1, updated_at = now()
				FROM picked p WHERE c.id = p.id AND c.row_version = p.row_version RETURNING c.id, c.price)
			INSERT INTO public.rival SELECT id, price FROM written ON CONFLICT (id) DO UPDATE SET price = excluded.price`, price)
		if err != nil {
			conflicts++ // a deadlock: the rival tries again, as it must
			continue
		}
		written += tag.RowsAffected()
	}
	return written, conflicts
}
