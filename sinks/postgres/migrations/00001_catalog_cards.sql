-- +goose Up
-- The cards belong to the catalog service: they are made here only where they are missing, for development and tests
-- (contracts, section 3). A table or an updatable view of that name made by others is left exactly as it is.

-- +goose StatementBegin
DO $$
BEGIN
    -- The check comes first because CREATE SCHEMA IF NOT EXISTS wants the privilege even where the schema exists.
    IF to_regnamespace('catalog') IS NULL THEN
        CREATE SCHEMA catalog;
    END IF;

    IF to_regclass('catalog.project_cards') IS NULL THEN
        CREATE TABLE IF NOT EXISTS catalog.project_cards (
            id uuid PRIMARY KEY,
            status text NOT NULL,
            promotion_boost integer NOT NULL DEFAULT 0,
            popularity_views bigint NOT NULL DEFAULT 0,
            popularity_score double precision NOT NULL DEFAULT 0,
            min_price numeric(18,2),
            max_price numeric(18,2),
            property_objects_available integer,
            payback numeric(10,2),
            row_version bigint NOT NULL DEFAULT 1,
            updated_at timestamptz NOT NULL DEFAULT now()
        ) WITH (fillfactor = 90);
    END IF;

    IF to_regclass('catalog.property_object_cards') IS NULL THEN
        CREATE TABLE IF NOT EXISTS catalog.property_object_cards (
            id uuid PRIMARY KEY,
            project_id uuid NOT NULL,
            status text NOT NULL,
            promotion_boost integer NOT NULL DEFAULT 0,
            popularity_views bigint NOT NULL DEFAULT 0,
            popularity_score double precision NOT NULL DEFAULT 0,
            price numeric(18,2),
            row_version bigint NOT NULL DEFAULT 1,
            updated_at timestamptz NOT NULL DEFAULT now()
        ) WITH (fillfactor = 90);
        -- For the cascade of a project's boost. Neither boosts nor counters write project_id, so their updates stay HOT.
        CREATE INDEX IF NOT EXISTS property_object_cards_project_id_idx ON catalog.property_object_cards (project_id);
    END IF;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- Cards are never dropped: they may be the catalog's.
SELECT 1;
