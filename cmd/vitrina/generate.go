package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	vitrina "github.com/pin-marketplace/vitrina/internal/app"
	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/test/model"
)

type generateCmd struct {
	To          string        `default:"kafka" placeholder:"kafka|FILE|-" help:"Where to: kafka, a file of JSON lines, or - for standard output."`
	From        string        `placeholder:"FILE|-" help:"Send a file that generate wrote instead of making events."`
	Cards       bool          `help:"Insert the cards into PostgreSQL (postgres.dsn) too: development only, cards belong to the catalog."`
	Expect      string        `placeholder:"FILE" help:"Write the final state that an independent model expects to this JSON file."`
	Partitioner string        `default:"crc32" enum:"crc32,murmur2,fnv1a,random" help:"How records find their partition: ${enum}."`
	Rate        float64       `placeholder:"N" help:"Records a second; 0: as fast as they are taken."`
	Seed        uint64        `default:"1" help:"Another seed, another city. The same seed and start give the same stream."`
	Start       time.Time     `placeholder:"RFC3339" help:"Time of the first event; default: so that the stream ends now, or with --rate starts now."`
	Span        time.Duration `help:"Time between first and last event; default 1h, with --rate as long as the sending takes."`
	Projects    int           `default:"20" help:"Projects of the city."`
	Objects     int           `default:"2000" help:"Property objects of the city."`
	Views       int           `default:"10000" help:"Distinct views."`
	Purchases   int           `default:"500" help:"Purchase events (versions of campaigns)."`
	Prices      int           `default:"2000" help:"Price changes."`
	Duplicates  float64       `default:"0.05" help:"Share of records that come again later."`
	Reordered   float64       `default:"0.02" help:"Share of records that come behind later ones."`
	LateCards   float64       `default:"0.02" help:"Share of object cards that come while events already name them."`
	Homeless    float64       `default:"0" help:"Share of views of objects that never get a card (they end as dead letters)."`
	Bare        float64       `default:"0.2" help:"Share of records in the bare form, metadata in headers."`
	WrongKeys   float64       `default:"0.005" help:"Share of views and purchases whose Kafka key is not the payload's id."`
	Traced      float64       `default:"0.1" help:"Share of records with a traceparent header."`
	Malformed   int           `default:"0" help:"Malformed records of each kind, in each topic."`
	History     time.Duration `name:"price-history" default:"4320h" help:"How far back the older price changes lie."`
}

// Help is part of kong's interface.
func (generateCmd) Help() string {
	return `A city of projects and objects, people who look at them, campaigns that promote them, prices that move; with duplicates,
disorder, late cards and, if wanted, every kind of malformed record.

Examples:
  vitrina generate --views 100000 --duplicates 0.05 --malformed 1 --cards --expect expected.json
  vitrina generate --to events.jsonl --seed 7
  vitrina generate --from events.jsonl --partitioner murmur2`
}

// options are the generator's options of the flags.
func (g generateCmd) options(now time.Time) generate.Options {
	o := generate.Options{
		Seed: g.Seed, Start: g.Start, Span: g.Span, Projects: g.Projects, Objects: g.Objects, Views: g.Views, Purchases: g.Purchases,
		Prices: g.Prices, Duplicates: g.Duplicates, Reordered: g.Reordered, LateCards: g.LateCards, Homeless: g.Homeless,
		Bare: g.Bare, WrongKeys: g.WrongKeys, Traced: g.Traced, Malformed: g.Malformed, PriceHistory: g.History,
	}
	live := g.Rate > 0 && g.Span == 0
	switch {
	case live:
		o.Span = time.Duration(float64(o.Records()) / g.Rate * float64(time.Second))
	case o.Span == 0:
		o.Span = time.Hour
	}
	if o.Start.IsZero() {
		o.Start = now.UTC().Truncate(time.Second)
		if !live {
			o.Start = o.Start.Add(-o.Span)
		}
	}
	return o
}

// generated is what the command reports.
type generated struct {
	generate.Summary
	Seed  uint64    `json:"seed"`
	Start time.Time `json:"start"`
	Span  string    `json:"span"`
}

