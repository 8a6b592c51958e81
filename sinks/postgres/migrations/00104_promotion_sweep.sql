-- +goose Up
-- One step of the sweep each: rows in key order from (p_kind, p_id) on, p_limit of them, read without locks. rows: how many there were;
-- (last_kind, last_id): the last one; (kinds, ids): those that differ from the replica, to be judged again under locks before they are
-- written. Planner settings and OFFSET 0: see 00102.

-- Sums that are not those of the contributions.
-- +goose StatementBegin
CREATE FUNCTION vitrina.sweep_sums(p_kind smallint, p_id uuid, p_limit integer,
    OUT rows integer, OUT last_kind smallint, OUT last_id uuid, OUT kinds smallint[], OUT ids uuid[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    SELECT count(*), (array_agg(x.kind ORDER BY x.kind DESC, x.id DESC))[1], (array_agg(x.id ORDER BY x.kind DESC, x.id DESC))[1],
        array_agg(x.kind) FILTER (WHERE x.differs), array_agg(x.id) FILTER (WHERE x.differs)
    INTO rows, last_kind, last_id, kinds, ids
    FROM (
        SELECT t.kind, t.id,
            t.boost <> coalesce((SELECT sum(c.boost_weight) FROM vitrina.contributions c WHERE c.kind = t.kind AND c.target_id = t.id AND c.active), 0)
            OR t.named <> EXISTS (SELECT FROM vitrina.contributions c WHERE c.kind = t.kind AND c.target_id = t.id OFFSET 0) AS differs
        FROM (
            SELECT p.kind, p.id, p.boost, p.named FROM vitrina.promotion_targets p
            WHERE (p.kind, p.id) >= (p_kind, p_id) ORDER BY p.kind, p.id LIMIT p_limit
        ) t
    ) x;
END
$$;
-- +goose StatementEnd

-- Contributions whose target has no row.
-- +goose StatementBegin
CREATE FUNCTION vitrina.sweep_targets(p_kind smallint, p_id uuid, p_limit integer,
    OUT rows integer, OUT last_kind smallint, OUT last_id uuid, OUT kinds smallint[], OUT ids uuid[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    SELECT count(*), (array_agg(x.kind ORDER BY x.kind DESC, x.id DESC))[1], (array_agg(x.id ORDER BY x.kind DESC, x.id DESC))[1],
        array_agg(x.kind) FILTER (WHERE x.differs), array_agg(x.id) FILTER (WHERE x.differs)
    INTO rows, last_kind, last_id, kinds, ids
    FROM (
        SELECT c.kind, c.id, t.kind IS NULL AS differs
        FROM (
            SELECT DISTINCT c.kind, c.target_id AS id FROM vitrina.contributions c
            WHERE (c.kind, c.target_id) >= (p_kind, p_id) ORDER BY 1, 2 LIMIT p_limit
        ) c
        LEFT JOIN LATERAL (SELECT t.kind FROM vitrina.promotion_targets t WHERE t.kind = c.kind AND t.id = c.id OFFSET 0) t ON true
    ) x;
END
$$;
-- +goose StatementEnd

-- Project cards whose boost is not what write_boosts would make it.
-- +goose StatementBegin
CREATE FUNCTION vitrina.sweep_projects(p_kind smallint, p_id uuid, p_limit integer,
    OUT rows integer, OUT last_kind smallint, OUT last_id uuid, OUT kinds smallint[], OUT ids uuid[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    SELECT count(*), 1, (array_agg(x.id ORDER BY x.id DESC))[1],
        array_agg(1::smallint) FILTER (WHERE x.differs), array_agg(x.id) FILTER (WHERE x.differs)
    INTO rows, last_kind, last_id, kinds, ids
    FROM (
        SELECT c.id, c.status <> 'Delisted' AND (c.status = 'Published' OR own.named)
            AND c.promotion_boost IS DISTINCT FROM coalesce(own.boost, 0) AS differs
        FROM (
            SELECT p.id, p.status, p.promotion_boost FROM catalog.project_cards p
            WHERE p_kind <= 1 AND p.id >= p_id ORDER BY p.id LIMIT p_limit
        ) c
        LEFT JOIN LATERAL (SELECT t.boost, t.named FROM vitrina.promotion_targets t WHERE t.kind = 1 AND t.id = c.id OFFSET 0) own ON true
    ) x;
END
$$;
-- +goose StatementEnd

-- The same for object cards.
-- +goose StatementBegin
CREATE FUNCTION vitrina.sweep_objects(p_kind smallint, p_id uuid, p_limit integer,
    OUT rows integer, OUT last_kind smallint, OUT last_id uuid, OUT kinds smallint[], OUT ids uuid[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    SELECT count(*), 2, (array_agg(x.id ORDER BY x.id DESC))[1],
        array_agg(2::smallint) FILTER (WHERE x.differs), array_agg(x.id) FILTER (WHERE x.differs)
    INTO rows, last_kind, last_id, kinds, ids
    FROM (
        SELECT c.id, c.status <> 'Delisted' AND (c.status = 'Published' OR own.named)
            AND c.promotion_boost IS DISTINCT FROM coalesce(own.boost, 0) + coalesce(project.boost, 0) AS differs
        FROM (
            SELECT o.id, o.status, o.project_id, o.promotion_boost FROM catalog.property_object_cards o
            WHERE p_kind <= 2 AND o.id >= p_id ORDER BY o.id LIMIT p_limit
        ) c
        LEFT JOIN LATERAL (SELECT t.boost, t.named FROM vitrina.promotion_targets t WHERE t.kind = 2 AND t.id = c.id OFFSET 0) own ON true
        LEFT JOIN LATERAL (SELECT t.boost FROM vitrina.promotion_targets t WHERE t.kind = 1 AND t.id = c.project_id OFFSET 0) project ON true
    ) x;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION vitrina.sweep_objects(smallint, uuid, integer);
DROP FUNCTION vitrina.sweep_projects(smallint, uuid, integer);
DROP FUNCTION vitrina.sweep_targets(smallint, uuid, integer);
DROP FUNCTION vitrina.sweep_sums(smallint, uuid, integer);
