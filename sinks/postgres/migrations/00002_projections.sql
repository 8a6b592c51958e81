-- +goose Up
-- Epochs (design E6): every transaction that writes a projection takes its row FOR SHARE through require_epoch and gives
-- up on another epoch than its own; a rebuild raises the epoch, which waits for them and stops them.
CREATE TABLE vitrina.projections (
    name text PRIMARY KEY,
    epoch bigint NOT NULL DEFAULT 1 CHECK (epoch > 0),
    state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'closed')),
    note text NOT NULL DEFAULT '',
    changed_at timestamptz NOT NULL DEFAULT now()
);

INSERT INTO vitrina.projections (name) VALUES ('promotion-boost'), ('popularity');

-- +goose StatementBegin
CREATE FUNCTION vitrina.require_epoch(p_name text, p_epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_epoch bigint;
    v_state text;
BEGIN
    SELECT p.epoch, p.state INTO v_epoch, v_state FROM vitrina.projections p WHERE p.name = p_name FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'projection % has no row in vitrina.projections', p_name
            USING ERRCODE = 'VT001', HINT = 'run vitrina migrate up';
    ELSIF v_epoch <> p_epoch THEN
        RAISE EXCEPTION 'projection % has epoch %, this writer was started with %', p_name, v_epoch, p_epoch
            USING ERRCODE = 'VT001', HINT = 'a rebuild has begun; the instance must start again';
    ELSIF v_state <> 'open' THEN
        RAISE EXCEPTION 'projection % is closed while it is being rebuilt', p_name
            USING ERRCODE = 'VT001', HINT = 'follow the rebuild at GET /admin/operations/{id}; writers return when it reopens';
    END IF;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION vitrina.require_epoch(text, bigint);
DROP TABLE vitrina.projections;
