package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/internal/telemetry"
)

// followLag keeps vitrina_consumer_group_lag true for the groups of this instance's roles, whether their pipelines run or not: what piles
// up while a role is held (feature flag, rebuild) must be seen, and a figure from before must not stay.
func (a *App) followLag(ctx context.Context) error {
	ticker := time.NewTicker(a.cfg.Runtime.LagInterval)
	defer ticker.Stop()
	failing := false
	for {
		err := a.lookAtLag(ctx)
		if err != nil && ctx.Err() == nil && !failing { // once for each outage
			a.deps.Logger.LogAttrs(ctx, slog.LevelWarn, "the lag of consumer groups is unknown", slog.String("event", "lag-unknown"), slog.Any("error", err))
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// lookAtLag asks the broker once for each group; one that fails keeps no other from being seen.
func (a *App) lookAtLag(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(10*time.Second, a.cfg.Runtime.LagInterval))
	defer cancel()
	var errs []error
	for _, g := range GroupTopics(a.cfg.Roles...) {
		names := []string{g.Source}
		if g.Loop {
			names = append(names, stream.LoopTopic(g.Group))
		}
		there, err := a.admin.Topics(ctx, names...)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, name := range names {
			lags := []int64{0} // nothing waits in a topic that does not exist (yet)
			if _, ok := there[name]; ok {
				positions, err := a.admin.GroupPositions(ctx, g.Group, name)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				lags = stream.Lags(positions[name])
			}
			in := telemetry.GroupTopic{Group: g.Group, Topic: name}
			a.lag.Set(in, lags)
			a.lags.set(in, lags)
		}
	}
	return errors.Join(errs...)
}
