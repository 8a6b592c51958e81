-- +goose Up
-- The transactions themselves: one function call each, one message, one batch (design, section 12, rule 13). Planner settings: see 00102.

-- Applies snapshots of purchases, one for each purchase and sorted by id. The target arrays name, for each target, its purchase and
-- that snapshot's version and revision; named = false are targets of earlier snapshots (EverTargets without Targets).
-- affected: for each snapshot how many written cards its purchase reaches, -1 where what is stored is newer. lost_purchases reach
-- cards that could not be written; lost_cards names one for each. The answer is kept small on purpose: a server that cannot send all of
-- it to a client that has been stopped would not get to the commit, and would keep the locks (design, section 12, rule 13).
-- +goose StatementBegin
CREATE FUNCTION vitrina.apply_purchases(p_epoch bigint,
    p_ids uuid[], p_versions bigint[], p_revisions bigint[], p_statuses text[], p_weights integer[], p_ends_at timestamptz[],
    p_topics text[], p_partitions integer[], p_offsets bigint[],
    p_target_purchases uuid[], p_target_versions bigint[], p_target_revisions bigint[], p_target_kinds smallint[], p_target_ids uuid[],
    p_target_named boolean[], p_cards boolean, p_retries integer, p_skip_locked boolean,
    OUT affected integer[], OUT written integer, OUT lost integer, OUT lost_purchases uuid[], OUT lost_cards text[], OUT conflicts integer)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_kept uuid[];
    v_touched_purchases uuid[];
    v_touched_kinds smallint[];
    v_touched_ids uuid[];
    v_kinds smallint[];
    v_ids uuid[];
    v_cards record;
