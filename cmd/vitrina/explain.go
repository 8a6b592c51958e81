package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pin-marketplace/vitrina/internal/ops/explain"
	"github.com/pin-marketplace/vitrina/internal/record"
)

type explainCmd struct {
	Consumer string   `required:"" enum:"promotion,popularity,price" help:"Who is to judge the event: promotion, popularity or price."`
	Header   []string `short:"H" placeholder:"NAME=VALUE" sep:"none" help:"A record header, as the bare form carries its metadata; repeatable."`
	Key      *string  `placeholder:"TEXT" help:"The record's key; without it the key is not judged."`
	File     string   `arg:"" help:"File with the record's value, or - for standard input."`
}

// Help is part of kong's interface.
func (explainCmd) Help() string {
	return `Decodes and validates one event offline, exactly as the consumer does, and says what it would do and why. Exit code 1 when it
breaks its contract. Nothing is reached or changed, and no value of UserId, AnonymousId or SessionId is shown.

Examples:
  vitrina explain-event --consumer price event.json
  vitrina explain-event --consumer popularity --header EventId=0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01 --header ContractVersion=1 - < payload.json`
}

// maxEvent is far beyond what Kafka takes.
const maxEvent = 64 << 20

// Run judges the event.
func (c explainCmd) Run(a *app) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	rec := &record.Record{}
	for _, h := range c.Header {
		name, value, ok := strings.Cut(h, "=")
		if !ok {
			return usageError{fmt.Errorf("--header %q is not NAME=VALUE", h)}
		}
		rec.Headers = append(rec.Headers, record.Header{Key: name, Value: []byte(value)})
	}
	if c.Key != nil {
		rec.Key = []byte(*c.Key)
	}
	if rec.Value, err = a.readEvent(c.File); err != nil {
		return err
	}
	result, err := explain.Event(rec, explain.Options{Consumer: c.Consumer, ViewSources: cfg.Popularity.ViewSources, Now: time.Now()})
	if err != nil {
		return usageError{err}
	}
	if a.globals.Output == "json" {
		err = a.printJSON(result)
	} else {
		err = a.printExplained(result)
	}
	if err == nil && !result.Valid {
		err = errFound
	}
	return err
}

func (a *app) readEvent(file string) (value []byte, err error) {
	in := a.stdin
	if file != "-" {
		f, openErr := os.Open(file) // not err: the closing below writes to the result
		if openErr != nil {
			return nil, fmt.Errorf("read the event: %w", openErr)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		in = f
	}
	value, err = io.ReadAll(io.LimitReader(in, maxEvent+1))
	if err != nil {
		return nil, fmt.Errorf("read the event: %w", err)
	}
	if len(value) > maxEvent {
		return nil, usageError{fmt.Errorf("%s holds more than %d MiB: no record of Kafka is so large, and a part of it would be judged as another event", file, maxEvent>>20)}
	}
	if value == nil {
		value = []byte{}
	}
	return value, nil
}

func (a *app) printExplained(r *explain.Result) error {
	lines := []string{fmt.Sprintf("event %s for consumer %s: %s", orUnknown(r.EventID), r.Consumer, r.Outcome)}
	if !r.Valid {
		lines = append(lines, r.Code+": "+r.Reason)
	}
	for _, d := range r.Does {
		lines = append(lines, "- "+d)
	}
	for _, w := range r.Warnings {
		lines = append(lines, "warning: "+w)
	}
	_, err := fmt.Fprintln(a.stdout, strings.Join(slices.DeleteFunc(lines, func(s string) bool { return s == "" }), "\n"))
	return err
}

func orUnknown(s string) string {
	if s == "" {
		return "without an id"
	}
	return s
}