// Run generates.
func (g generateCmd) Run(a *app) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	o := g.options(time.Now())
	items, err := g.items(a, o)
	if err != nil {
		return err
	}
	to, closeAll, err := g.destination(a, cfg)
	if err != nil {
		return err
	}
	m := model.New(time.Now())
	if g.Expect != "" {
		to.Observe = func(item generate.Item) { item.Give(m) }
	}
	sum, err := generate.Send(a.ctx, items, to)
	if err := errors.Join(err, closeAll()); err != nil {
		return err
	}
	if g.Expect != "" {
		if err := writeExpected(g.Expect, m.Expected()); err != nil {
			return err
		}
	}
	if g.To == "-" {
		return nil // standard output holds the stream
	}
	out := generated{Summary: sum, Seed: o.Seed, Start: o.Start, Span: o.Span.String()}
	rows := [][]string{{"cards", strconv.Itoa(sum.Cards)}}
	for _, c := range config.Consumers() {
		rows = append(rows, []string{c.Topic, strconv.Itoa(sum.ByTopic[c.Topic])})
	}
	rows = append(rows, []string{"malformed of them", strconv.Itoa(sum.Malformed)})
	if g.From == "" {
		rows = append(rows, []string{"again with", fmt.Sprintf("--seed %d --start %s --span %s", o.Seed, o.Start.Format(time.RFC3339), o.Span)})
	}
	return a.print(out, []string{"SENT", "RECORDS"}, rows)
}

func (g generateCmd) items(a *app, o generate.Options) (iter.Seq2[generate.Item, error], error) {
	if g.From == "" {
		if err := o.Validate(); err != nil {
			return nil, usageError{err}
		}
		return generate.WithoutErrors(generate.Items(o)), nil
	}
	if g.From == "-" {
		return generate.ReadFile(a.stdin), nil
	}
	if g.From == g.To {
		return nil, usageError{errors.New("--from and --to name the same file")}
	}
	f, err := os.Open(g.From)
	if err != nil {
		return nil, fmt.Errorf("open the stream: %w", err)
	}
	return func(yield func(generate.Item, error) bool) {
		defer func() { _ = f.Close() }() // it was only read
		generate.ReadFile(f)(yield)
	}, nil
}

// destination opens what the flags name; the function closes it.
func (g generateCmd) destination(a *app, cfg *config.Config) (generate.Destination, func() error, error) {
	to := generate.Destination{Rate: g.Rate}
	var closers []func() error
	closeAll := func() error {
		var errs []error
		for _, c := range slices.Backward(closers) {
			errs = append(errs, c())
		}
		return errors.Join(errs...)
	}
	switch g.To {
	case "kafka":
		k, err := vitrina.KafkaConfig(cfg, time.Now)
		if err != nil {
			return to, nil, err
		}
		w, err := generate.NewKafkaWriter(k.KgoOpts(), g.Partitioner, g.Seed)
		if err != nil {
			return to, nil, err
		}
		closers = append(closers, func() error { w.Close(); return nil })
		to.Records = w
	default:
		out := a.stdout
		if g.To != "-" {
			f, err := os.Create(g.To)
			if err != nil {
				return to, nil, fmt.Errorf("create the stream's file: %w", err)
			}
			closers = append(closers, f.Close)
			out = f
		}
		w := &lines{w: generate.NewFileWriter(out)}
		to.Records, to.Cards = w, w
		if g.Cards {
			return to, nil, errors.Join(usageError{errors.New("--cards inserts into PostgreSQL while records go to Kafka; a file holds its cards itself")}, closeAll())
		}
	}
	if g.Cards {
		conn, err := pgx.Connect(a.ctx, cfg.Postgres.DSN.Reveal())
		if err != nil {
			return to, nil, errors.Join(fmt.Errorf("connect to PostgreSQL for --cards (postgres.dsn): %w", err), closeAll())
		}
		closers = append(closers, func() error { return conn.Close(context.WithoutCancel(a.ctx)) })
		to.Cards = generate.PostgresCards{DB: conn}
	}
	return to, closeAll, nil
}

// lines writes cards and records into one file.
type lines struct{ w *generate.FileWriter }

func (l *lines) Write(_ context.Context, rec *record.Record) error {
	return l.w.Write(generate.Item{At: rec.Timestamp, Record: rec})
}

func (l *lines) WriteCards(_ context.Context, cards []generate.Card) error {
	for i := range cards {
		if err := l.w.Write(generate.Item{Card: &cards[i]}); err != nil {
			return err
		}
	}
	return nil
}

func (l *lines) Flush(context.Context) error { return l.w.Flush() }

func writeExpected(path string, expected *model.Expected) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("create the file of the expected state: %w", err)
	}
	encoder := json.NewEncoder(f)
	if err := errors.Join(encoder.Encode(expected), f.Close()); err != nil {
		return fmt.Errorf("write the expected state: %w", err)
	}
	return nil
}

var _ generate.RecordWriter = (*lines)(nil)
