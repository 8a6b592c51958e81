-- +goose Up
-- A card that another transaction keeps locked must delay its own views only. These functions find such cards without waiting for
-- them. Counting does not pay for it: they are asked once a wait for a lock has timed out.

-- locked_objects returns those of p_objects, sorted, whose card, or whose project's card, cannot be locked. Counters of views lock
-- cards too, for moments: the gate keeps them out meanwhile, or popular cards would always seem locked.
-- +goose StatementBegin
CREATE FUNCTION vitrina.locked_objects(p_objects uuid[]) RETURNS uuid[]
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
    v_objects uuid[];
    v_projects uuid[];
BEGIN
    PERFORM vitrina.enter_ledger(true);
    v_objects := ARRAY(SELECT c.id FROM catalog.property_object_cards AS c
        WHERE c.id = ANY (p_objects) AND c.status <> 'Delisted' ORDER BY c.id FOR NO KEY UPDATE SKIP LOCKED);
    v_projects := ARRAY(SELECT DISTINCT c.project_id FROM catalog.property_object_cards AS c WHERE c.id = ANY (v_objects));
    v_projects := ARRAY(SELECT c.id FROM catalog.project_cards AS c
        WHERE c.id = ANY (v_projects) AND c.status <> 'Delisted' ORDER BY c.id FOR NO KEY UPDATE SKIP LOCKED);
    RETURN ARRAY(SELECT c.id FROM catalog.property_object_cards AS c
        WHERE c.id = ANY (p_objects) AND c.status <> 'Delisted'
          AND (c.id NOT IN (SELECT unnest(v_objects))
               OR EXISTS (SELECT FROM catalog.project_cards AS p WHERE p.id = c.project_id AND p.status <> 'Delisted' AND p.id NOT IN (SELECT unnest(v_projects))))
        ORDER BY c.id);
END
$$;
-- +goose StatementEnd

-- postpone_views lets those of the given pending views that are due and whose cards are locked wait once more. It uses up no try: the
-- card is there. It returns them. Late rows are locked after cards here, which cannot wait for anybody: rows that are locked are skipped.
-- +goose StatementBegin
CREATE FUNCTION vitrina.postpone_views(p_epoch bigint, p_view_ids uuid[], p_wait interval) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict error
DECLARE
    v_now timestamptz := pg_catalog.now();
    v_locked uuid[];
    v_postponed uuid[];
BEGIN
    PERFORM vitrina.require_epoch('popularity', p_epoch);
    v_locked := vitrina.locked_objects(ARRAY(SELECT v.object_id FROM vitrina.views AS v WHERE v.view_id = ANY (p_view_ids)));
    WITH mine AS MATERIALIZED (
        SELECT l.view_id FROM vitrina.late_views AS l JOIN vitrina.views AS v ON v.view_id = l.view_id
        WHERE l.view_id = ANY (p_view_ids) AND l.next_try <= v_now AND v.object_id = ANY (v_locked)
        ORDER BY l.view_id FOR UPDATE OF l SKIP LOCKED),
    postponed AS (
        UPDATE vitrina.late_views AS l SET next_try = v_now + p_wait FROM mine AS m WHERE l.view_id = m.view_id
        RETURNING l.view_id)
    SELECT coalesce(pg_catalog.array_agg(p.view_id), '{}') INTO v_postponed FROM postponed AS p;
    RETURN v_postponed;
END
$$;
-- +goose StatementEnd

-- postpone_view lets a pending view wait once more, without using up a try.
-- +goose StatementBegin
CREATE FUNCTION vitrina.postpone_view(p_epoch bigint, p_view_id uuid, p_wait interval) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM vitrina.require_epoch('popularity', p_epoch);
    UPDATE vitrina.late_views SET next_try = pg_catalog.now() + p_wait WHERE view_id = p_view_id AND next_try IS NOT NULL;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION vitrina.postpone_view(bigint, uuid, interval);
DROP FUNCTION vitrina.postpone_views(bigint, uuid[], interval);
DROP FUNCTION vitrina.locked_objects(uuid[]);
