package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

// A verification of a healthy system finds nothing while events flow; when they have ended, all that the topics hold was looked at.
func TestVerifyFindsNothingWhileEventsFlow(t *testing.T) {
	s := harness.Start(t)
	i := s.Instance("one", nil)
	i.WaitReady()
	m := model.New(time.Now())
	o := generate.Defaults()
	o.Seed, o.Start, o.Span = 78, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects, o.LateCards = 12_000, 1_500, 3_000, 10, 300, 0
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	load := make(chan error, 1)
	go func() { load <- s.Send(ctx, o, m, 600, "crc32") }()
	rounds := 0
	for sent := false; !sent; rounds++ {
		for _, projection := range []string{"promotion-boost", "popularity", "price-history"} {
			out, err := s.Try("verify", projection, "--settle", "1s")
			require.NoErrorf(t, err, "verify %s: %.3000s", projection, out)
		}
		select {
		case err := <-load:
			require.NoError(t, err)
			sent = true
		default:
		}
	}
	require.Greater(t, rounds, 1)
	s.WaitEqual(2*time.Minute, m.Expected())
	for _, projection := range []string{"promotion-boost", "popularity", "price-history"} {
		require.Contains(t, s.Run("verify", projection), "0 differences, 0 repaired")
	}
}
