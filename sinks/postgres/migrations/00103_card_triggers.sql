-- +goose Up
-- How the recompute learns of cards that came, or changed status or project: triggers on the catalog's tables note them in
-- vitrina.changed_cards. Boosts and counters never fire them.

-- Finds the table behind catalog.project_cards or catalog.property_object_cards and what its columns id, status and project_id are
-- called there, through any number of simple views. reason says why it cannot be found.
-- +goose StatementBegin
CREATE FUNCTION vitrina.card_table(p_card text, p_columns text[], OUT relation oid, OUT columns text[], OUT reason text)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_kind "char";
    v_rule text;
    v_origins text[];
    v_names text[];
    v_tables text[];
BEGIN
    relation := to_regclass(p_card);
    columns := p_columns;
    LOOP
        SELECT c.relkind INTO v_kind FROM pg_class c WHERE c.oid = relation;
        IF v_kind IS NULL THEN
            reason := format('%s does not exist', p_card);
            RETURN;
        ELSIF v_kind IN ('r', 'p') THEN
            SELECT array_agg(u.name) INTO v_names FROM unnest(columns) AS u(name)
            WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = relation AND a.attname = u.name AND NOT a.attisdropped);
            IF v_names IS NOT NULL THEN
                reason := format('table %s has no column %s', relation::regclass, v_names[1]);
            END IF;
            RETURN;
        ELSIF v_kind <> 'v' THEN
            reason := format('%s is neither a table nor a view', relation::regclass);
            RETURN;
        END IF;

        -- The rule's parse tree names, for each output column that is a plain column, its table and number.
        SELECT r.ev_action::text INTO v_rule FROM pg_rewrite r WHERE r.ev_class = relation AND r.rulename = '_RETURN';
        v_names := '{}';
        v_tables := '{}';
        FOR i IN 1..cardinality(columns) LOOP
            SELECT array_agg(m[1] || ' ' || m[2]) INTO v_origins
            FROM regexp_matches(v_rule, ':resname ' || columns[i] || ' :ressortgroupref \d+ :resorigtbl (\d+) :resorigcol (\d+) ', 'g') AS m;
            IF v_origins IS NULL OR cardinality(v_origins) <> 1 OR v_origins[1] LIKE '0 %' THEN
                reason := format('column %s of view %s is no plain column of one table', columns[i], relation::regclass);
                RETURN;
            END IF;
            v_tables := v_tables || split_part(v_origins[1], ' ', 1);
            v_names := v_names || (SELECT a.attname::text FROM pg_attribute a
                WHERE a.attrelid = split_part(v_origins[1], ' ', 1)::oid AND a.attnum = split_part(v_origins[1], ' ', 2)::smallint);
        END LOOP;
        IF v_tables[1] <> ALL (v_tables) THEN
            reason := format('view %s takes %s from several tables', relation::regclass, array_to_string(columns, ', '));
            RETURN;
        END IF;
        relation := v_tables[1]::oid;
        columns := v_names;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Puts the triggers on the tables of both kinds of card. Safe to repeat: a table that has them is not even locked. Called after
