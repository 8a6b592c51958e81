package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

const promotionGroup = "pin-catalog-promotion-boost"

// Флаг выключен: nothing subscribes, the group has no members, events wait, boosts stay; the instance is ready (D35). Switched on by
// the file alone, and off again by SIGHUP, without a restart.
func TestFlagOffNothingSubscribesAndSwitchedOnItCatchesUp(t *testing.T) {
	s := harness.Start(t)
	file := filepath.Join(t.TempDir(), "vitrina.yaml")
	write := func(enabled bool) {
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "catalog:\n  promotions:\n    enabled: %t\n", enabled), 0o600))
	}
	write(false)
	i := s.Instance("one", []string{"--config", file, "--roles", "promotion"})
	i.WaitReady()

	o := generate.Defaults()
	o.Seed, o.Start, o.Span = 5, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects = 0, 1_000, 0, 10, 500
	m := model.New(time.Now())
	require.NoError(t, s.Send(t.Context(), o, m, 0, "crc32"))
	admin := s.Admin()
	members := func() (n int) {
		// A broker that was just started has no coordinator yet; a group that never had a member does not exist.
		s.Eventually(time.Minute, func() (bool, string) {
			groups, err := admin.DescribeGroups(t.Context(), promotionGroup)
			err = errors.Join(err, groups.Error())
			n = len(groups[promotionGroup].Members)
			return err == nil || errors.Is(err, kerr.GroupIDNotFound), fmt.Sprintf("describing the group: %v", err)
		})
		return n
	}
	// The generated cards do not all start at 0, so a boost that was written shows in the row version.
	boosted := func() (n int) {
		require.NoError(t, s.Pool.QueryRow(t.Context(), `SELECT count(*) FROM catalog.property_object_cards WHERE row_version > 1`).Scan(&n))
		return n
	}
	status, body := i.Get("/readyz")
	require.Equal(t, http.StatusOK, status, string(body))
	require.Zero(t, members())
	require.Zero(t, boosted())

	write(true)
	s.WaitEqual(2*time.Minute, m.Expected())
	require.Equal(t, 1, members())

	write(false)
	i.Signal(syscall.SIGHUP)
	s.Eventually(time.Minute, func() (bool, string) { return members() == 0, "the group still has a member" })
	require.NotZero(t, boosted(), "boosts stay as they are")
	i.WaitReady()
}