BEGIN
    PERFORM vitrina.require_epoch('promotion-boost', p_epoch);

    -- ON CONFLICT DO UPDATE locks the row and judges its newest version, so the guard needs no statement of its own.
    WITH applied AS (
        INSERT INTO vitrina.purchases AS p
            (purchase_id, version, revision, status, boost_weight, ends_at, source_topic, source_partition, source_offset)
        SELECT s.* FROM unnest(p_ids, p_versions, p_revisions, p_statuses, p_weights, p_ends_at, p_topics, p_partitions, p_offsets)
            AS s(id, version, revision, status, weight, ends_at, topic, partition, "offset")
        ORDER BY s.id
        ON CONFLICT (purchase_id) DO UPDATE SET
            version = EXCLUDED.version, revision = EXCLUDED.revision, status = EXCLUDED.status, boost_weight = EXCLUDED.boost_weight,
            ends_at = EXCLUDED.ends_at, source_topic = EXCLUDED.source_topic, source_partition = EXCLUDED.source_partition,
            source_offset = EXCLUDED.source_offset, applied_at = EXCLUDED.applied_at
        WHERE (EXCLUDED.version, EXCLUDED.revision) >= (p.version, p.revision)
        RETURNING p.purchase_id
    )
    SELECT coalesce(array_agg(a.purchase_id), '{}') INTO v_kept FROM applied a;

    -- A stored (version, revision) equal to the snapshot's says that it was kept: a join by key, where kept would be searched.
    INSERT INTO vitrina.contributions AS c (purchase_id, kind, target_id, boost_weight, status, version, active)
    SELECT t.purchase_id, t.kind, t.target_id, p.boost_weight, p.status, p.version, p.status = 'Active'
    FROM unnest(p_target_purchases, p_target_versions, p_target_revisions, p_target_kinds, p_target_ids, p_target_named)
        AS t(purchase_id, version, revision, kind, target_id, named)
    JOIN vitrina.purchases p ON p.purchase_id = t.purchase_id AND p.version = t.version AND p.revision = t.revision
    WHERE t.named
    ON CONFLICT (purchase_id, kind, target_id) DO UPDATE SET
        boost_weight = EXCLUDED.boost_weight, status = EXCLUDED.status, version = EXCLUDED.version, active = EXCLUDED.active
    WHERE (c.boost_weight, c.status, c.version, c.active)
        IS DISTINCT FROM (EXCLUDED.boost_weight, EXCLUDED.status, EXCLUDED.version, EXCLUDED.active);

    -- Targets that only earlier snapshots named: known here unless the replica was rebuilt from the group table.
    INSERT INTO vitrina.contributions (purchase_id, kind, target_id, boost_weight, status, version, active)
    SELECT t.purchase_id, t.kind, t.target_id, p.boost_weight, p.status, p.version, false
    FROM unnest(p_target_purchases, p_target_versions, p_target_revisions, p_target_kinds, p_target_ids, p_target_named)
        AS t(purchase_id, version, revision, kind, target_id, named)
    JOIN vitrina.purchases p ON p.purchase_id = t.purchase_id AND p.version = t.version AND p.revision = t.revision
    WHERE NOT t.named
    ON CONFLICT DO NOTHING;

    -- D3, from the database's own rows: what is active and not named any more. Versions do not tell: a group table that lost a
    -- state may give the same version and revision to another snapshot.
    UPDATE vitrina.contributions AS c SET active = false, version = p.version
    FROM (
        SELECT o.* FROM unnest(v_kept) AS k(id)
        CROSS JOIN LATERAL (
            SELECT a.purchase_id, a.kind, a.target_id FROM vitrina.contributions a WHERE a.purchase_id = k.id AND a.active OFFSET 0
        ) o
        EXCEPT
        SELECT t.purchase_id, t.kind, t.target_id FROM unnest(p_target_purchases, p_target_kinds, p_target_ids, p_target_named)
            AS t(purchase_id, kind, target_id, named)
        WHERE t.named
    ) d
    JOIN vitrina.purchases p ON p.purchase_id = d.purchase_id
    WHERE c.purchase_id = d.purchase_id AND c.kind = d.kind AND c.target_id = d.target_id;

    SELECT coalesce(array_agg(c.purchase_id), '{}'), coalesce(array_agg(c.kind), '{}'), coalesce(array_agg(c.target_id), '{}')
    INTO v_touched_purchases, v_touched_kinds, v_touched_ids
    FROM unnest(v_kept) AS k(id)
    CROSS JOIN LATERAL (
        SELECT a.purchase_id, a.kind, a.target_id FROM vitrina.contributions a WHERE a.purchase_id = k.id OFFSET 0
    ) c;
    SELECT coalesce(array_agg(t.kind), '{}'), coalesce(array_agg(t.id), '{}') INTO v_kinds, v_ids
    FROM (SELECT DISTINCT u.kind, u.id FROM unnest(v_touched_kinds, v_touched_ids) AS u(kind, id) ORDER BY 1, 2) t;

    SELECT s.* INTO v_cards FROM vitrina.settle_targets(v_kinds, v_ids, p_cards, p_retries, p_skip_locked) s;
    conflicts := v_cards.conflicts;
    written := cardinality(v_cards.objects) + cardinality(v_cards.projects);
    lost := cardinality(v_cards.lost_objects) + cardinality(v_cards.lost_projects);
    affected := vitrina.affected_cards(p_ids, v_kept, v_touched_purchases, v_touched_kinds, v_touched_ids,
        v_cards.objects, v_cards.object_projects, v_cards.projects);
    IF lost > 0 THEN
        SELECT l.purchases, l.cards INTO lost_purchases, lost_cards
        FROM vitrina.lost_cards(v_touched_purchases, v_touched_kinds, v_touched_ids,
            v_cards.lost_objects, v_cards.lost_object_projects, v_cards.lost_projects) l;
    END IF;
END
$$;
-- +goose StatementEnd

-- Counts, for each of p_purchases, the written cards that it reaches: through its projects, and those of its own objects that none of its
-- projects has counted. -1 for those that are not in p_kept. Arrays are joined with each other here, so hash joins it must be.
-- +goose StatementBegin
CREATE FUNCTION vitrina.affected_cards(p_purchases uuid[], p_kept uuid[], p_touched_purchases uuid[], p_touched_kinds smallint[], p_touched_ids uuid[],
    p_objects uuid[], p_object_projects uuid[], p_projects uuid[]) RETURNS integer[]