-- every migration and by each sink at its start and from time to time, because the catalog may recreate its tables.
-- state: present, installed (now; what changed before is for a sweep, which becomes due), unavailable (detail says why; only the sweep finds changes).
-- +goose StatementBegin
CREATE FUNCTION vitrina.install_card_triggers() RETURNS TABLE (card text, target text, state text, detail text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_card record;
    v_table record;
    v_name text;
    v_old record;
    v_changed text;
BEGIN
    FOR v_card IN SELECT * FROM (VALUES
        (1::smallint, 'catalog.project_cards', ARRAY['id', 'status']),
        (2::smallint, 'catalog.property_object_cards', ARRAY['id', 'status', 'project_id'])) AS v(kind, name, columns)
    LOOP
        card := v_card.name;
        target := NULL;
        detail := '';
        SELECT t.* INTO v_table FROM vitrina.card_table(v_card.name, v_card.columns) t;
        IF v_table.reason IS NOT NULL THEN
            state := 'unavailable';
            detail := v_table.reason;
            RETURN NEXT;
            CONTINUE;
        END IF;
        target := v_table.relation::regclass::text;
        -- The name holds what the triggers were made for: other columns get triggers of another name.
        v_name := 'vitrina_' || CASE v_card.kind WHEN 1 THEN 'project' ELSE 'object' END || '_card_'
            || left(md5(array_to_string(v_table.columns, ',')), 8);
        IF (SELECT count(*) FROM pg_trigger t
            WHERE t.tgrelid = v_table.relation AND t.tgname IN (v_name || '_insert', v_name || '_update') AND t.tgenabled <> 'D') = 2 THEN
            state := 'present';
            RETURN NEXT;
            CONTINUE;
        END IF;

        SELECT string_agg(format('OLD.%1$I IS DISTINCT FROM NEW.%1$I', c.name), ' OR ') INTO v_changed
        FROM unnest(v_table.columns) AS c(name);
        BEGIN
            -- CREATE TRIGGER waits for every writer of the table and stops those behind it: not for long.
            PERFORM set_config('lock_timeout', '300ms', true);
            -- SECURITY DEFINER: the catalog's roles need no rights here; every name in the body is qualified, which is cheaper for each row
            -- than SET search_path. The exception block writes nothing and so costs no
            -- transaction id (one for each row would slow the whole server down during a bulk load): a column that was renamed since must
            -- not break the catalog's writes, the next call of this function mends the trigger.
            EXECUTE format($f$
                CREATE OR REPLACE FUNCTION vitrina.%I() RETURNS trigger
                LANGUAGE plpgsql SECURITY DEFINER AS $body$
                DECLARE
                    v_id pg_catalog.uuid;
                BEGIN
                    BEGIN
                        v_id := NEW.%I;
                    EXCEPTION WHEN OTHERS THEN
                        RETURN NULL;
                    END;
                    INSERT INTO vitrina.changed_cards (kind, id) VALUES (%s, v_id)
                    ON CONFLICT (kind, id) DO UPDATE SET seq = pg_catalog.nextval('vitrina.card_change_seq'::pg_catalog.regclass);
                    RETURN NULL;
                END
                $body$
            $f$, v_name, v_table.columns[1], v_card.kind);
            FOR v_old IN SELECT t.tgname FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
                WHERE t.tgrelid = v_table.relation AND t.tgname LIKE 'vitrina\_%' AND p.pronamespace = 'vitrina'::regnamespace
            LOOP
                EXECUTE format('DROP TRIGGER %I ON %s', v_old.tgname, target);
            END LOOP;
            EXECUTE format('CREATE TRIGGER %I AFTER INSERT ON %s FOR EACH ROW EXECUTE FUNCTION vitrina.%I()',
                v_name || '_insert', target, v_name);
            EXECUTE format('CREATE TRIGGER %I AFTER UPDATE ON %s FOR EACH ROW WHEN (%s) EXECUTE FUNCTION vitrina.%I()',
                v_name || '_update', target, v_changed, v_name);
            UPDATE vitrina.card_sweep SET due = due + 1;
            state := 'installed';
        EXCEPTION WHEN OTHERS THEN
            state := 'unavailable';
            detail := format('%s: %s (SQLSTATE %s)', target, SQLERRM, SQLSTATE);
        END;
        RETURN NEXT;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $$
DECLARE
    v_function record;
BEGIN
    FOR v_function IN SELECT p.oid::regprocedure AS name FROM pg_proc p
        WHERE p.pronamespace = 'vitrina'::regnamespace AND p.proname ~ '^vitrina_(project|object)_card_' LOOP
        EXECUTE format('DROP FUNCTION %s CASCADE', v_function.name);
    END LOOP;
END
$$;
-- +goose StatementEnd
DROP FUNCTION vitrina.install_card_triggers();
DROP FUNCTION vitrina.card_table(text, text[]);
