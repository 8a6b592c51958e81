// Package demo runs the whole system on one machine with nothing set up: the embedded broker, a local PostgreSQL and a local
// ClickHouse, a generated city, and a comparison of what the databases hold with what was generated.
package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/devstack"
)

// Stack is everything the program needs from outside.
type Stack struct {
	Broker     *devstack.Embedded
	Postgres   *devstack.Postgres
	ClickHouse *devstack.ClickHouse
}

// Partitions of the source topics; the specification names 6 for views.
func sourceTopics() map[string]int32 {
	return map[string]int32{config.TopicPurchaseChanged: 3, config.TopicViewEnded: 6, config.TopicPriceChanged: 3}
}

// StartStack starts the three servers side by side, with their data below dir, and creates the source topics, which other teams
// own elsewhere. On an error nothing is left running.
func StartStack(ctx context.Context, dir string, logger *slog.Logger) (*Stack, error) {
	s := &Stack{}
	opts := devstack.Options{Dir: dir, Logger: logger, AutoRestart: true}
	g, startCtx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		s.Broker, err = devstack.StartEmbedded(startCtx, devstack.Options{Dir: dir, Logger: logger})
		return err
	})
	g.Go(func() (err error) {
		s.Postgres, err = devstack.StartPostgres(startCtx, opts)
		return err
	})
	g.Go(func() (err error) {
		s.ClickHouse, err = devstack.StartClickHouse(startCtx, opts)
		return err
	})
	err := g.Wait()
	if err == nil {
		err = s.createTopics(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

func (s *Stack) createTopics(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Broker.Brokers()...))
	if err != nil {
		return fmt.Errorf("connect to the embedded broker: %w", err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	for topic, partitions := range sourceTopics() {
		if _, err := admin.CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
			return fmt.Errorf("create topic %s on the embedded broker: %w", topic, err)
		}
	}
	return nil
}

// Configure points a configuration at the stack.
func (s *Stack) Configure(cfg *config.Config, clickhouseDSN string) {
	cfg.Kafka.Brokers = s.Broker.Brokers()
	cfg.Postgres.DSN = config.Secret(s.Postgres.DSN())
	cfg.ClickHouse.DSN = config.Secret(clickhouseDSN)
}

// stopTimeout bounds the stop of the three servers.
const stopTimeout = 8 * time.Second

// Stop stops what was started.
func (s *Stack) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	var g errgroup.Group
	if s.Broker != nil {
		g.Go(func() error { return s.Broker.Stop(ctx) })
	}
	if s.Postgres != nil {
		g.Go(func() error { return s.Postgres.Stop(ctx) })
	}
	if s.ClickHouse != nil {
		g.Go(func() error { return s.ClickHouse.Stop(ctx) })
	}
	return g.Wait()
}
