-- +goose Up
-- The boost sink's transaction (design E5; section 12, rules 6 to 8). Each function is volatile, so that every statement in
-- it takes a fresh READ COMMITTED snapshot: a statement that waited for a lock still has its old one, therefore rows are
-- locked in one statement and read in a later one. Locks are taken in one order everywhere: epoch, purchases by id, targets by
-- (kind, id), object cards by id, project cards by id.
--
-- Planner settings: only nested loops from the sorted arrays into an index take row locks in the arrays' order; a hash join, which
-- the planner prefers past some ten thousand ids, takes them in any order and deadlocks. Plans are made anew for each call
-- (1 ms): a cached one made while a table was nearly empty scans the whole table for each id once it has grown, until the next
-- ANALYZE. Where stale statistics could have the same effect, a lookup is written as LATERAL (… OFFSET 0), which can be nothing but
-- one index lookup for each row. Joins of two arrays are written as EXCEPT or GROUP BY: as nested loops they would be quadratic.

-- Makes missing target rows and locks all in (kind, id) order until the end of the transaction. Object rows are made only when
-- p_create_objects: their project's row, which everybody locks too, already keeps writers of one card apart.
-- +goose StatementBegin
CREATE FUNCTION vitrina.lock_targets(p_kinds smallint[], p_ids uuid[], p_create_objects boolean) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO vitrina.promotion_targets (kind, id)
    SELECT DISTINCT l.kind, l.id FROM unnest(p_kinds, p_ids) AS l(kind, id)
    WHERE l.kind = 1 OR p_create_objects
    ORDER BY l.kind, l.id
    ON CONFLICT DO NOTHING;

    PERFORM 1
    FROM (SELECT DISTINCT u.kind, u.id FROM unnest(p_kinds, p_ids) AS u(kind, id) ORDER BY u.kind, u.id) l
    CROSS JOIN LATERAL (
        SELECT FROM vitrina.promotion_targets t WHERE t.kind = l.kind AND t.id = l.id FOR NO KEY UPDATE
    ) t;
END
$$;
-- +goose StatementEnd

-- Writes object cards that are still as they were read, in the order of the arrays; returns those written. Status and project are
-- compared besides row_version: a writer that forgets to raise it must not get a boost meant for another status (INV-7).
-- p_skip_locked leaves out what another transaction has locked, instead of waiting for it.
-- +goose StatementBegin
CREATE FUNCTION vitrina.write_object_boosts(p_ids uuid[], p_row_versions bigint[], p_statuses text[], p_projects uuid[], p_boosts integer[],
    p_skip_locked boolean, OUT ids uuid[], OUT projects uuid[])
LANGUAGE plpgsql VOLATILE
SET enable_hashjoin = off AS $$
BEGIN
    IF p_skip_locked THEN
        SELECT array_agg(f.id), array_agg(f.row_version), array_agg(f.status), array_agg(f.project_id), array_agg(f.boost)
        INTO p_ids, p_row_versions, p_statuses, p_projects, p_boosts
        FROM (
            SELECT u.* FROM unnest(p_ids, p_row_versions, p_statuses, p_projects, p_boosts) AS u(id, row_version, status, project_id, boost)
            JOIN catalog.property_object_cards c ON c.id = u.id
            FOR NO KEY UPDATE OF c SKIP LOCKED
        ) f;
    END IF;
    WITH written AS (
        UPDATE catalog.property_object_cards AS c
        SET promotion_boost = u.boost, row_version = c.row_version + 1, updated_at = now()
        FROM unnest(p_ids, p_row_versions, p_statuses, p_projects, p_boosts) AS u(id, row_version, status, project_id, boost)
        WHERE c.id = u.id AND c.row_version = u.row_version AND c.status = u.status AND c.project_id = u.project_id
        RETURNING c.id, c.project_id
    )
    SELECT coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.project_id), '{}') INTO ids, projects FROM written w;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION vitrina.write_project_boosts(p_ids uuid[], p_row_versions bigint[], p_statuses text[], p_boosts integer[],
    p_skip_locked boolean) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE
