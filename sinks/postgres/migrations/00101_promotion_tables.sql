-- +goose Up
-- The replica of purchases and their contributions (design E5). kind: 1 = Project, 2 = PropertyObject; the number is also
-- the order in which targets are locked.

-- Every purchase ever seen, also one that never named a project or an object: an older version put back later must stay
-- stale. Rows are rewritten by each snapshot: no index but the key, and room for HOT.
CREATE TABLE vitrina.purchases (
    purchase_id uuid PRIMARY KEY,
    version bigint NOT NULL,
    revision bigint NOT NULL,
    status text NOT NULL CHECK (status IN ('Active', 'Expired', 'Cancelled', 'Pending')),
    boost_weight integer NOT NULL CHECK (boost_weight BETWEEN 1 AND 100),
    ends_at timestamptz NOT NULL,
    source_topic text NOT NULL,
    source_partition integer NOT NULL,
    source_offset bigint NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 85);

-- One row for each target a purchase ever named; inactive ones stay (D3, D27). version is that of the snapshot that named the
-- target last, or dropped it.
CREATE TABLE vitrina.contributions (
    purchase_id uuid NOT NULL,
    kind smallint NOT NULL CHECK (kind IN (1, 2)),
    target_id uuid NOT NULL,
    boost_weight integer NOT NULL,
    status text NOT NULL,
    version bigint NOT NULL,
    active boolean NOT NULL,
    PRIMARY KEY (purchase_id, kind, target_id)
) WITH (fillfactor = 85);
-- Sums read the active ones of a target, the API reads all. active changes about twice in a contribution's life, so that it
-- costs few HOT updates, while a popular project gathers thousands of inactive rows that no sum should fetch.
CREATE INDEX contributions_target_idx ON vitrina.contributions (kind, target_id, active);

-- The sum of a target's active contributions, and the row that everybody locks who changes or reads it for good. Projects
-- of objects addressed have a row as well, without contributions of their own: named says whether any purchase ever named the
-- target itself, which decides about Hidden cards (D27).
CREATE TABLE vitrina.promotion_targets (
    kind smallint NOT NULL CHECK (kind IN (1, 2)),
    id uuid NOT NULL,
    boost integer NOT NULL DEFAULT 0,
    named boolean NOT NULL DEFAULT false,
    PRIMARY KEY (kind, id)
) WITH (fillfactor = 80);

CREATE SEQUENCE vitrina.card_change_seq;

-- Cards to recompute because the catalog changed them (written by triggers on the cards). A second change before the first
-- is drained raises seq, and the drain deletes only the seq it has read: a change during a recompute is kept.
CREATE TABLE vitrina.changed_cards (
    kind smallint NOT NULL,
    id uuid NOT NULL,
    seq bigint NOT NULL DEFAULT nextval('vitrina.card_change_seq'),
    PRIMARY KEY (kind, id)
) WITH (fillfactor = 80);

-- Cards to recompute because a sink could not: the card moved under it (optimistic lock, project). A table of its own: the
-- catalog's transactions never wait for it, so a sink that writes it last can meet no deadlock there.
CREATE TABLE vitrina.dirty_cards (
    kind smallint NOT NULL,
    id uuid NOT NULL,
    seq bigint NOT NULL DEFAULT nextval('vitrina.card_change_seq'),
    reason text NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, id)
) WITH (fillfactor = 80);

-- Whether a full sweep is owed: due is raised when triggers were put on a table whose earlier changes nobody has noted, done
-- follows when a sweep that began later has ended.
CREATE TABLE vitrina.card_sweep (
    id boolean PRIMARY KEY DEFAULT true CHECK (id),
    due bigint NOT NULL DEFAULT 0,
    done bigint NOT NULL DEFAULT 0,
    finished_at timestamptz
);
INSERT INTO vitrina.card_sweep DEFAULT VALUES;

-- +goose Down
DROP TABLE vitrina.card_sweep;
DROP TABLE vitrina.dirty_cards;
DROP TABLE vitrina.changed_cards;
DROP SEQUENCE vitrina.card_change_seq;
DROP TABLE vitrina.promotion_targets;
DROP TABLE vitrina.contributions;
DROP TABLE vitrina.purchases;
