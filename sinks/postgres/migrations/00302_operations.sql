-- +goose Up
-- Operations (design, section 11): rebuilds and replays. Whichever process holds an operation's lease does the step that the row
-- names and records it, so that another process goes on where a dead one stopped. data is what the steps have noted for
-- those that follow.
CREATE TABLE vitrina.operations (
    id uuid PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('rebuild', 'replay')),
    projection text NOT NULL REFERENCES vitrina.projections (name),
    source text NOT NULL,
    request jsonb NOT NULL DEFAULT '{}',
    state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'running', 'succeeded', 'failed')),
    step text NOT NULL DEFAULT 'check',
    data jsonb NOT NULL DEFAULT '{}',
    done bigint NOT NULL DEFAULT 0,
    total bigint NOT NULL DEFAULT 0,
    message text NOT NULL DEFAULT '',
    error text NOT NULL DEFAULT '',
    requested_by text NOT NULL DEFAULT '',
    requested_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    finished_at timestamptz,
    lease_holder text NOT NULL DEFAULT '',
    lease_until timestamptz NOT NULL DEFAULT '-infinity'
);

-- One at a time for each projection.
CREATE UNIQUE INDEX operations_active_idx ON vitrina.operations (projection) WHERE state IN ('pending', 'running');
CREATE INDEX operations_requested_idx ON vitrina.operations (requested_at);

-- Price history has no epoch in the database: its row only holds the role while a replay moves the group's offsets.
INSERT INTO vitrina.projections (name) VALUES ('price-history');

-- +goose Down
DROP TABLE vitrina.operations;
DELETE FROM vitrina.projections WHERE name = 'price-history';