SET enable_hashjoin = off AS $$
DECLARE
    v_ids uuid[];
BEGIN
    IF p_skip_locked THEN
        SELECT array_agg(f.id), array_agg(f.row_version), array_agg(f.status), array_agg(f.boost)
        INTO p_ids, p_row_versions, p_statuses, p_boosts
        FROM (
            SELECT u.* FROM unnest(p_ids, p_row_versions, p_statuses, p_boosts) AS u(id, row_version, status, boost)
            JOIN catalog.project_cards c ON c.id = u.id
            FOR NO KEY UPDATE OF c SKIP LOCKED
        ) f;
    END IF;
    WITH written AS (
        UPDATE catalog.project_cards AS c
        SET promotion_boost = u.boost, row_version = c.row_version + 1, updated_at = now()
        FROM unnest(p_ids, p_row_versions, p_statuses, p_boosts) AS u(id, row_version, status, boost)
        WHERE c.id = u.id AND c.row_version = u.row_version AND c.status = u.status
        RETURNING c.id
    )
    SELECT coalesce(array_agg(w.id), '{}') INTO v_ids FROM written w;
    RETURN v_ids;
END
$$;
-- +goose StatementEnd

-- Brings cards to the sums of their targets, which the caller has locked, and touches only those that differ.
-- p_objects: objects addressed themselves; p_object_projects: the project whose target was locked for each (null: it had no card);
-- p_cascade: projects all of whose objects are brought along; p_projects: project cards.
-- Published: own + project. Hidden: the same if any purchase ever named the card itself, else left as it is. Delisted: frozen
-- (D10, D11, D27; a project has no project above it).
-- A card and its sums are read in one statement that takes no locks, then written WHERE it is still as read; those that were not (or
-- are locked, with p_skip_locked) are read again at once, p_retries times, and then lost. moved: the card names another project than the one locked for it.
-- +goose StatementBegin
CREATE FUNCTION vitrina.write_boosts(p_objects uuid[], p_object_projects uuid[], p_cascade uuid[], p_projects uuid[], p_retries integer, p_skip_locked boolean,
    OUT objects uuid[], OUT object_projects uuid[], OUT projects uuid[],
    OUT lost_objects uuid[], OUT lost_object_projects uuid[], OUT lost_projects uuid[],
    OUT moved uuid[], OUT conflicts integer)
LANGUAGE plpgsql VOLATILE
SET enable_hashjoin = on AS $$ -- a catalog without an index on project_id is then scanned once, not once for each project
DECLARE
    v_cascade uuid[] := p_cascade;
    v_ids uuid[];
    v_row_versions bigint[];
    v_statuses text[];
    v_projects uuid[];
    v_boosts integer[];
    v_moved uuid[];
    v_written uuid[];
    v_written_projects uuid[];
