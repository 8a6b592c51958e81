-- +goose Up
-- The ledger of views (design E4): whether a view has moved the counters is decided by the primary key, in the transaction
-- that moves them. A row is a view, its state and the record that made it:
--   counted, skipped_delisted   final; pruned behind the horizon
--   pending, dead               the object has no card; never pruned, the rest of them is in late_views

CREATE TYPE vitrina.view_state AS ENUM ('counted', 'pending', 'dead', 'skipped_delisted');

-- A lane is one partition of one incarnation (topic id) of the source or the loop topic. Records below a lane's horizon are
-- finished, so one that comes again is a duplicate although its ledger row may be gone.
CREATE TABLE vitrina.horizons (
    lane integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    incarnation bigint NOT NULL,                -- first four bytes of the topic's id, unsigned
    is_loop boolean NOT NULL,
    partition integer NOT NULL,
    topic text NOT NULL,                        -- its name, for people
    horizon_offset bigint NOT NULL DEFAULT 0,
    checkpoint_end bigint,                      -- the partition's end when the ledger's checkpoint was taken
    seen_at timestamptz NOT NULL DEFAULT now(), -- when the topic last had this incarnation
    UNIQUE (incarnation, is_loop, partition)
);

-- One row a view, and it is most of what this project writes: fixed width, eight-byte columns first, no null, so that a row
-- takes 84 bytes with its line pointer. No index but the key: a further one costs each insert, and pruning reads the table in
-- physical order, a few pages at a time.
CREATE TABLE vitrina.views (
    at timestamptz NOT NULL,       -- when the state was reached
    record_offset bigint NOT NULL,
    view_id uuid PRIMARY KEY,
    object_id uuid NOT NULL,
    state vitrina.view_state NOT NULL,
    lane integer NOT NULL          -- vitrina.horizons; no foreign key: its check would double the cost of an insert
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.2);

-- What pending and dead views have beyond their ledger row. A table of its own, because its columns would widen each of the
-- millions of rows that never need them.
CREATE TABLE vitrina.late_views (
    view_id uuid PRIMARY KEY,
    since timestamptz NOT NULL,                 -- when it became pending, or was rejected
    next_try timestamptz,                       -- pending: when its card is looked for again; null when dead
    letter_due timestamptz,                     -- dead: when its letter must be written; null once it is noted as sent
    generation integer NOT NULL DEFAULT 0,      -- raised by each revival; the note that a letter was sent must match it
    attempts integer NOT NULL DEFAULT 0,        -- retries made
    duration_seconds bigint NOT NULL,           -- for the log
    view_source text NOT NULL,                  -- for the metric
    code text,                                  -- why it is dead
    reason text,
    record bytea NOT NULL,                      -- the original record, whole: what a dead letter is made of
    CHECK (next_try IS NULL OR letter_due IS NULL)
);
CREATE INDEX late_views_next_try_idx ON vitrina.late_views (next_try) WHERE next_try IS NOT NULL;
CREATE INDEX late_views_letter_due_idx ON vitrina.late_views (letter_due) WHERE letter_due IS NOT NULL;

-- Dead views that came again naming another object, which then counts: their mark in the group table goes on naming the first one, so
-- whoever counts marks (rebuild, verify) asks here. Never pruned, because marks are not; next to nobody is ever here.
CREATE TABLE vitrina.moved_views (
    view_id uuid PRIMARY KEY,
    object_id uuid NOT NULL
);

-- How far the ledger reaches back. One row.
CREATE TABLE vitrina.views_ledger (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    replaying boolean NOT NULL DEFAULT false,                  -- a rebuild from the topic is under way: nothing is pruned
    pruned_before timestamptz NOT NULL DEFAULT '-infinity',    -- counted and skipped rows older than this may be gone
    marks_before timestamptz NOT NULL DEFAULT '-infinity',     -- a mark by another record that is older may belong to such a row
    -- Checkpoints (see prepare_pruning): the two last ones, and what they allow.
    previous_at timestamptz,
    checkpoint_at timestamptz,
    checkpoint_marks timestamptz,
    safe_before timestamptz NOT NULL DEFAULT '-infinity',
    safe_marks timestamptz NOT NULL DEFAULT '-infinity',
    passed_at timestamptz NOT NULL DEFAULT '-infinity'         -- the last pruning pass of any instance
);
INSERT INTO vitrina.views_ledger DEFAULT VALUES;

