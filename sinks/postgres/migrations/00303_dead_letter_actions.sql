-- +goose Up
-- What was done with dead letters: a letter is a record of the dead-letter topic, and stays in it. The topic's id is part of the key
-- because a topic made anew has other letters under the same offsets. A letter without a row waits. The row follows the act, so
-- that an act interrupted before it is done again: a record put back twice counts once.
CREATE TABLE vitrina.dead_letter_actions (
    topic text NOT NULL,
    topic_id uuid NOT NULL,
    "partition" integer NOT NULL,
    "offset" bigint NOT NULL,
    action text NOT NULL CHECK (action IN ('replayed', 'dropped', 'parked')),
    at timestamptz NOT NULL DEFAULT now(),
    by text NOT NULL,
    reason text NOT NULL DEFAULT '',
    returns integer NOT NULL DEFAULT 0, -- how often the record has come back, this time included
    PRIMARY KEY (topic_id, "partition", "offset")
);

-- +goose Down
DROP TABLE vitrina.dead_letter_actions;
