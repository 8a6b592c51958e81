-- +goose Up
-- Pruning (design E4, section 12, rule 2). A counted or skipped row may go once no record can come that needs it to be told
-- from a new view. Below the horizon every record is a duplicate without it. At or above it, a record is stopped by its mark,
-- unless that mark is its own (or young): such a record was processed before the row's record was finished and its mark
-- durable. So two steps, as in epoch-based reclamation:
--   1. at a checkpoint's time, the ends of all partitions are noted; once the group has committed up to them, every record that
--      existed at that time is finished, those that made the rows older than the checkpoint among them;
--   2. that moment is the next checkpoint; once the group has passed its ends too, every record is finished that could have been
--      processed while a mark was not durable yet.
-- Rows older than the first checkpoint (and than the window) may then go, and marks older than the second one prove nothing.

-- prepare_pruning moves the horizons up to the group's committed offsets and settles what may be pruned. p_committed and p_ends
-- are those of all partitions of the source and the loop topic, the committed offsets read first, both after p_observed_at, a
-- time of this database. It waits for the transactions that are counting and holds up those that follow for a moment.
-- +goose StatementBegin
CREATE FUNCTION vitrina.prepare_pruning(p_epoch bigint, p_incarnations bigint[], p_loops boolean[], p_partitions integer[], p_topics text[],
    p_committed bigint[], p_ends bigint[], p_observed_at timestamptz, p_window interval, p_margin interval,
    OUT o_before timestamptz, OUT o_blocks bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict error
DECLARE
    v_lanes integer[];
    v_ledger vitrina.views_ledger;
    v_now timestamptz;
    v_passed boolean;
BEGIN
    PERFORM vitrina.require_epoch('popularity', p_epoch);
    PERFORM vitrina.enter_ledger(true);
    SELECT * INTO STRICT v_ledger FROM vitrina.views_ledger AS l FOR UPDATE;
    IF v_ledger.replaying THEN
        RETURN;
    END IF;
    v_now := pg_catalog.clock_timestamp();
    v_lanes := vitrina.ensure_lanes(p_incarnations, p_loops, p_partitions, p_topics);

    SELECT v_ledger.checkpoint_at IS NOT NULL AND pg_catalog.bool_and(h.checkpoint_end IS NOT NULL AND i.committed >= h.checkpoint_end)
    INTO v_passed
    FROM unnest(v_lanes, p_committed) AS i (lane, committed) JOIN vitrina.horizons AS h ON h.lane = i.lane;

    IF v_passed THEN
        IF v_ledger.previous_at IS NOT NULL THEN
            v_ledger.safe_before := v_ledger.previous_at;
            v_ledger.safe_marks := v_ledger.checkpoint_marks;
        END IF;
        v_ledger.previous_at := v_ledger.checkpoint_at;
    END IF;
    IF v_passed OR v_ledger.checkpoint_at IS NULL OR EXISTS (
        SELECT FROM vitrina.horizons AS h WHERE h.lane = ANY (v_lanes) AND h.checkpoint_end IS NULL) THEN
        IF NOT v_passed THEN
            v_ledger.previous_at := NULL; -- the first checkpoint, or a partition that the last one did not know
        END IF;
        v_ledger.checkpoint_at := p_observed_at;
        v_ledger.checkpoint_marks := v_now;
        UPDATE vitrina.horizons AS h SET checkpoint_end = i.end_offset
        FROM unnest(v_lanes, p_ends) AS i (lane, end_offset) WHERE h.lane = i.lane;
    END IF;

    UPDATE vitrina.horizons AS h SET horizon_offset = greatest(h.horizon_offset, i.committed), seen_at = v_now
    FROM unnest(v_lanes, p_committed) AS i (lane, committed) WHERE h.lane = i.lane;
    -- A topic id that the cluster has not had for a whole window: whatever still comes of it is finished.
    UPDATE vitrina.horizons AS h SET horizon_offset = 9223372036854775807
    WHERE h.seen_at < v_now - p_window AND NOT h.lane = ANY (v_lanes);

    o_before := greatest(v_ledger.pruned_before, least(v_ledger.safe_before, v_now - p_window));
    UPDATE vitrina.views_ledger AS l
    SET pruned_before = o_before,
        marks_before = CASE WHEN pg_catalog.isfinite(o_before) THEN greatest(l.marks_before, v_ledger.safe_marks + p_margin) ELSE l.marks_before END,
        previous_at = v_ledger.previous_at, checkpoint_at = v_ledger.checkpoint_at, checkpoint_marks = v_ledger.checkpoint_marks,
        safe_before = v_ledger.safe_before, safe_marks = v_ledger.safe_marks, passed_at = v_now;
    o_blocks := pg_catalog.pg_relation_size('vitrina.views') / pg_catalog.current_setting('block_size')::bigint;
    IF NOT pg_catalog.isfinite(o_before) THEN
        o_before := NULL;
    END IF;
END
$$;
-- +goose StatementEnd

-- prune_views deletes what may go from some pages of the ledger. It reads them in physical order, so it needs no index. It does
-- not take the gate: what it deletes was settled by prepare_pruning, and every count that began since knows.
-- +goose StatementBegin
CREATE FUNCTION vitrina.prune_views(p_epoch bigint, p_from bigint, p_to bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
SET enable_indexscan = off
AS $$
DECLARE
    v_from tid := pg_catalog.format('(%s,0)', p_from)::tid;
    v_to tid := pg_catalog.format('(%s,0)', p_to)::tid;
    v_lanes integer[];
    v_horizons bigint[];
    v_before timestamptz;
    v_pruned bigint;
BEGIN
    PERFORM vitrina.require_epoch('popularity', p_epoch);
    SELECT l.pruned_before INTO v_before FROM vitrina.views_ledger AS l WHERE NOT l.replaying; -- null prunes nothing
    SELECT pg_catalog.array_agg(h.horizon_offset ORDER BY s.lane) INTO v_horizons -- by lane number, null where there is no such lane
    FROM pg_catalog.generate_series(1, (SELECT pg_catalog.max(h.lane) FROM vitrina.horizons AS h)) AS s (lane)
    LEFT JOIN vitrina.horizons AS h ON h.lane = s.lane;
    DELETE FROM vitrina.views AS v
    WHERE v.ctid >= v_from AND v.ctid < v_to AND v.at < v_before
      AND v.state IN ('counted', 'skipped_delisted') AND v.record_offset < v_horizons[v.lane];
    GET DIAGNOSTICS v_pruned = ROW_COUNT;
    RETURN v_pruned;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION vitrina.prune_views(bigint, bigint, bigint);
DROP FUNCTION vitrina.prepare_pruning(bigint, bigint[], boolean[], integer[], text[], bigint[], bigint[], timestamptz, interval, interval);
