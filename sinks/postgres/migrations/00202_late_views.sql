-- +goose Up
-- The retry worker's transactions. Lock order: epoch, late_views (skipping rows that another worker has), ledger, object cards,
-- project cards. apply_views locks late rows only of dead views, retry_views only of pending ones, so the two never cross.

-- retry_views looks once more for the cards of the given pending views that are due. Those found are counted or skipped, the
-- others wait for their next try, or are dead after the last one, with their letter due. p_delays are the waits before each try.
-- +goose StatementBegin
CREATE FUNCTION vitrina.retry_views(p_epoch bigint, p_view_ids uuid[], p_delays interval[])
RETURNS TABLE (view_id uuid, object_id uuid, project_id uuid, state vitrina.view_state, attempts integer,
    project_missing boolean, view_source text, duration_seconds bigint)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := pg_catalog.now();
    v_ids uuid[];
    v_objects uuid[];
    v_distinct uuid[];
    v_counts bigint[];
    v_attempts integer[];
    v_sources text[];
    v_durations bigint[];
    v_counted uuid[];
    v_projects uuid[];
    v_delisted uuid[];
    v_delisted_projects uuid[];
    v_projects_missing uuid[];
BEGIN
    PERFORM vitrina.require_epoch('popularity', p_epoch);
    SELECT pg_catalog.array_agg(d.view_id), pg_catalog.array_agg(d.attempts), pg_catalog.array_agg(d.view_source), pg_catalog.array_agg(d.duration_seconds)
    INTO v_ids, v_attempts, v_sources, v_durations
    FROM (SELECT l.view_id, l.attempts, l.view_source, l.duration_seconds FROM vitrina.late_views AS l
          WHERE l.view_id = ANY (p_view_ids) AND l.next_try <= v_now
          ORDER BY l.view_id FOR UPDATE SKIP LOCKED) AS d;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    SELECT pg_catalog.array_agg(v.object_id ORDER BY i.ord) INTO v_objects
    FROM unnest(v_ids) WITH ORDINALITY AS i (id, ord) JOIN vitrina.views AS v ON v.view_id = i.id AND v.state = 'pending';
    IF coalesce(pg_catalog.cardinality(v_objects), 0) <> pg_catalog.cardinality(v_ids) THEN
        RAISE EXCEPTION 'vitrina.late_views names pending views that vitrina.views does not'
            USING ERRCODE = 'data_corrupted', HINT = 'neither table may be changed by hand';
    END IF;

    SELECT pg_catalog.array_agg(g.id ORDER BY g.id), pg_catalog.array_agg(g.n ORDER BY g.id) INTO v_distinct, v_counts
    FROM (SELECT o.id, pg_catalog.count(*) AS n FROM unnest(v_objects) AS o (id) GROUP BY o.id) AS g;
    SELECT p.o_counted, p.o_projects, p.o_delisted, p.o_delisted_projects, p.o_projects_missing
    INTO v_counted, v_projects, v_delisted, v_delisted_projects, v_projects_missing
    FROM vitrina.add_popularity(v_distinct, v_counts) AS p;

    RETURN QUERY
    WITH judged AS MATERIALIZED (
        SELECT i.id, i.object_id, c.project_id, i.attempts + 1 AS attempts, i.view_source, i.duration_seconds,
            CASE WHEN c.project_id IS NOT NULL THEN 'counted'
                 WHEN i.object_id = ANY (v_delisted) THEN 'skipped_delisted'
                 WHEN i.attempts + 1 >= pg_catalog.cardinality(p_delays) THEN 'dead'
                 ELSE 'pending' END::vitrina.view_state AS state
        FROM unnest(v_ids, v_objects, v_attempts, v_sources, v_durations) AS i (id, object_id, attempts, view_source, duration_seconds)
        LEFT JOIN LATERAL (SELECT v_projects[pg_catalog.array_position(v_counted, i.object_id)] AS project_id) AS c ON true),
    ledger AS (
        UPDATE vitrina.views AS v SET at = v_now, state = j.state
        FROM judged AS j WHERE v.view_id = j.id AND j.state <> 'pending'),
    settled AS (
        DELETE FROM vitrina.late_views AS l USING judged AS j
        WHERE l.view_id = j.id AND j.state IN ('counted', 'skipped_delisted')),
    late AS (
        UPDATE vitrina.late_views AS l
        SET attempts = j.attempts,
            next_try = CASE WHEN j.state = 'pending' THEN v_now + p_delays[j.attempts + 1] END,
            letter_due = CASE WHEN j.state = 'dead' THEN v_now END,
            code = CASE WHEN j.state = 'dead' THEN 'CATALOG_SYNC_PROPERTY_OBJECT_NOT_FOUND' END,
            reason = CASE WHEN j.state = 'dead' THEN pg_catalog.format('view %s: property object %s has no card after %s tries in %s',
                j.id, j.object_id, j.attempts + 1, pg_catalog.date_trunc('second', v_now - l.since)) END
        FROM judged AS j WHERE l.view_id = j.id AND j.state IN ('pending', 'dead'))
    SELECT j.id, j.object_id, coalesce(j.project_id, v_delisted_projects[pg_catalog.array_position(v_delisted, j.object_id)]), j.state, j.attempts, coalesce(j.project_id = ANY (v_projects_missing), false),
        j.view_source, j.duration_seconds
    FROM judged AS j;
