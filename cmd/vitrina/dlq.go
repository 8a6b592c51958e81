package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	vitrina "github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/ops/dlq"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

type dlqCmd struct {
	List   dlqListCmd   `cmd:"" help:"List dead letters, newest first."`
	Show   dlqShowCmd   `cmd:"" help:"Show dead letters: headers, payload with personal values masked, why they died."`
	Replay dlqReplayCmd `cmd:"" help:"Put dead letters back on the topic they came from; an interrupted replay goes on when it is run again."`
	Drop   dlqDropCmd   `cmd:"" help:"Give dead letters up, with a reason; they are hidden from lists."`
}

// Help is part of kong's interface.
func (dlqCmd) Help() string {
	return "Works on Kafka and PostgreSQL directly: no instance need run. A letter's id is PARTITION@OFFSET of its topic.\n\nExample:\n  vitrina dlq list --consumer popularity"
}

// letterFilter are the flags that choose letters.
type letterFilter struct {
	Code  string `placeholder:"CODE" help:"Letters of this code, as in CONTRACT_INVALID_FIELD."`
	Key   string `placeholder:"KEY" help:"Letters whose record has this key."`
	Since string `placeholder:"TIME" help:"Letters written from this time on: RFC 3339, or a duration back from now, as in 2h."`
	Until string `placeholder:"TIME" help:"Letters written up to this time."`
	State string `placeholder:"STATE" help:"waiting, replayed, dropped, parked or all. Default: all but dropped."`
}

func (f letterFilter) filter(now time.Time) (dlq.Filter, error) {
	out := dlq.Filter{Code: f.Code, Key: f.Key, State: f.State}
	for name, v := range map[string]struct {
		text string
		to   *time.Time
	}{"--since": {f.Since, &out.Since}, "--until": {f.Until, &out.Until}} {
		if v.text == "" {
			continue
		}
		if back, err := time.ParseDuration(v.text); err == nil {
			*v.to = now.Add(-back)
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, v.text)
		if err != nil {
			return out, usageError{fmt.Errorf("%s %q is neither a time (2026-11-30T10:15:30Z) nor a duration (2h)", name, v.text)}
		}
		*v.to = at
	}
	if err := out.Validate(); err != nil {
		return out, usageError{err}
	}
	return out, nil
}

type dlqListCmd struct {
	Consumer string `required:"" enum:"promotion,popularity,price" help:"Whose letters: promotion, popularity or price."`
	letterFilter
	Limit  int    `default:"50" help:"Letters at most, 1 to 1000."`
	Cursor string `placeholder:"CURSOR" help:"Where the page before ended."`
}

// Help is part of kong's interface.
func (dlqListCmd) Help() string {
	return "Example:\n  vitrina dlq list --consumer popularity --code CATALOG_SYNC_PROPERTY_OBJECT_NOT_FOUND --since 24h"
}

type dlqShowCmd struct {
	Consumer string   `required:"" enum:"promotion,popularity,price" help:"Whose letters: promotion, popularity or price."`
	IDs      []string `arg:"" name:"id" help:"Letters: PARTITION@OFFSET."`
}

// Help is part of kong's interface.
func (dlqShowCmd) Help() string { return "Example:\n  vitrina dlq show --consumer price 3@1207" }

// letterChoice chooses letters to act on.
type letterChoice struct {
	Consumer string   `required:"" enum:"promotion,popularity,price" help:"Whose letters: promotion, popularity or price."`
	ID       []string `placeholder:"PARTITION@OFFSET" help:"A letter; repeatable."`
	All      bool     `help:"All letters that wait."`
	letterFilter
	DryRun bool `help:"Say what would be done and do nothing."`
}

type dlqReplayCmd struct {
	letterChoice
	Rate  int  `placeholder:"N" help:"Records a second at most. Default: dead_letters.replay_rate."`
	Again bool `help:"Letters too that were put back, dropped or parked before, however often they came back."`
}

// Help is part of kong's interface.
func (dlqReplayCmd) Help() string {
	return `Puts records back as they were, on the partition they came from. What was put back, dropped or parked before is left out, so an
interrupted replay goes on where it stopped when it is run again. Letters written meanwhile are left to the next run. A record that
came back dead_letters.max_returns times is parked: it stays, and --again releases it. Putting a record back twice is harmless.

Examples:
  vitrina dlq replay --consumer popularity --id 3@1207 --id 0@15
  vitrina dlq replay --consumer promotion --code OPTIMISTIC_LOCK_CONFLICT --dry-run
  vitrina dlq replay --consumer popularity --all --rate 200`
}

