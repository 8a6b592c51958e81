package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/test/harness"
)

// plain is the week's work: consume, and for each event one transaction that notes its id and moves both counters. It has cards of its
// own, so that neither finds what the other has left behind.
type plain struct {
	pool   *pgxpool.Pool
	client *kgo.Client
	buffer []*kgo.Record
}

func newPlain(b *testing.B, s *harness.System) *plain {
	b.Helper()
	for _, statement := range []string{
		`CREATE SCHEMA plain`,
		`CREATE TABLE plain.processed (id uuid PRIMARY KEY)`,
		`CREATE TABLE plain.project_cards (LIKE catalog.project_cards INCLUDING ALL) WITH (fillfactor = 90)`,
		`CREATE TABLE plain.property_object_cards (LIKE catalog.property_object_cards INCLUDING ALL) WITH (fillfactor = 90)`,
		`INSERT INTO plain.project_cards SELECT * FROM catalog.project_cards`,
		`INSERT INTO plain.property_object_cards SELECT * FROM catalog.property_object_cards`,
	} {
		_, err := s.Pool.Exec(b.Context(), statement)
		require.NoError(b, err, statement)
	}
	config := s.Pool.Config()
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	require.NoError(b, err)
	b.Cleanup(pool.Close)
	client, err := kgo.NewClient(append(s.KgoOpts(), kgo.ConsumeTopics(harness.Views), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	require.NoError(b, err)
	b.Cleanup(client.Close)
	return &plain{pool: pool, client: client}
}

// measure consumes the next n events.
func (p *plain) measure(b *testing.B, n int) time.Duration {
	b.Helper()
	ctx := b.Context()
	p.client.ResumeFetchTopics(harness.Views)
	events := make(chan *kgo.Record, 1000)
	var workers sync.WaitGroup
	begun := time.Now()
	for range connections {
		workers.Go(func() {
			for e := range events {
				if err := p.apply(ctx, e); err != nil {
					b.Errorf("plain consumer: %v", err)
				}
			}
		})
	}
	for n > 0 {
		if len(p.buffer) == 0 {
			fetches := p.client.PollFetches(ctx)
			require.NoError(b, fetches.Err())
			p.buffer = fetches.Records()
		}
		for ; n > 0 && len(p.buffer) > 0; n-- {
			events <- p.buffer[0]
			p.buffer = p.buffer[1:]
		}
	}
	close(events)
	workers.Wait()
	took := time.Since(begun)
	p.client.PauseFetchTopics(harness.Views) // it must not fetch on while the other is measured
	return took
}

func (p *plain) apply(ctx context.Context, rec *kgo.Record) error {
	var event struct {
		Payload struct{ PropertyObjectViewId, PropertyObjectId string } //nolint:revive,staticcheck // the contract's names
	}
	if err := json.Unmarshal(rec.Value, &event); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		return count(ctx, tx, event.Payload.PropertyObjectViewId, event.Payload.PropertyObjectId)
	})
}

func count(ctx context.Context, tx pgx.Tx, view, object string) error {
	tag, err := tx.Exec(ctx, `INSERT INTO plain.processed VALUES ($1) ON CONFLICT DO NOTHING`, view)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	var project string
	err = tx.QueryRow(ctx, `UPDATE plain.property_object_cards SET popularity_views = popularity_views + 1 WHERE id = $1 AND status <> 'Delisted' RETURNING project_id`, object).Scan(&project)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("object %s: %w", object, err)
	}
	_, err = tx.Exec(ctx, `UPDATE plain.project_cards SET popularity_views = popularity_views + 1 WHERE id = $1 AND status <> 'Delisted'`, project)
	return err
}
