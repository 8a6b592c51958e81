package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/pin-marketplace/vitrina/internal/ops/rebuild"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

type replayCmd struct {
	PriceHistory replayPriceCmd `cmd:"" name:"price-history" help:"Insert the price facts of old events again."`
}

// Help is part of kong's interface.
func (replayCmd) Help() string {
	return "Example:\n  vitrina replay price-history --from-time 2026-11-30T00:00:00Z"
}

type replayPriceCmd struct {
	FromTime   string `placeholder:"TIME" help:"From the first record of that time or later, RFC 3339." xor:"from"`
	FromOffset *int64 `placeholder:"N" help:"From that offset, in each partition or in that of --partition." xor:"from"`
	Partition  *int32 `placeholder:"P" help:"The one partition to move; with --from-offset."`
	Wait       bool   `default:"true" negatable:"" help:"Show the progress until the group has caught up."`
}

// Help is part of kong's interface.
func (replayPriceCmd) Help() string {
	return `Moves the group back, never forward, and lets it read again: repeated facts collapse in ClickHouse, so it is safe to repeat. Instances leave
the group for a moment and return by themselves. With PostgreSQL out of reach it works while no instance runs.

Examples:
  vitrina replay price-history --from-time 2026-11-30T00:00:00Z
  vitrina replay price-history --from-offset 0 --partition 2`
}

// Run replays.
func (c replayPriceCmd) Run(a *app) error {
	q, err := c.request()
	if err != nil {
		return usageError{err}
	}
	cfg, err := a.load()
	if err != nil {
		return err
	}
	o, err := newOperator(a.ctx, cfg)
	if err != nil {
		return err
	}
	defer o.close()
	err = a.runOperation(o, q, c.Wait)
	if !errors.Is(err, rebuild.ErrNoDatabase) {
		return err
	}
	records, direct := rebuild.ReplayWithoutDatabase(a.ctx, o.admin, q.Source, q.Params)
	if direct != nil {
		return errors.Join(err, direct)
	}
	_, err = fmt.Fprintf(a.stdout, "PostgreSQL is out of reach, but no instance runs: the group was moved back, %d records come again once one does\n", records)
	return err
}

func (c replayPriceCmd) request() (rebuild.Request, error) {
	q := rebuild.Request{Kind: rebuild.KindReplay, Projection: postgres.PriceHistory}
	switch {
	case c.FromTime != "":
		at, err := time.Parse(time.RFC3339Nano, c.FromTime)
		if err != nil {
			return q, fmt.Errorf("--from-time is %q: write an RFC 3339 time, as in 2026-11-30T00:00:00Z", c.FromTime)
		}
		if c.Partition != nil {
			return q, errors.New("--partition belongs to --from-offset: a time means every partition")
		}
		q.Source, q.Params.Time = rebuild.FromTime, at
	case c.FromOffset != nil:
		if *c.FromOffset < 0 || c.Partition != nil && *c.Partition < 0 {
			return q, errors.New("--from-offset and --partition must not be negative")
		}
		q.Source, q.Params.Offset, q.Params.Partition = rebuild.FromOffset, *c.FromOffset, c.Partition
	default:
		return q, errors.New("say from where: --from-time TIME or --from-offset N")
	}
	return q, nil
}