type dlqDropCmd struct {
	letterChoice
	Reason string `required:"" placeholder:"TEXT" help:"Why, for those who look for the letter later."`
}

// Help is part of kong's interface.
func (dlqDropCmd) Help() string {
	return `Letters stay in their topic until its retention ends; who dropped them, when and why is kept in vitrina.dead_letter_actions and in the log.

Example:
  vitrina dlq drop --consumer price --id 3@1207 --reason "test data of team chessboard"`
}

// letters makes the service that works on dead letters. Its log lines go to standard error.
func (a *app) letters() (s *dlq.Service, done func(), err error) {
	cfg, err := a.load()
	if err != nil {
		return nil, nil, err
	}
	logger, err := a.logger(cfg)
	if err != nil {
		return nil, nil, err
	}
	k, err := vitrina.KafkaConfig(cfg, time.Now)
	if err != nil {
		return nil, nil, err
	}
	pool, err := postgres.NewPool(a.ctx, cfg.Postgres.DSN.Reveal(), postgres.PoolOptions{ApplicationName: "vitrina dlq", StatementTimeout: cfg.Postgres.StatementTimeout})
	if err != nil {
		return nil, nil, err
	}
	admin, err := stream.NewAdmin(k)
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	s = vitrina.DeadLetters(cfg, pool, admin, k, "", logger, time.Now)
	return s, func() { admin.Close(); pool.Close() }, nil
}

// who is the person at the keyboard, as well as the machine knows.
func who() string {
	name, host := "somebody", "somewhere"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

// lookTime bounds a list or a look: a broker that is away must not hang the command.
const lookTime = time.Minute

// Run lists letters.
func (c dlqListCmd) Run(a *app) error {
	f, err := c.filter(time.Now())
	if err != nil {
		return err
	}
	if c.Limit < 1 || c.Limit > dlq.MaxLimit {
		return usageError{fmt.Errorf("--limit must be 1 to %d", dlq.MaxLimit)}
	}
	s, done, err := a.letters()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(a.ctx, lookTime)
	defer cancel()
	consumer, _ := config.ConsumerOf(c.Consumer)
	page, err := s.List(ctx, consumer, f, c.Limit, c.Cursor)
	if err != nil {
		return err
	}
	if page.Missing {
		return errors.New(page.NoTopic())
	}
	if a.globals.Output == "json" {
		return a.printJSON(page)
	}
	rows := make([][]string, 0, len(page.Items))
	for _, l := range page.Items {
		rows = append(rows, []string{l.ID, l.Timestamp.Format(time.RFC3339), l.State, orDash(l.Code), placeText(l.Source), strconv.Itoa(l.Returns), keyText(l.Key), l.Reason})
	}
	if err := a.printTable([]string{"ID", "WRITTEN", "STATE", "CODE", "FROM", "RETURNS", "KEY", "REASON"}, rows); err != nil {
		return err
	}
	for _, p := range page.Problems {
		if _, err := fmt.Fprintln(a.stderr, a.redact.Text(p)); err != nil {
			return fmt.Errorf("print the result: %w", err)
		}
	}
	if page.Next != "" {
		_, err = fmt.Fprintf(a.stdout, "\nthere may be more: --cursor %s\n", page.Next)
	}
	return err
}

// Run shows letters.
func (c dlqShowCmd) Run(a *app) error {
	for _, id := range c.IDs {
		if _, _, err := dlq.ParseID(id); err != nil {
			return usageError{err}
		}
	}
	s, done, err := a.letters()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(a.ctx, lookTime)
	defer cancel()
	consumer, _ := config.ConsumerOf(c.Consumer)
	letters, err := s.Get(ctx, consumer, c.IDs...)
	if err != nil {
		return err
	}
	if a.globals.Output == "json" {
		return a.printJSON(letters)
	}
	var b strings.Builder
	for i, l := range letters {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "letter %s of %s, written %s, convention %s\n", l.ID, l.Topic, l.Timestamp.Format(time.RFC3339Nano), l.Convention)
		fmt.Fprintf(&b, "why:     %s: %s (%d tries)\n", orDash(l.Code), l.Reason, l.Attempts)
		fmt.Fprintf(&b, "from:    %s\nkey:     %s\nreturns: %d\nstate:   %s\n", placeText(l.Source), keyText(l.Key), l.Returns, l.State)
		if l.Action != nil {
			fmt.Fprintf(&b, "         %s by %s %s\n", l.Action.At.Format(time.RFC3339), l.Action.By, l.Action.Reason)
		}
		b.WriteString("headers:\n")
		for _, h := range l.Headers {
			fmt.Fprintf(&b, "  %s: %s\n", h.Name, h.Value)
		}
		fmt.Fprintf(&b, "payload, %d bytes:\n%s\n", l.Size, l.Payload)
	}
	_, err = fmt.Fprint(a.stdout, b.String())
	return err
}

