package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	vitrina "github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
)

type topicsCmd struct {
	Plan  topicsPlanCmd  `cmd:"" help:"Say what apply would do and what it cannot mend; changes nothing. Exit code 1 when there is something."`
	Apply topicsApplyCmd `cmd:"" help:"Create the topics this project owns, mend their settings, check the others; safe to repeat."`
}

// Help is part of kong's interface.
func (topicsCmd) Help() string { return "Example:\n  vitrina topics plan" }

type topicsPlanCmd struct{}

// Help is part of kong's interface.
func (topicsPlanCmd) Help() string { return "Example:\n  vitrina topics plan --output json" }

type topicsApplyCmd struct{}

// Help is part of kong's interface.
func (topicsApplyCmd) Help() string {
	return `Owned topics are the group tables (compacted), the loop topics (kept until their records are finished) and the dead letters. They take the
partition counts of their source topics, which must exist. Partition counts and other teams' topics are never changed.

Example:
  vitrina topics apply --set kafka.replication_factor=3`
}

// Run prints the differences.
func (topicsPlanCmd) Run(a *app) error {
	findings, _, err := a.planTopics()
	if err != nil {
		return err
	}
	if err := a.printFindings(findings, "every topic is as it should be", "PROBLEM", "FIX"); err != nil {
		return err
	}
	if len(findings) > 0 {
		return errFound
	}
	return nil
}

// Run mends what can be mended.
func (topicsApplyCmd) Run(a *app) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	done, err := applyTopics(a.ctx, cfg)
	if err != nil && len(done) == 0 {
		return err // "nothing to do" would be a lie
	}
	return errors.Join(err, a.printFindings(done, "nothing to do", "WAS", "DONE"))
}

// applyTopics creates and mends the topics of every consumer and returns what it did.
func applyTopics(ctx context.Context, cfg *config.Config) ([]stream.Finding, error) {
	k, err := vitrina.KafkaConfig(cfg, time.Now)
	if err != nil {
		return nil, err
	}
	admin, err := stream.NewAdmin(k)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	findings, err := admin.Plan(ctx, vitrina.TopicOptions(cfg), vitrina.GroupTopics(config.Roles()...)...)
	if err != nil {
		return nil, fmt.Errorf("looking at the topics: %w", err)
	}
	return admin.Apply(ctx, findings)
}

func (a *app) planTopics() ([]stream.Finding, *config.Config, error) {
	cfg, err := a.load()
	if err != nil {
		return nil, nil, err
	}
	k, err := vitrina.KafkaConfig(cfg, time.Now)
	if err != nil {
		return nil, nil, err
	}
	admin, err := stream.NewAdmin(k)
	if err != nil {
		return nil, nil, err
	}
	defer admin.Close()
	findings, err := admin.Plan(a.ctx, vitrina.TopicOptions(cfg), vitrina.GroupTopics(config.Roles()...)...)
	if err != nil {
		return nil, nil, fmt.Errorf("looking at the topics: %w", err)
	}
	return findings, cfg, nil
}

func (a *app) printFindings(findings []stream.Finding, none, problem, fix string) error {
	if len(findings) == 0 && a.globals.Output != "json" {
		_, err := fmt.Fprintln(a.stdout, none)
		return err
	}
	if findings == nil {
		findings = []stream.Finding{}
	}
	rows := make([][]string, 0, len(findings))
	for _, f := range findings {
		rows = append(rows, []string{f.Topic, string(f.Kind), f.Problem, f.Fix})
	}
	return a.print(findings, []string{"TOPIC", "KIND", problem, fix}, rows)
}