-- The gate keeps pruning and counting apart: counters hold it shared, whoever moves horizons or views_ledger holds it alone.
-- Both read those tables in a later statement than they take it, hence as the last holder left them. It is an advisory lock
-- and not FOR SHARE on the rows, because two sinks whose transactions overlap would keep a FOR UPDATE waiting for ever.
-- +goose StatementBegin
CREATE FUNCTION vitrina.enter_ledger(p_alone boolean) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF p_alone THEN
        PERFORM pg_catalog.pg_advisory_xact_lock(1986622068, 201);
    ELSE
        PERFORM pg_catalog.pg_advisory_xact_lock_shared(1986622068, 201);
    END IF;
END
$$;
-- +goose StatementEnd

-- ensure_lanes returns the lanes of the given partitions, made where they are new.
-- +goose StatementBegin
CREATE FUNCTION vitrina.ensure_lanes(p_incarnations bigint[], p_loops boolean[], p_partitions integer[], p_topics text[]) RETURNS integer[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_lanes integer[];
BEGIN
    INSERT INTO vitrina.horizons (incarnation, is_loop, partition, topic)
    SELECT i.incarnation, i.is_loop, i.partition, i.topic
    FROM unnest(p_incarnations, p_loops, p_partitions, p_topics) AS i (incarnation, is_loop, partition, topic)
    WHERE NOT EXISTS (SELECT FROM vitrina.horizons h
                      WHERE h.incarnation = i.incarnation AND h.is_loop = i.is_loop AND h.partition = i.partition)
    ORDER BY i.incarnation, i.is_loop, i.partition
    ON CONFLICT DO NOTHING;

    SELECT pg_catalog.array_agg(h.lane ORDER BY i.ord) INTO v_lanes
    FROM unnest(p_incarnations, p_loops, p_partitions) WITH ORDINALITY AS i (incarnation, is_loop, partition, ord)
    JOIN vitrina.horizons h ON h.incarnation = i.incarnation AND h.is_loop = i.is_loop AND h.partition = i.partition;
    RETURN v_lanes;
END
$$;
-- +goose StatementEnd

-- add_popularity adds p_counts to the cards of p_objects, which are sorted and distinct, and to the projects which those name now (D41).
-- Delisted cards are frozen (INV-7, D28). It is blind: popularity_views alone is written, by one statement a table, so a
-- card's status is judged in the very version of the row that is written, whoever changes it meanwhile.
-- Locks: object cards by id, then project cards by id. The plan must be a nested loop from the sorted array into the key: any
-- other join locks in another order, and did so at some ten thousand ids. The settings below leave no other plan. They price
-- what they forbid so high that the planner would compile each statement to machine code, each time: hence jit = off.
-- +goose StatementBegin
CREATE FUNCTION vitrina.add_popularity(p_objects uuid[], p_counts bigint[],
    OUT o_counted uuid[], OUT o_projects uuid[],              -- the objects that were counted and, side by side, their projects
    OUT o_delisted uuid[], OUT o_missing uuid[],              -- the other objects, sorted
    OUT o_projects_missing uuid[], OUT o_delisted_projects uuid[]) -- the latter side by side with o_delisted, for the log
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
AS $$
#variable_conflict error
DECLARE
    v_ids uuid[] := p_objects;
    v_counts bigint[] := p_counts;
    v_rest uuid[];
    v_open uuid[];
BEGIN
    IF v_ids IS NULL THEN
        RETURN;
    END IF;

    WITH written AS (
        UPDATE catalog.property_object_cards AS c SET popularity_views = c.popularity_views + u.n
        FROM unnest(v_ids, v_counts) AS u (id, n)
        WHERE c.id = u.id AND c.status <> 'Delisted'
        RETURNING c.id, c.project_id, u.n)
    SELECT pg_catalog.array_agg(w.id), pg_catalog.array_agg(w.project_id), pg_catalog.array_agg(w.n)
    INTO o_counted, o_projects, v_counts FROM written AS w;

    IF coalesce(pg_catalog.cardinality(o_counted), 0) < pg_catalog.cardinality(v_ids) THEN
        v_rest := ARRAY(SELECT i.id FROM (SELECT unnest(v_ids) AS id) AS i WHERE i.id NOT IN (SELECT unnest(o_counted)));
        SELECT pg_catalog.array_agg(c.id ORDER BY c.id) FILTER (WHERE c.status = 'Delisted'),
               pg_catalog.array_agg(c.project_id ORDER BY c.id) FILTER (WHERE c.status = 'Delisted'),
               pg_catalog.array_agg(c.id) FILTER (WHERE c.status <> 'Delisted')
        INTO o_delisted, o_delisted_projects, v_open FROM catalog.property_object_cards AS c WHERE c.id = ANY (v_rest);
        IF v_open IS NOT NULL THEN
            RAISE EXCEPTION 'card % came or was relisted between two statements', v_open[1]
                USING ERRCODE = '40001', HINT = 'run the transaction again';
        END IF;
        o_missing := nullif(ARRAY(SELECT unnest(v_rest) AS id EXCEPT SELECT unnest(o_delisted) ORDER BY id), '{}');
    END IF;
    IF o_counted IS NULL THEN
        RETURN;
    END IF;

    SELECT pg_catalog.array_agg(g.id ORDER BY g.id), pg_catalog.array_agg(g.n ORDER BY g.id) INTO v_ids, v_counts
    FROM (SELECT p.id, pg_catalog.sum(p.n)::bigint AS n FROM (SELECT unnest(o_projects) AS id, unnest(v_counts) AS n) AS p GROUP BY p.id) AS g;
    WITH written AS (
        UPDATE catalog.project_cards AS c SET popularity_views = c.popularity_views + u.n
        FROM unnest(v_ids, v_counts) AS u (id, n)
        WHERE c.id = u.id AND c.status <> 'Delisted'
        RETURNING c.id)
    SELECT pg_catalog.array_agg(w.id) INTO v_open FROM written AS w;

    IF coalesce(pg_catalog.cardinality(v_open), 0) < pg_catalog.cardinality(v_ids) THEN
        v_rest := ARRAY(SELECT unnest(v_ids) EXCEPT SELECT unnest(v_open));
        IF EXISTS (SELECT FROM catalog.project_cards AS c WHERE c.id = ANY (v_rest) AND c.status <> 'Delisted') THEN
            RAISE EXCEPTION 'a project card came or was relisted between two statements'
                USING ERRCODE = '40001', HINT = 'run the transaction again';
        END IF;
        SELECT pg_catalog.array_agg(r.id ORDER BY r.id) INTO o_projects_missing FROM unnest(v_rest) AS r (id)
        WHERE NOT EXISTS (SELECT FROM catalog.project_cards AS c WHERE c.id = r.id);
    END IF;
END
$$;
-- +goose StatementEnd

-- apply_views applies a batch of views, sorted by id: one call is one transaction. For each item
--   below the horizon of its lane       the record is finished: refused
--   p_marked_at older than marks_before refused: the ledger cannot prove the view new (callers send the greatest bigint for
--                                       a view without mark or with this record's own, the smallest for an earlier incarnation's)
--   else                                inserted; only those that went in move counters
-- The caller sends what it has at hand, so that it need not be found out here: of each lane the least offset in the batch, of each
-- object how many items are its own (p_objects, sorted, and p_counts), and null for p_marked_at where every mark passes. It also
-- guesses which cards are Delisted, because a right guess saves writing their views' rows twice: p_delisted are the objects, sorted, null
-- for none; their items are in lanes of their own, with p_frozen. With p_records nothing is guessed.
-- Refused and conflicting ids come back in o_refused. Without p_records, views without card are not applied (o_missing names
-- their objects) and dead ones not touched (o_dead): both come again with their records. With p_records they become pending,
-- and a dead view that comes by another record than its own is revived (D17), whatever its mark. Without p_counts, which takes
-- p_records, no card is touched and all of them become pending: their cards are locked.
-- p_distinct: no id comes twice, and none is expected in the ledger. The insert then goes without ON CONFLICT, at half the
-- cost; if it fails all the same, it is done again with.
-- +goose StatementBegin
CREATE FUNCTION vitrina.apply_views(p_epoch bigint, p_lanes integer[], p_frozen boolean[], p_least bigint[], p_lane_of smallint[], p_offsets bigint[],
    p_view_ids uuid[], p_object_ids uuid[], p_marked_at bigint[], p_objects uuid[], p_counts bigint[], p_delisted uuid[], p_distinct boolean,
    p_records bytea[], p_sources text[], p_durations bigint[], p_first_try interval,
    OUT o_refused uuid[], OUT o_dead uuid[],
    OUT o_applied uuid[], OUT o_applied_lanes integer[], OUT o_applied_offsets bigint[], OUT o_revived uuid[], -- with p_records only
    OUT o_counted uuid[], OUT o_projects uuid[], OUT o_delisted uuid[], OUT o_missing uuid[], OUT o_projects_missing uuid[],
    OUT o_delisted_projects uuid[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
AS $$
#variable_conflict error
DECLARE
    v_now timestamptz := pg_catalog.now();
    v_lanes integer[];
    v_horizons bigint[];
    v_marks_before bigint;
    v_above boolean;
    v_inserted boolean := false;
    v_lane_of smallint[] := p_lane_of;
    v_offsets bigint[] := p_offsets;
    v_ids uuid[] := p_view_ids;
    v_objects uuid[] := p_object_ids;
    v_states vitrina.view_state[];
    v_wrong uuid[];
    v_counted uuid[] := p_objects;
    v_counts bigint[] := p_counts;
    v_revived_objects uuid[];
    v_revived_lanes integer[];
    v_revived_offsets bigint[];
BEGIN
    PERFORM vitrina.require_epoch('popularity', p_epoch);
    PERFORM vitrina.enter_ledger(false);
    SELECT pg_catalog.array_agg(h.lane ORDER BY i.ord), pg_catalog.array_agg(h.horizon_offset ORDER BY i.ord),
        pg_catalog.bool_and((i.least >= h.horizon_offset) IS TRUE),
        pg_catalog.array_agg(CASE WHEN i.frozen THEN 'skipped_delisted' ELSE 'counted' END::vitrina.view_state ORDER BY i.ord)
    INTO v_lanes, v_horizons, v_above, v_states
    FROM unnest(p_lanes, p_least, p_frozen) WITH ORDINALITY AS i (lane, least, frozen, ord) JOIN vitrina.horizons AS h ON h.lane = i.lane;
    IF v_lanes IS DISTINCT FROM p_lanes THEN
        RAISE EXCEPTION 'a lane of % is not in vitrina.horizons', p_lanes
            USING ERRCODE = 'data_corrupted', HINT = 'rows of that table must not be deleted';
    END IF;

    IF NOT v_above OR p_marked_at IS NOT NULL THEN
        SELECT CASE WHEN pg_catalog.isfinite(l.marks_before) THEN pg_catalog.ceil(pg_catalog.date_part('epoch', l.marks_before))::bigint
                    ELSE -9223372036854775808 END
        INTO STRICT v_marks_before FROM vitrina.views_ledger AS l;
        SELECT pg_catalog.array_agg(i.lane_of), pg_catalog.array_agg(i.record_offset), pg_catalog.array_agg(i.view_id), pg_catalog.array_agg(i.object_id)
        INTO v_lane_of, v_offsets, v_ids, v_objects
        FROM (SELECT unnest(p_lane_of) AS lane_of, unnest(p_offsets) AS record_offset, unnest(p_view_ids) AS view_id, unnest(p_object_ids) AS object_id,
                unnest(coalesce(p_marked_at, pg_catalog.array_fill(9223372036854775807, ARRAY[pg_catalog.cardinality(p_view_ids)]))) AS marked_at) AS i
        WHERE i.record_offset >= v_horizons[i.lane_of] AND i.marked_at >= v_marks_before;
    END IF;

    -- unnest in the select list makes rows as they are wanted; in FROM it would write each array out first.
    IF p_distinct THEN
        BEGIN
            INSERT INTO vitrina.views (at, record_offset, view_id, object_id, state, lane)
            SELECT v_now, i.record_offset, i.view_id, i.object_id, v_states[i.lane_of], p_lanes[i.lane_of]
            FROM (SELECT unnest(v_lane_of) AS lane_of, unnest(v_offsets) AS record_offset, unnest(v_ids) AS view_id, unnest(v_objects) AS object_id) AS i;
            o_applied := v_ids;
            v_inserted := true;
        EXCEPTION WHEN unique_violation THEN
            v_inserted := false;
        END;
    END IF;
    IF NOT v_inserted THEN
        WITH new AS (
            INSERT INTO vitrina.views AS v (at, record_offset, view_id, object_id, state, lane)
            SELECT v_now, i.record_offset, i.view_id, i.object_id, v_states[i.lane_of], p_lanes[i.lane_of]
            FROM (SELECT unnest(v_lane_of) AS lane_of, unnest(v_offsets) AS record_offset, unnest(v_ids) AS view_id, unnest(v_objects) AS object_id) AS i
            ON CONFLICT (view_id) DO NOTHING
            RETURNING v.view_id, v.object_id, v.lane, v.record_offset)
        SELECT pg_catalog.array_agg(n.view_id), pg_catalog.array_agg(n.object_id), pg_catalog.array_agg(n.lane), pg_catalog.array_agg(n.record_offset)
        INTO o_applied, v_objects, o_applied_lanes, o_applied_offsets FROM new AS n;
    END IF;

    IF coalesce(pg_catalog.cardinality(o_applied), 0) < pg_catalog.cardinality(p_view_ids) THEN
        o_refused := ARRAY(SELECT unnest(p_view_ids) AS id EXCEPT SELECT unnest(o_applied) ORDER BY id);
        SELECT pg_catalog.array_agg(d.view_id) INTO o_dead FROM (
            SELECT l.view_id FROM vitrina.late_views AS l
            WHERE l.view_id = ANY (o_refused) AND l.next_try IS NULL
            ORDER BY l.view_id) AS d;
    END IF;
    IF o_dead IS NOT NULL AND p_records IS NOT NULL THEN
        -- Ledger rows are locked before late_views, as everywhere; a row that is dead under the lock stays so until the commit.
        PERFORM v.view_id FROM vitrina.views AS v WHERE v.view_id = ANY (o_dead) ORDER BY v.view_id FOR UPDATE;
        WITH chosen AS MATERIALIZED (
            SELECT DISTINCT ON (i.view_id) i.view_id, i.object_id, i.ord, i.record_offset, p_lanes[i.lane_of] AS lane
            FROM unnest(p_lane_of, p_offsets, p_view_ids, p_object_ids) WITH ORDINALITY AS i (lane_of, record_offset, view_id, object_id, ord)
            JOIN vitrina.views AS v ON v.view_id = i.view_id
            WHERE i.view_id = ANY (o_dead) AND v.state = 'dead' AND i.record_offset >= v_horizons[i.lane_of]
              AND (v.lane, v.record_offset) <> (p_lanes[i.lane_of], i.record_offset)
            ORDER BY i.view_id, i.ord),
        raised AS (
            UPDATE vitrina.late_views AS l
            SET since = v_now, next_try = v_now + p_first_try, letter_due = NULL, generation = l.generation + 1, attempts = 0,
                duration_seconds = p_durations[c.ord], view_source = p_sources[c.ord], code = NULL, reason = NULL, record = p_records[c.ord]
            FROM chosen AS c WHERE l.view_id = c.view_id),
        moved AS (
            INSERT INTO vitrina.moved_views (view_id, object_id)
            SELECT c.view_id, c.object_id FROM chosen AS c JOIN vitrina.views AS v ON v.view_id = c.view_id WHERE v.object_id <> c.object_id
            ON CONFLICT (view_id) DO UPDATE SET object_id = EXCLUDED.object_id),
        revived AS (
            UPDATE vitrina.views AS v SET at = v_now, record_offset = c.record_offset, object_id = c.object_id, state = 'counted', lane = c.lane
            FROM chosen AS c WHERE v.view_id = c.view_id
            RETURNING v.view_id, v.object_id, v.lane, v.record_offset)
        SELECT pg_catalog.array_agg(r.view_id), pg_catalog.array_agg(r.object_id), pg_catalog.array_agg(r.lane), pg_catalog.array_agg(r.record_offset)
        INTO o_revived, v_revived_objects, v_revived_lanes, v_revived_offsets FROM revived AS r;
        o_applied := o_applied || o_revived;
        v_objects := v_objects || v_revived_objects;
        o_applied_lanes := o_applied_lanes || v_revived_lanes;
        o_applied_offsets := o_applied_offsets || v_revived_offsets;
    END IF;

    IF o_refused IS NOT NULL THEN -- the caller counted those too
        SELECT pg_catalog.array_agg(g.id ORDER BY g.id), pg_catalog.array_agg(g.n ORDER BY g.id) INTO v_counted, v_counts
        FROM (SELECT o.id, pg_catalog.count(*) AS n FROM unnest(v_objects) AS o (id) GROUP BY o.id) AS g;
    END IF;
    IF p_counts IS NULL THEN
        o_missing := v_counted;
    ELSE
        SELECT p.o_counted, p.o_projects, p.o_delisted, p.o_missing, p.o_projects_missing, p.o_delisted_projects
        INTO o_counted, o_projects, o_delisted, o_missing, o_projects_missing, o_delisted_projects
        FROM vitrina.add_popularity(v_counted, v_counts) AS p;
    END IF;

    -- The rows went in as guessed; those whose card was otherwise, or is not there, are put right. IS TRUE keeps IN from becoming a
    -- join: it is a hash table then, asked before the row is looked for.
    IF o_delisted IS DISTINCT FROM p_delisted THEN
        v_wrong := ARRAY(SELECT unnest(o_delisted) EXCEPT SELECT unnest(p_delisted)) || ARRAY(SELECT unnest(p_delisted) EXCEPT SELECT unnest(o_delisted));
        UPDATE vitrina.views AS v
        SET state = CASE WHEN i.object_id IN (SELECT unnest(o_delisted)) THEN 'skipped_delisted' ELSE 'counted' END::vitrina.view_state
        FROM (SELECT unnest(o_applied) AS view_id, unnest(v_objects) AS object_id) AS i
        WHERE v.view_id = i.view_id AND (i.object_id IN (SELECT unnest(v_wrong))) IS TRUE;
    END IF;
    IF o_missing IS NOT NULL AND p_records IS NULL THEN
        DELETE FROM vitrina.views AS v USING (SELECT unnest(o_applied) AS view_id, unnest(v_objects) AS object_id) AS i
        WHERE v.view_id = i.view_id AND (i.object_id IN (SELECT unnest(o_missing))) IS TRUE;
    ELSIF o_missing IS NOT NULL THEN
        UPDATE vitrina.views AS v SET state = 'pending'
        FROM (SELECT unnest(o_applied) AS view_id, unnest(v_objects) AS object_id) AS i
        WHERE v.view_id = i.view_id AND (i.object_id IN (SELECT unnest(o_missing))) IS TRUE;
        INSERT INTO vitrina.late_views (view_id, since, next_try, duration_seconds, view_source, record)
        SELECT DISTINCT ON (i.view_id) i.view_id, v_now, v_now + p_first_try, i.duration_seconds, i.view_source, i.record
        FROM unnest(p_lane_of, p_offsets, p_view_ids, p_durations, p_sources, p_records) WITH ORDINALITY
            AS i (lane_of, record_offset, view_id, duration_seconds, view_source, record, ord)
        JOIN vitrina.views AS v ON v.view_id = i.view_id AND (v.lane, v.record_offset) = (p_lanes[i.lane_of], i.record_offset)
        WHERE v.state = 'pending' AND v.at = v_now AND i.view_id = ANY (o_applied)
        ORDER BY i.view_id, i.ord
        ON CONFLICT (view_id) DO NOTHING; -- a revived view has its row
    END IF;
    IF o_revived IS NOT NULL THEN
        DELETE FROM vitrina.late_views AS l USING vitrina.views AS v
        WHERE l.view_id = ANY (o_revived) AND v.view_id = l.view_id AND v.state IN ('counted', 'skipped_delisted');
    END IF;
    IF p_records IS NULL THEN
        o_applied := NULL;
        o_applied_lanes := NULL;
        o_applied_offsets := NULL;
    END IF;
END
$$;
-- +goose StatementEnd

-- reject_view stores a view that the database refuses to count as dead, with its letter due: what could be a lost view once
-- its letter is put back is then revived like any other (D17). It touches no card.
-- +goose StatementBegin
CREATE FUNCTION vitrina.reject_view(p_epoch bigint, p_lane integer, p_offset bigint, p_view_id uuid, p_object_id uuid, p_marked_at bigint,
    p_record bytea, p_source text, p_duration bigint, p_code text, p_reason text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict error
DECLARE
    v_now timestamptz := pg_catalog.now();
BEGIN
    PERFORM vitrina.require_epoch('popularity', p_epoch);
    PERFORM vitrina.enter_ledger(false);
    IF p_offset < (SELECT h.horizon_offset FROM vitrina.horizons AS h WHERE h.lane = p_lane) THEN
        RETURN false;
    END IF;
    UPDATE vitrina.views AS v SET at = v_now, record_offset = p_offset, object_id = p_object_id, lane = p_lane
    WHERE v.view_id = p_view_id AND v.state = 'dead' AND (v.lane, v.record_offset) <> (p_lane, p_offset);
    IF FOUND THEN
        UPDATE vitrina.late_views AS l
        SET since = v_now, letter_due = v_now, generation = l.generation + 1, attempts = 0, duration_seconds = p_duration,
            view_source = p_source, code = p_code, reason = p_reason, record = p_record
        WHERE l.view_id = p_view_id;
        RETURN true;
    END IF;
    INSERT INTO vitrina.views (at, record_offset, view_id, object_id, state, lane)
    SELECT v_now, p_offset, p_view_id, p_object_id, 'dead', p_lane FROM vitrina.views_ledger AS l
    WHERE NOT pg_catalog.isfinite(l.marks_before) OR p_marked_at >= pg_catalog.ceil(pg_catalog.date_part('epoch', l.marks_before))
    ON CONFLICT (view_id) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO vitrina.late_views (view_id, since, letter_due, duration_seconds, view_source, code, reason, record)
    VALUES (p_view_id, v_now, v_now, p_duration, p_source, p_code, p_reason, p_record);
    RETURN true;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION vitrina.reject_view(bigint, integer, bigint, uuid, uuid, bigint, bytea, text, bigint, text, text);
DROP FUNCTION vitrina.apply_views(bigint, integer[], boolean[], bigint[], smallint[], bigint[], uuid[], uuid[], bigint[], uuid[], bigint[], uuid[], boolean, bytea[], text[], bigint[], interval);
DROP FUNCTION vitrina.add_popularity(uuid[], bigint[]);
DROP FUNCTION vitrina.ensure_lanes(bigint[], boolean[], integer[], text[]);
DROP FUNCTION vitrina.enter_ledger(boolean);
DROP TABLE vitrina.views_ledger, vitrina.moved_views, vitrina.late_views, vitrina.views, vitrina.horizons;
DROP TYPE vitrina.view_state;
