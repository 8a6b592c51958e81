package main

import (
	"errors"

	"github.com/pin-marketplace/vitrina/internal/ops/rebuild"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

type rebuildCmd struct {
	PromotionBoost rebuildPromotionCmd  `cmd:"" name:"promotion-boost" help:"Compute every boost anew."`
	Popularity     rebuildPopularityCmd `cmd:"" help:"Compute every view counter anew."`
}

// Help is part of kong's interface.
func (rebuildCmd) Help() string {
	return `Safe to repeat and to interrupt: the operation is recorded in PostgreSQL, and any running instance, or the same command, goes on with
it. Instances leave the group by themselves for the time of the reset and return. New events are neither lost nor counted twice.
Exit code 1 when it fails or is refused. docs/runbooks/rebuild.md tells when to use which.

Examples:
  vitrina rebuild popularity
  vitrina rebuild promotion-boost --from table`
}

type rebuildPromotionCmd struct {
	From       string `enum:"topic,table" default:"topic" help:"topic: empty everything and play the topic from its beginning; readers see boosts of 0 meanwhile. table: take the group table's snapshots, in one transaction."`
	AcceptLoss bool   `help:"From the topic although it does not hold every purchase any more: those purchases lose their boost."`
	Wait       bool   `default:"true" negatable:"" help:"Show the progress until the end."`
}

// Help is part of kong's interface.
func (rebuildPromotionCmd) Help() string {
	return "Refused while catalog.promotions.enabled is off, and from a topic that no longer begins with its first record.\n\nExample:\n  vitrina rebuild promotion-boost --from topic"
}

// Run rebuilds the boosts.
func (c rebuildPromotionCmd) Run(a *app) error {
	if c.AcceptLoss && c.From != rebuild.FromTopic {
		return usageError{errors.New("--accept-loss belongs to --from topic: nothing is lost from the table")}
	}
	return a.rebuild(rebuild.Request{Projection: postgres.PromotionBoost, Source: c.From, Params: rebuild.Params{AcceptLoss: c.AcceptLoss}}, c.Wait)
}

type rebuildPopularityCmd struct {
	From string `enum:"marks,topic" default:"marks" help:"marks: count the group table's marks, complete even after retention, in one transaction. topic: count the topic from its beginning, the marks intact; readers see partial counters meanwhile."`
	Wait bool   `default:"true" negatable:"" help:"Show the progress until the end."`
}

// Help is part of kong's interface.
func (rebuildPopularityCmd) Help() string {
	return "The group table is never reset. Delisted cards keep their count, pending and dead views stay.\n\nExample:\n  vitrina rebuild popularity --no-wait --output json"
}

// Run rebuilds the counters.
func (c rebuildPopularityCmd) Run(a *app) error {
	return a.rebuild(rebuild.Request{Projection: postgres.Popularity, Source: c.From}, c.Wait)
}

func (a *app) rebuild(q rebuild.Request, wait bool) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	o, err := newOperator(a.ctx, cfg)
	if err != nil {
		return err
	}
	defer o.close()
	q.Kind = rebuild.KindRebuild
	return a.runOperation(o, q, wait)
}
