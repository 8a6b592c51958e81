package main

import (
	"errors"
	"slices"
	"strings"
	"time"

	vitrina "github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/ops/check"
)

type checkCmd struct {
	Roles []string `placeholder:"ROLE,..." help:"What the instance is to run: any of promotion, popularity, price, api (roles). Default: all."`
}

// Help is part of kong's interface.
func (checkCmd) Help() string {
	return `Validates the configuration and reaches every dependency: brokers, SASL, topics, replicas, retention, both databases, their tables and
indexes, clocks, the state directory. Each finding says how to mend it. Nothing is changed, and every probe is bounded. Exit code 1 when
something is an error; warnings alone are 0.

Example:
  vitrina check --config vitrina.yaml --output json`
}

// Run checks.
func (c checkCmd) Run(a *app) error {
	src := a.source()
	if len(c.Roles) > 0 {
		src.Flags["roles"] = strings.Join(c.Roles, ",")
	}
	cfg, err := a.loadFrom(src)
	var faults config.Faults
	if errors.As(err, &faults) {
		return a.printChecked(check.Invalid(faults))
	}
	if err != nil {
		return err
	}
	k, err := vitrina.KafkaConfig(cfg, time.Now)
	if err != nil {
		return a.printChecked([]check.Finding{{Area: "configuration", Subject: "kafka", Severity: check.Error, Problem: err.Error(), Fix: "mend the kafka settings"}})
	}
	return a.printChecked(check.Run(a.ctx, check.Options{
		Config: cfg, Kafka: k, Topics: vitrina.TopicOptions(cfg), Groups: vitrina.GroupTopics(cfg.Roles...), ClickHouse: vitrina.ClickHouseConfig(cfg), Clock: time.Now,
	}))
}

func (a *app) printChecked(findings []check.Finding) error {
	rows := make([][]string, 0, len(findings))
	for i := range findings {
		f := &findings[i]
		f.Problem, f.Fix = a.redact.Text(f.Problem), a.redact.Text(f.Fix)
		rows = append(rows, []string{strings.ToUpper(string(f.Severity)), f.Area, f.Subject, f.Problem, f.Fix})
	}
	if err := a.print(findings, []string{"SEVERITY", "AREA", "SUBJECT", "FOUND", "FIX"}, rows); err != nil {
		return err
	}
	if slices.ContainsFunc(findings, func(f check.Finding) bool { return f.Severity == check.Error }) {
		return errFound
	}
	return nil
}