END
$$;
-- +goose StatementEnd

-- bury_view makes one pending view dead with another reason: the database refuses to count it.
-- +goose StatementBegin
CREATE FUNCTION vitrina.bury_view(p_epoch bigint, p_view_id uuid, p_code text, p_reason text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now timestamptz := pg_catalog.now();
BEGIN
    PERFORM vitrina.require_epoch('popularity', p_epoch);
    UPDATE vitrina.late_views AS l SET attempts = l.attempts + 1, next_try = NULL, letter_due = v_now, code = p_code, reason = p_reason
    WHERE l.view_id = p_view_id AND l.next_try IS NOT NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE vitrina.views AS v SET at = v_now, state = 'dead' WHERE v.view_id = p_view_id;
    RETURN true;
END
$$;
-- +goose StatementEnd

-- claim_letters returns letters that are due and leases them to the caller: the letter of a caller that dies is due again
-- when the lease is over, so a crash repeats a letter and never loses one.
-- +goose StatementBegin
CREATE FUNCTION vitrina.claim_letters(p_epoch bigint, p_limit integer, p_lease interval)
RETURNS TABLE (view_id uuid, generation integer, tries integer, code text, reason text, record bytea,
    object_id uuid, view_source text, duration_seconds bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    PERFORM vitrina.require_epoch('popularity', p_epoch);
    RETURN QUERY
    WITH due AS MATERIALIZED (
        SELECT l.view_id FROM vitrina.late_views AS l
        WHERE l.letter_due <= pg_catalog.now() ORDER BY l.letter_due, l.view_id LIMIT p_limit FOR UPDATE SKIP LOCKED)
    UPDATE vitrina.late_views AS l SET letter_due = pg_catalog.now() + p_lease
    FROM due WHERE l.view_id = due.view_id
    RETURNING l.view_id, l.generation, l.attempts + 1, l.code, l.reason, l.record,
        (SELECT v.object_id FROM vitrina.views AS v WHERE v.view_id = l.view_id), l.view_source, l.duration_seconds;
END
$$;
-- +goose StatementEnd

-- note_letters notes letters as sent. A view revived since its letter was claimed has another generation: the note is not
-- about it, and a second death writes a second letter. It needs no epoch: it can only say what is true.
-- +goose StatementBegin
CREATE FUNCTION vitrina.note_letters(p_view_ids uuid[], p_generations integer[]) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    WITH mine AS MATERIALIZED (
        SELECT l.view_id FROM vitrina.late_views AS l
        JOIN unnest(p_view_ids, p_generations) AS i (view_id, generation) ON i.view_id = l.view_id AND i.generation = l.generation
        WHERE l.letter_due IS NOT NULL ORDER BY l.view_id FOR UPDATE OF l),
    noted AS (
        UPDATE vitrina.late_views AS l SET letter_due = NULL
        FROM mine, unnest(p_view_ids, p_generations) AS i (view_id, generation)
        WHERE l.view_id = mine.view_id AND i.view_id = l.view_id AND i.generation = l.generation AND l.letter_due IS NOT NULL
        RETURNING 1)
    SELECT pg_catalog.count(*) FROM noted
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION vitrina.note_letters(uuid[], integer[]);
DROP FUNCTION vitrina.claim_letters(bigint, integer, interval);
DROP FUNCTION vitrina.bury_view(bigint, uuid, text, text);
DROP FUNCTION vitrina.retry_views(bigint, uuid[], interval[]);