// request makes the request of a choice.
func (c letterChoice) request() (dlq.Request, error) {
	f, err := c.filter(time.Now())
	if err != nil {
		return dlq.Request{}, err
	}
	consumer, _ := config.ConsumerOf(c.Consumer)
	return dlq.Request{Consumer: consumer, IDs: c.ID, Filter: f, All: c.All, DryRun: c.DryRun, By: who()}, nil
}

// Run puts letters back.
func (c dlqReplayCmd) Run(a *app) error {
	req, err := c.request()
	if err != nil {
		return err
	}
	req.Rate, req.Again = c.Rate, c.Again
	return a.handleLetters(req, (*dlq.Service).Replay, "run the same command again: it goes on where it stopped")
}

// Run drops letters.
func (c dlqDropCmd) Run(a *app) error {
	req, err := c.request()
	if err != nil {
		return err
	}
	req.Reason = c.Reason
	return a.handleLetters(req, (*dlq.Service).Drop, "run the same command again")
}

func (a *app) handleLetters(req dlq.Request, do func(*dlq.Service, context.Context, dlq.Request) (dlq.Report, error), resume string) error {
	s, done, err := a.letters()
	if err != nil {
		return err
	}
	defer done()
	shown := time.Now()
	req.Progress = func(r dlq.Report) {
		if now := time.Now(); now.Sub(shown) >= time.Second {
			shown = now
			_, _ = fmt.Fprintln(a.stderr, "so far:", counts(r)) // progress is worth no failure
		}
	}
	report, err := do(s, a.ctx, req)
	var nothing dlq.NothingError
	var invalid *dlq.InvalidError
	switch {
	case errors.As(err, &nothing):
		return usageError{errors.New("choose letters: --id PARTITION@OFFSET, a filter (--code, --key, --since, --until, --state), or --all")}
	case errors.As(err, &invalid):
		return usageError{err}
	case err != nil && report.Topic == "":
		return err
	}
	if printErr := a.printLetters(report); printErr != nil {
		return errors.Join(err, printErr)
	}
	if err != nil {
		return fmt.Errorf("%w (%s)", err, resume)
	}
	if report.Refused > 0 {
		return errFound
	}
	return nil
}

func counts(r dlq.Report) string {
	return fmt.Sprintf("%d put back, %d dropped, %d parked, %d handled before, %d refused", r.Replayed, r.Dropped, r.Parked, r.Skipped, r.Refused)
}

func (a *app) printLetters(r dlq.Report) error {
	if a.globals.Output == "json" {
		return a.printJSON(r)
	}
	rows := make([][]string, 0, len(r.Results))
	for _, x := range r.Results {
		if x.Result != "skipped" {
			rows = append(rows, []string{x.ID, x.Result, x.Target, x.Why})
		}
	}
	if len(rows) > 0 {
		if err := a.printTable([]string{"ID", "RESULT", "TO", "WHY"}, rows); err != nil {
			return err
		}
	}
	line := counts(r)
	if r.DryRun {
		line = "dry run, nothing was done: " + line
	}
	_, err := fmt.Fprintln(a.stdout, line)
	return err
}

func placeText(p dlq.Place) string {
	if p.Partition == nil || p.Offset == nil {
		return orDash(p.Topic)
	}
	return fmt.Sprintf("%s/%d@%d", p.Topic, *p.Partition, *p.Offset)
}

func keyText(key *string) string {
	if key == nil {
		return "null"
	}
	return *key
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
