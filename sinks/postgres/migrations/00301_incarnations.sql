-- +goose Up
-- What the state of each consumer group was made from (design E6). A local state directory may be fresh, so this is kept
-- here: a source topic that was deleted and created again has other offsets under the same numbers, and is refused until a
-- rebuild accepts it.
CREATE TABLE vitrina.incarnations (
    group_name text PRIMARY KEY,
    source_topic_id uuid NOT NULL,
    partitions integer NOT NULL CHECK (partitions > 0),
    hasher text NOT NULL,
    accepted_at timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE vitrina.incarnations;