LANGUAGE plpgsql VOLATILE
SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    RETURN (
        WITH touched AS MATERIALIZED (
            SELECT t.* FROM unnest(p_touched_purchases, p_touched_kinds, p_touched_ids) AS t(purchase_id, kind, id)
        ), counts AS (
            SELECT k.id AS purchase_id, 0 AS n FROM unnest(p_kept) AS k(id)
            UNION ALL
            SELECT t.purchase_id, r.n FROM touched t
            JOIN (SELECT u.id, count(*) AS n FROM unnest(p_object_projects) AS u(id) GROUP BY u.id) r ON r.id = t.id
            WHERE t.kind = 1
            UNION ALL
            SELECT t.purchase_id, 1 FROM touched t JOIN unnest(p_projects) AS w(id) ON w.id = t.id WHERE t.kind = 1
            UNION ALL
            SELECT t.purchase_id, 1 FROM touched t
            JOIN unnest(p_objects, p_object_projects) AS w(id, project_id) ON w.id = t.id
            LEFT JOIN touched s ON s.kind = 1 AND s.purchase_id = t.purchase_id AND s.id = w.project_id
            WHERE t.kind = 2 AND s.id IS NULL
        )
        SELECT array_agg(coalesce(a.n, -1) ORDER BY p.place)
        FROM unnest(p_purchases) WITH ORDINALITY AS p(id, place)
        LEFT JOIN (SELECT c.purchase_id, sum(c.n)::integer AS n FROM counts c GROUP BY c.purchase_id) a ON a.purchase_id = p.id
    );
END
$$;
-- +goose StatementEnd

-- Finds the purchases that reach a lost card, and names one such card for each.
-- +goose StatementBegin
CREATE FUNCTION vitrina.lost_cards(p_touched_purchases uuid[], p_touched_kinds smallint[], p_touched_ids uuid[],
    p_objects uuid[], p_object_projects uuid[], p_projects uuid[], OUT purchases uuid[], OUT cards text[])
LANGUAGE plpgsql VOLATILE
SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    SELECT array_agg(x.purchase_id ORDER BY x.purchase_id), array_agg(x.card ORDER BY x.purchase_id) INTO purchases, cards
    FROM (
        SELECT t.purchase_id, min(l.card) AS card
        FROM unnest(p_touched_purchases, p_touched_kinds, p_touched_ids) AS t(purchase_id, kind, id)
        JOIN (
            SELECT 1::smallint AS kind, u.id, 'Project card ' || u.id AS card FROM unnest(p_projects) AS u(id)
            UNION ALL
            SELECT 1, u.project_id, 'PropertyObject card ' || min(u.id::text) FROM unnest(p_objects, p_object_projects) AS u(id, project_id) GROUP BY u.project_id
            UNION ALL
            SELECT 2, u.id, 'PropertyObject card ' || u.id FROM unnest(p_objects) AS u(id)
        ) l ON l.kind = t.kind AND l.id = t.id
        GROUP BY t.purchase_id
    ) x;
END
$$;
-- +goose StatementEnd

