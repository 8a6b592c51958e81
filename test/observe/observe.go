// Package observe reads what the program has made of its events from the databases and the dead-letter topics, in the words of
// the independent model (test/model). It shares no code with sinks and views.
package observe

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/test/model"
)

// Querier is a PostgreSQL pool or connection.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Cards reads the boost and the views of every card.
func Cards(ctx context.Context, q Querier) (map[model.Ref]model.CardState, error) {
	rows, err := q.Query(ctx, `
		SELECT 'Project', id::text, promotion_boost, popularity_views FROM catalog.project_cards
		UNION ALL SELECT 'PropertyObject', id::text, promotion_boost, popularity_views FROM catalog.property_object_cards`)
	if err != nil {
		return nil, fmt.Errorf("read the cards: %w", err)
	}
	out := map[model.Ref]model.CardState{}
	var ref model.Ref
	var state model.CardState
	_, err = pgx.ForEachRow(rows, []any{&ref.Kind, &ref.ID, &state.PromotionBoost, &state.PopularityViews}, func() error {
		out[ref] = state
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the cards: %w", err)
	}
	return out, nil
}

// The two tables say the same of each late view, or the state says how they differ. A dead view is one whose letter is sent.
const viewQuery = `
	SELECT '', replace(state::text, '_', '-'), count(*) FROM vitrina.views GROUP BY state
	UNION ALL
	SELECT coalesce(v.view_id, l.view_id)::text, CASE
		WHEN v.view_id IS NULL THEN 'in late_views alone'
		WHEN l.view_id IS NULL THEN v.state::text || ' without late_views'
		WHEN (v.state = 'pending') <> (l.next_try IS NOT NULL) THEN v.state::text || ', but late_views has its next try at ' || coalesce(l.next_try::text, 'no time')
		WHEN l.letter_due IS NOT NULL THEN v.state::text || ', its letter not sent'
		ELSE v.state::text END, 1
	FROM (SELECT view_id, state FROM vitrina.views WHERE state IN ('pending', 'dead')) AS v FULL JOIN vitrina.late_views AS l USING (view_id)`

// Views reads the state of every late view and how many views are in each state.
func Views(ctx context.Context, q Querier) (late map[string]string, ledger map[string]int, err error) {
	rows, err := q.Query(ctx, viewQuery)
	if err != nil {
		return nil, nil, fmt.Errorf("read the ledger of views: %w", err)
	}
	late, ledger = map[string]string{}, map[string]int{}
	var id, state string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&id, &state, &n}, func() error {
		if id == "" {
			ledger[state] = n
		} else {
			late[id] = state
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read the ledger of views: %w", err)
	}
	return late, ledger, nil
}

const factQuery = `
	SELECT DISTINCT FactId, toString(PropertyObjectId), toString(DeveloperId), toString(ProjectId), toString(BuildingId), toString(LayoutGroupId),
		toString(LayoutId), toDecimalString(AreaTotal, 2), ifNull(toDecimalString(OldPrice, 2), ''), toDecimalString(NewPrice, 2),
		ifNull(toDecimalString(OldPricePerMeter, 2), ''), toDecimalString(NewPricePerMeter, 2), toString(CurrencyId), CurrencyIsoCode,
		formatDateTime(EventTime, '%Y-%m-%dT%H:%i:%SZ', 'UTC')
	FROM property_object_price_history_facts`

// Facts reads every fact once, whatever was merged: rows of one fact must not differ but in IngestionTime.
func Facts(ctx context.Context, ch driver.Conn) (facts map[string]model.Fact, err error) {
	rows, err := ch.Query(ctx, factQuery)
	if err != nil {
		return nil, fmt.Errorf("read the facts: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	out := map[string]model.Fact{}
	for rows.Next() {
		var f model.Fact
		if err := rows.Scan(&f.FactID, &f.PropertyObjectID, &f.DeveloperID, &f.ProjectID, &f.BuildingID, &f.LayoutGroupID, &f.LayoutID, &f.AreaTotal,
			&f.OldPrice, &f.NewPrice, &f.OldPricePerMeter, &f.NewPricePerMeter, &f.CurrencyID, &f.CurrencyIsoCode, &f.EventTime); err != nil {
			return nil, fmt.Errorf("read the facts: %w", err)
		}
		if other, twice := out[f.FactID]; twice {
			return nil, fmt.Errorf("fact %s is in ClickHouse in two forms: %+v and %+v", f.FactID, other, f)
		}
		out[f.FactID] = f
	}
	return out, rows.Err()
}

// Letters counts the dead letters of each source topic and code, repeats of one source record counted once: a crash may repeat
// a letter. Letters of views without a card are counted once for each view: a duplicate that comes after its view has died revives it,
// as a record that is put back would (D17), and a second death writes a second letter. Their topics are read to the ends they had
// at the start.
func Letters(ctx context.Context, opts []kgo.Opt, topics ...string) (map[model.Letter]int, error) {
	out := map[model.Letter]int{}
	type source struct {
		topic, partition, offset string
	}
	seen := map[source]bool{}
	viewID := regexp.MustCompile(`(?i)"PropertyObjectViewId"\s*:\s*"\{?([0-9a-f-]{36})\}?"`)
	err := Records(ctx, opts, func(rec *kgo.Record) {
		header := map[string]string{}
		for _, h := range rec.Headers {
			header[h.Key] = string(h.Value)
		}
		s := source{header["x-source-topic"], header["x-original-partition"], header["x-original-offset"]}
		if header["x-dlq-error-code"] == "CATALOG_SYNC_PROPERTY_OBJECT_NOT_FOUND" {
			if id := viewID.FindSubmatch(rec.Value); id != nil {
				s = source{s.topic, "view", strings.ToLower(string(id[1]))}
			}
		}
		if !seen[s] {
			seen[s] = true
			out[model.Letter{Topic: s.topic, Code: header["x-dlq-error-code"]}]++
		}
	}, topics...)
	return out, err
}

// Records gives every record of the topics to each, up to the ends they have when it begins.
func Records(ctx context.Context, opts []kgo.Opt, each func(*kgo.Record), topics ...string) error {
	client, err := kgo.NewClient(append(opts[:len(opts):len(opts)], kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		return fmt.Errorf("make a consumer: %w", err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	starts, err := admin.ListStartOffsets(ctx, topics...)
	if err != nil {
		return fmt.Errorf("list the start offsets: %w", err)
	}
	ends, err := admin.ListEndOffsets(ctx, topics...)
	if err != nil {
		return fmt.Errorf("list the end offsets: %w", err)
	}
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) {
		start, _ := starts.Lookup(o.Topic, o.Partition)
		left += o.Offset - start.Offset
	})
	for left > 0 {
		polled, cancel := context.WithTimeout(ctx, 30*time.Second)
		fetches := client.PollFetches(polled)
		err := errors.Join(ctx.Err(), polled.Err(), fetches.Err())
		cancel()
		if err != nil {
			return fmt.Errorf("read the topics %v (%d records to go): %w", topics, left, err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			if end, _ := ends.Lookup(rec.Topic, rec.Partition); rec.Offset < end.Offset {
				left--
				each(rec)
			}
		})
	}
	return nil
}
