package devstack

import (
	"context"
	"errors"
	"fmt"
)

// Part is one of the servers.
type Part string

// The parts that need programs from outside; the embedded broker needs none.
const (
	PartPostgres   Part = "postgres"
	PartClickHouse Part = "clickhouse"
	PartKafka      Part = "kafka"
)

// Parts lists every part that Prepare knows.
func Parts() []Part { return []Part{PartPostgres, PartClickHouse, PartKafka} }

// Prepare downloads what the parts need and checks the tools they need, so that later starts take seconds. Every missing thing is
// reported, not only the first.
func Prepare(ctx context.Context, opts Options, parts ...Part) error {
	var failures []error
	for _, part := range parts {
		var err error
		switch part {
		case PartPostgres:
			_, err = postgresBin(ctx, opts)
		case PartClickHouse:
			if err = ClickHouseAvailable(); err == nil {
				_, err = clickhouseLibrary().ensure(ctx, opts)
			}
		case PartKafka:
			_, javaErr := javaTool().path()
			_, jarsErr := kafkaJars().ensure(ctx, opts)
			err = errors.Join(javaErr, jarsErr)
		default:
			err = fmt.Errorf("there is no such part; the parts are %v", Parts())
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("prepare %s: %w", part, err))
		}
	}
	return errors.Join(failures...)
}
