package verify

import (
	"context"
	"fmt"
	"hash/maphash"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/codecs"
	"github.com/pin-marketplace/vitrina/internal/config"
)

// marks are the views of one object by the group table.
type marks struct{ finished, unfinished int64 }

// popularity compares each object's counter with the marks that name it, less what the ledger holds as not counted.
func (v *Verifier) popularity(ctx context.Context) (*look, error) {
	var replaying bool
	if err := v.Pool.QueryRow(ctx, `SELECT replaying FROM vitrina.views_ledger`).Scan(&replaying); err != nil {
		return nil, fmt.Errorf("read vitrina.views_ledger: %w", err)
	}
	if replaying {
		return nil, &RefusedError{"popularity is being rebuilt from its topic: verify it when the rebuild has ended"}
	}
	l := newLook()
	c := config.PopularityConsumer()
	moved, err := v.movedViews(ctx)
	if err != nil {
		return nil, err
	}
	// Before the table: a mark below these offsets is finished for good. What is finished later counts as unfinished, which is
	// either way right.
	done, err := v.committed(ctx, c)
	if err != nil {
		return nil, err
	}
	objects := make(map[uuid.UUID]marks)
	// A mark may lie several times in the part of the topic that is not compacted yet; a view has all of them in one partition.
	seed := maphash.MakeSeed()
	seen := make(map[uint64]struct{})
	err = v.readTopic(ctx, c.TableTopic(), func(rec *kgo.Record) error {
		hash := maphash.Bytes(seed, rec.Key)
		if _, again := seen[hash]; again || rec.Value == nil {
			return nil
		}
		seen[hash] = struct{}{}
		m, err := codecs.DecodeMark(rec.Value)
		if err != nil {
			return fmt.Errorf("%s/%d@%d is no mark: %w", rec.Topic, rec.Partition, rec.Offset, err)
		}
		l.checked["marks"]++
		if object, ok := moved[string(rec.Key)]; ok {
			m.ObjectID = object
		}
		n := objects[m.ObjectID]
		if done.finished(m.Origin) {
			n.finished++
		} else {
			n.unfinished++
			l.inFlight++
		}
		objects[m.ObjectID] = n
		return nil
	}, func() { clear(seen) })
	if err != nil {
		return nil, err
	}
	v.Progress("compares with PostgreSQL")
	return l, v.inSnapshot(ctx, func(tx pgx.Tx) error {
		if err := compareObjects(ctx, tx, objects, l); err != nil {
			return err
		}
		return compareProjects(ctx, tx, l)
	})
}

// movedViews are the views that count for another object than their mark names, by their key in the group table.
func (v *Verifier) movedViews(ctx context.Context) (map[string]uuid.UUID, error) {
	moved := make(map[string]uuid.UUID)
	rows, err := v.Pool.Query(ctx, `SELECT view_id::text, object_id FROM vitrina.moved_views`)
	if err != nil {
		return nil, fmt.Errorf("read vitrina.moved_views: %w", err)
	}
	var key string
	var object uuid.UUID
	if _, err := pgx.ForEachRow(rows, []any{&key, &object}, func() error { moved[key] = object; return nil }); err != nil {
		return nil, fmt.Errorf("read vitrina.moved_views: %w", err)
	}
	return moved, nil
}

func compareObjects(ctx context.Context, tx pgx.Tx, objects map[uuid.UUID]marks, l *look) error {
	uncounted := make(map[uuid.UUID]int64)
	rows, err := tx.Query(ctx, `SELECT object_id, count(*) FROM vitrina.views WHERE state <> 'counted' GROUP BY object_id`)
	if err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	var id uuid.UUID
	var n int64
	if _, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error { uncounted[id] = n; l.checked["views not counted"] += n; return nil }); err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	rows, err = tx.Query(ctx, `SELECT id, status::text, popularity_views FROM catalog.property_object_cards`)
	if err != nil {
		return fmt.Errorf("read the object cards: %w", err)
	}
	var status string
	carded := make(map[uuid.UUID]struct{})
	_, err = pgx.ForEachRow(rows, []any{&id, &status, &n}, func() error {
		l.checked["object cards"]++
		carded[id] = struct{}{}
		if status == "Delisted" {
			return nil // frozen (D28, D37)
		}
		m := objects[id]
		least := m.finished - uncounted[id]
		if n >= least && n <= least+m.unfinished {
			return nil
		}
		d := Difference{What: "object", ID: id.String(), Expected: fmt.Sprint(least), Actual: fmt.Sprint(n),
			Cause: "the counter was changed by another writer, or PostgreSQL was restored from a backup: run `vitrina rebuild popularity`"}
		if n < least {
			d.Cause = "PostgreSQL was restored from a backup, the counter was changed by another writer, views came while the card was Delisted longer ago than " +
				"popularity.ledger_window, or it was rebuilt from a topic that no longer holds them: `vitrina rebuild popularity` sets it to the marks"
		}
		l.differ(d)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the object cards: %w", err)
	}
	for id, m := range objects {
		if _, ok := carded[id]; !ok && m.finished-uncounted[id] > 0 {
			l.differ(Difference{What: "object", ID: id.String(), Expected: fmt.Sprint(m.finished - uncounted[id]), Actual: "no card", Note: true,
				Cause: "the catalog has deleted the card of an object whose views were counted"})
		}
	}
	return nil
}

// compareProjects notes projects whose counter is not the sum of their objects'. That may be right (D28, D41).
func compareProjects(ctx context.Context, tx pgx.Tx, l *look) error {
	rows, err := tx.Query(ctx, `
		SELECT p.id, coalesce(o.views, 0)::bigint, p.popularity_views FROM catalog.project_cards p
		LEFT JOIN (SELECT project_id, sum(popularity_views) AS views FROM catalog.property_object_cards GROUP BY project_id) o ON o.project_id = p.id
		WHERE p.status <> 'Delisted' AND p.popularity_views <> coalesce(o.views, 0)`)
	if err != nil {
		return fmt.Errorf("compare the project cards: %w", err)
	}
	var id uuid.UUID
	var want, has int64
	_, err = pgx.ForEachRow(rows, []any{&id, &want, &has}, func() error {
		l.differ(Difference{What: "project", ID: id.String(), Expected: fmt.Sprint(want), Actual: fmt.Sprint(has), Note: true,
			Cause: "right if an object moved to or from it, was deleted, or it was Delisted for a while (D28, D41); else another writer changed it. `vitrina rebuild popularity` sets it to the sum of its objects"})
		return nil
	})
	if err != nil {
		return fmt.Errorf("compare the project cards: %w", err)
	}
	return nil
}