-- Sums targets again (the sweep's first step).
-- +goose StatementBegin
CREATE FUNCTION vitrina.resum_targets(p_epoch bigint, p_kinds smallint[], p_ids uuid[], p_retries integer, p_skip_locked boolean,
    OUT written integer, OUT remaining integer, OUT conflicts integer)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    PERFORM vitrina.require_epoch('promotion-boost', p_epoch);
    IF NOT p_skip_locked THEN
        PERFORM set_config('lock_timeout', '300ms', true);
    END IF;
    SELECT cardinality(s.objects) + cardinality(s.projects),
        cardinality(s.lost_objects) + cardinality(s.lost_projects) + cardinality(s.moved), s.conflicts
    INTO written, remaining, conflicts
    FROM vitrina.settle_targets(p_kinds, p_ids, true, p_retries, p_skip_locked) s;
END
$$;
-- +goose StatementEnd

-- Recomputes single cards (cursor recompute and sweep). p_changed and p_dirty are the seq that was read in changed_cards and
-- dirty_cards for each card, null where it is not there; marks are deleted only if they still have it. They are locked last and never
-- waited for: a catalog transaction may hold a card while it waits for the card's mark, so waiting for a card with the
-- mark locked would be a deadlock. A lock on a card is waited for briefly (counters lock cards for milliseconds), then
-- the caller tries again with p_skip_locked: one slow transaction of the catalog must not hold up the others' boosts.
-- +goose StatementBegin
CREATE FUNCTION vitrina.recompute_cards(p_epoch bigint, p_kinds smallint[], p_ids uuid[], p_changed bigint[], p_dirty bigint[], p_retries integer, p_skip_locked boolean,
    OUT written integer, OUT remaining integer, OUT conflicts integer)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_projects uuid[];
    v_objects uuid[];
    v_object_projects uuid[];
    v_lost_objects uuid[];
    v_lost_projects uuid[];
    v_moved uuid[];
    v_left uuid[];
BEGIN
    PERFORM vitrina.require_epoch('promotion-boost', p_epoch);
    IF NOT p_skip_locked THEN
        PERFORM set_config('lock_timeout', '300ms', true);
    END IF;

    SELECT coalesce(array_agg(t.id), '{}') INTO v_projects FROM unnest(p_kinds, p_ids) AS t(kind, id) WHERE t.kind = 1;
    SELECT coalesce(array_agg(t.id), '{}'), coalesce(array_agg(o.project_id), '{}') INTO v_objects, v_object_projects
    FROM unnest(p_kinds, p_ids) AS t(kind, id)
    JOIN catalog.property_object_cards o ON o.id = t.id
    WHERE t.kind = 2;
    PERFORM vitrina.lock_targets(
        array_fill(1::smallint, ARRAY[cardinality(v_projects) + cardinality(v_objects)]) || array_fill(2::smallint, ARRAY[cardinality(v_objects)]),
        v_projects || v_object_projects || v_objects, false);

    SELECT cardinality(w.objects) + cardinality(w.projects), w.lost_objects, w.lost_projects, w.moved, w.conflicts
    INTO written, v_lost_objects, v_lost_projects, v_moved, conflicts
    FROM vitrina.write_boosts(v_objects, v_object_projects, '{}', v_projects, p_retries, p_skip_locked) w;
    v_left := v_lost_objects || v_lost_projects || v_moved;
    remaining := cardinality(v_left);
    IF remaining > 0 THEN
        PERFORM vitrina.note_dirty_cards(1::smallint, v_lost_projects, 'row_version');
        PERFORM vitrina.note_dirty_cards(2::smallint, v_lost_objects, 'row_version');
        PERFORM vitrina.note_dirty_cards(2::smallint, v_moved, 'moved');
    END IF;

    WITH done AS (
        SELECT c.kind, c.id FROM unnest(p_kinds, p_ids, p_dirty) AS u(kind, id, seq)
        JOIN vitrina.dirty_cards c ON c.kind = u.kind AND c.id = u.id AND c.seq = u.seq
        WHERE NOT u.id = ANY (v_left)
        FOR UPDATE OF c SKIP LOCKED
    )
    DELETE FROM vitrina.dirty_cards AS c USING done WHERE c.kind = done.kind AND c.id = done.id;
    WITH done AS (
        SELECT c.kind, c.id FROM unnest(p_kinds, p_ids, p_changed) AS u(kind, id, seq)
        JOIN vitrina.changed_cards c ON c.kind = u.kind AND c.id = u.id AND c.seq = u.seq
        WHERE NOT u.id = ANY (v_left)
        FOR UPDATE OF c SKIP LOCKED
    )
    DELETE FROM vitrina.changed_cards AS c USING done WHERE c.kind = done.kind AND c.id = done.id;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION vitrina.recompute_cards(bigint, smallint[], uuid[], bigint[], bigint[], integer, boolean);
DROP FUNCTION vitrina.resum_targets(bigint, smallint[], uuid[], integer, boolean);
DROP FUNCTION vitrina.apply_purchases(bigint, uuid[], bigint[], bigint[], text[], integer[], timestamptz[], text[], integer[], bigint[], uuid[], bigint[], bigint[], smallint[], uuid[], boolean[], boolean, integer, boolean);
DROP FUNCTION vitrina.lost_cards(uuid[], smallint[], uuid[], uuid[], uuid[], uuid[]);
DROP FUNCTION vitrina.affected_cards(uuid[], uuid[], uuid[], smallint[], uuid[], uuid[], uuid[], uuid[]);