BEGIN
    objects := '{}'; object_projects := '{}'; projects := '{}'; moved := '{}'; conflicts := 0;

    lost_objects := p_objects; lost_object_projects := p_object_projects;
    FOR try IN 0..p_retries LOOP
        EXIT WHEN cardinality(lost_objects) = 0 AND cardinality(v_cascade) = 0;
        SELECT array_agg(x.id) FILTER (WHERE NOT x.moved), array_agg(x.row_version) FILTER (WHERE NOT x.moved),
            array_agg(x.status) FILTER (WHERE NOT x.moved), array_agg(x.project_id) FILTER (WHERE NOT x.moved),
            array_agg(x.boost) FILTER (WHERE NOT x.moved), array_agg(x.id) FILTER (WHERE x.moved)
        INTO v_ids, v_row_versions, v_statuses, v_projects, v_boosts, v_moved
        FROM (
            SELECT c.*, coalesce(own.boost, 0) + c.project_boost AS boost
            FROM (
                SELECT DISTINCT ON (b.id) b.* FROM (
                    SELECT o.id, o.row_version, o.status, o.project_id, o.promotion_boost,
                        o.project_id IS DISTINCT FROM a.project_id AS moved, coalesce(project.boost, 0) AS project_boost
                    FROM unnest(lost_objects, lost_object_projects) AS a(id, project_id)
                    JOIN catalog.property_object_cards o ON o.id = a.id
                    LEFT JOIN LATERAL (
                        SELECT t.boost FROM vitrina.promotion_targets t WHERE t.kind = 1 AND t.id = o.project_id OFFSET 0
                    ) project ON true
                    UNION ALL
                    SELECT o.id, o.row_version, o.status, o.project_id, o.promotion_boost, false, a.boost
                    FROM (
                        SELECT u.id, coalesce(project.boost, 0) AS boost FROM unnest(v_cascade) AS u(id)
                        LEFT JOIN LATERAL (
                            SELECT t.boost FROM vitrina.promotion_targets t WHERE t.kind = 1 AND t.id = u.id OFFSET 0
                        ) project ON true
                    ) a
                    JOIN catalog.property_object_cards o ON o.project_id = a.id
                ) b ORDER BY b.id, b.moved
            ) c
            LEFT JOIN LATERAL (
                SELECT t.boost, t.named FROM vitrina.promotion_targets t WHERE t.kind = 2 AND t.id = c.id OFFSET 0
            ) own ON true
            WHERE c.status <> 'Delisted'
                AND (c.moved OR (
                    (c.status = 'Published' OR own.named)
                    AND c.promotion_boost IS DISTINCT FROM coalesce(own.boost, 0) + c.project_boost))
            ORDER BY c.id
        ) x;

        v_cascade := '{}'; lost_objects := '{}'; lost_object_projects := '{}';
        moved := moved || coalesce(v_moved, '{}');
        EXIT WHEN v_ids IS NULL;
        SELECT w.ids, w.projects INTO v_written, v_written_projects
        FROM vitrina.write_object_boosts(v_ids, v_row_versions, v_statuses, v_projects, v_boosts, p_skip_locked) w;
        objects := objects || v_written; object_projects := object_projects || v_written_projects;
        EXIT WHEN cardinality(v_written) = cardinality(v_ids);
        SELECT array_agg(l.id), array_agg(l.project_id) INTO lost_objects, lost_object_projects
        FROM (
            SELECT u.id, u.project_id FROM unnest(v_ids, v_projects) AS u(id, project_id)
            EXCEPT
            SELECT w.id, w.project_id FROM unnest(v_written, v_written_projects) AS w(id, project_id)
            ORDER BY id
        ) l;
        conflicts := conflicts + cardinality(lost_objects);
    END LOOP;

    lost_projects := p_projects;
    FOR try IN 0..p_retries LOOP
        EXIT WHEN cardinality(lost_projects) = 0;
        SELECT array_agg(x.id), array_agg(x.row_version), array_agg(x.status), array_agg(x.boost)
        INTO v_ids, v_row_versions, v_statuses, v_boosts
        FROM (
            SELECT c.id, c.row_version, c.status, coalesce(own.boost, 0) AS boost
            FROM unnest(lost_projects) AS a(id)
            JOIN catalog.project_cards c ON c.id = a.id
            LEFT JOIN LATERAL (
                SELECT t.boost, t.named FROM vitrina.promotion_targets t WHERE t.kind = 1 AND t.id = c.id OFFSET 0
            ) own ON true
            WHERE c.status <> 'Delisted' AND (c.status = 'Published' OR own.named)
                AND c.promotion_boost IS DISTINCT FROM coalesce(own.boost, 0)
            ORDER BY c.id
        ) x;

        lost_projects := '{}';
        EXIT WHEN v_ids IS NULL;
        v_written := vitrina.write_project_boosts(v_ids, v_row_versions, v_statuses, v_boosts, p_skip_locked);
        projects := projects || v_written;
        EXIT WHEN cardinality(v_written) = cardinality(v_ids);
        SELECT array_agg(l.id) INTO lost_projects
        FROM (SELECT u.id FROM unnest(v_ids) AS u(id) EXCEPT SELECT w.id FROM unnest(v_written) AS w(id) ORDER BY id) l;
        conflicts := conflicts + cardinality(lost_projects);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION vitrina.note_dirty_cards(p_kind smallint, p_ids uuid[], p_reason text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO vitrina.dirty_cards AS d (kind, id, reason)
    SELECT DISTINCT p_kind, u.id, p_reason FROM unnest(p_ids) AS u(id) ORDER BY u.id
    ON CONFLICT (kind, id) DO UPDATE SET seq = nextval('vitrina.card_change_seq'), reason = EXCLUDED.reason;
END
$$;
-- +goose StatementEnd

-- Sums targets again and brings every card they reach along. Cards that could not be written become dirty in the same
-- transaction. p_cards = false leaves the cards to the caller (a rebuild that writes all of them at the end).
-- +goose StatementBegin
CREATE FUNCTION vitrina.settle_targets(p_kinds smallint[], p_ids uuid[], p_cards boolean, p_retries integer, p_skip_locked boolean,
    OUT objects uuid[], OUT object_projects uuid[], OUT projects uuid[],
    OUT lost_objects uuid[], OUT lost_object_projects uuid[], OUT lost_projects uuid[],
    OUT moved uuid[], OUT conflicts integer)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_projects uuid[];
    v_objects uuid[];
    v_object_projects uuid[];
BEGIN
    SELECT coalesce(array_agg(t.id), '{}') INTO v_projects FROM unnest(p_kinds, p_ids) AS t(kind, id) WHERE t.kind = 1;
    SELECT coalesce(array_agg(t.id), '{}'), coalesce(array_agg(o.project_id), '{}') INTO v_objects, v_object_projects
    FROM unnest(p_kinds, p_ids) AS t(kind, id)
    LEFT JOIN catalog.property_object_cards o ON o.id = t.id
    WHERE t.kind = 2;

    -- The projects of objects are locked with them: a card's two sums never change between its read and our commit.
    PERFORM vitrina.lock_targets(
        p_kinds || array_fill(1::smallint, ARRAY[cardinality(array_remove(v_object_projects, NULL))]),
        p_ids || array_remove(v_object_projects, NULL), true);

    UPDATE vitrina.promotion_targets AS t SET boost = s.boost, named = s.named
    FROM unnest(p_kinds, p_ids) AS l(kind, id)
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(c.boost_weight), 0)::integer AS boost,
            EXISTS (SELECT FROM vitrina.contributions e WHERE e.kind = l.kind AND e.target_id = l.id) AS named
        FROM vitrina.contributions c WHERE c.kind = l.kind AND c.target_id = l.id AND c.active
    ) s
    WHERE t.kind = l.kind AND t.id = l.id AND (t.boost <> s.boost OR t.named <> s.named);

    IF NOT p_cards THEN
        conflicts := 0;
        RETURN;
    END IF;
    SELECT w.* INTO objects, object_projects, projects, lost_objects, lost_object_projects, lost_projects, moved, conflicts
    FROM vitrina.write_boosts(v_objects, v_object_projects, v_projects, v_projects, p_retries, p_skip_locked) w;
    IF cardinality(lost_objects) + cardinality(lost_projects) + cardinality(moved) > 0 THEN
        PERFORM vitrina.note_dirty_cards(1::smallint, lost_projects, 'row_version');
        PERFORM vitrina.note_dirty_cards(2::smallint, lost_objects, 'row_version');
        PERFORM vitrina.note_dirty_cards(2::smallint, moved, 'moved');
    END IF;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION vitrina.settle_targets(smallint[], uuid[], boolean, integer, boolean);
DROP FUNCTION vitrina.note_dirty_cards(smallint, uuid[], text);
DROP FUNCTION vitrina.write_boosts(uuid[], uuid[], uuid[], uuid[], integer, boolean);
DROP FUNCTION vitrina.write_project_boosts(uuid[], bigint[], text[], integer[], boolean);
DROP FUNCTION vitrina.write_object_boosts(uuid[], bigint[], text[], uuid[], integer[], boolean);
DROP FUNCTION vitrina.lock_targets(smallint[], uuid[], boolean);
