-- Never edit a migration that was published: add the next one.
-- Every column outside the journal repeats something the journal says, so that an auditor can recompute all of them.
-- Amounts are integers of 1e-9 nat.

PRAGMA application_id = 1381256241; -- 'RTL1': a ledger of reticent

CREATE TABLE journal (
  seq      INTEGER PRIMARY KEY,
  time_us  INTEGER NOT NULL,
  kind     TEXT    NOT NULL,
  payload  TEXT    NOT NULL,
  previous TEXT    NOT NULL CHECK (length(previous) = 64),
  hash     TEXT    NOT NULL CHECK (length(hash) = 64)
) STRICT;

CREATE TRIGGER journal_is_never_updated BEFORE UPDATE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;

CREATE TRIGGER journal_is_never_deleted BEFORE DELETE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;

-- Also stops INSERT OR REPLACE, which fires no delete trigger.
CREATE TRIGGER journal_grows_at_its_end BEFORE INSERT ON journal
WHEN NEW.seq <> 1 + coalesce((SELECT max(seq) FROM journal), 0)
  OR NEW.previous <> coalesce((SELECT hash FROM journal ORDER BY seq DESC LIMIT 1),
                              '0000000000000000000000000000000000000000000000000000000000000000')
BEGIN SELECT RAISE(ABORT, 'an entry must follow the last one'); END;

CREATE TABLE datasets (
  dataset_id TEXT    NOT NULL PRIMARY KEY,
  renyi_order TEXT   NOT NULL,
  guarantee  TEXT    NOT NULL CHECK (guarantee IN ('dp', 'probabilistic')),
  opened_seq INTEGER NOT NULL REFERENCES journal (seq)
) STRICT;

CREATE TRIGGER datasets_are_never_updated BEFORE UPDATE ON datasets
BEGIN SELECT RAISE(ABORT, 'a data set is immutable'); END;

CREATE TRIGGER datasets_are_never_deleted BEFORE DELETE ON datasets
BEGIN SELECT RAISE(ABORT, 'a data set is immutable'); END;

CREATE TABLE scopes (
  scope_id   TEXT    NOT NULL PRIMARY KEY,
  kind       TEXT    NOT NULL CHECK (kind IN ('dataset', 'tenant', 'user')),
  parent     TEXT    REFERENCES scopes (scope_id),
  dataset_id TEXT    NOT NULL REFERENCES datasets (dataset_id),
  epsilon    REAL    NOT NULL CHECK (epsilon > 0),
  delta      REAL    NOT NULL CHECK (delta > 0 AND delta < 1),
  overhead   INTEGER NOT NULL CHECK (overhead >= 0),
  granted    INTEGER NOT NULL,
  spent      INTEGER NOT NULL,
  reserved   INTEGER NOT NULL,
  open       INTEGER NOT NULL CHECK (open >= 0),
  settled    INTEGER NOT NULL CHECK (settled >= 0),
  released   INTEGER NOT NULL CHECK (released >= 0),
  forfeited  INTEGER NOT NULL CHECK (forfeited >= 0),
  opened_seq INTEGER NOT NULL REFERENCES journal (seq),
  CHECK (spent >= 0 AND reserved >= 0 AND spent + reserved <= granted),
  CHECK ((kind = 'dataset') = (parent IS NULL))
) STRICT;

CREATE TRIGGER scopes_are_never_deleted BEFORE DELETE ON scopes
BEGIN SELECT RAISE(ABORT, 'a scope is never deleted'); END;

CREATE TRIGGER scopes_keep_what_was_granted_and_spent BEFORE UPDATE ON scopes
WHEN NEW.granted < OLD.granted OR NEW.spent < OLD.spent OR NEW.overhead <> OLD.overhead
  OR NEW.scope_id <> OLD.scope_id OR NEW.parent IS NOT OLD.parent
  OR NEW.epsilon <> OLD.epsilon OR NEW.delta <> OLD.delta
BEGIN SELECT RAISE(ABORT, 'grants and spending never shrink'); END;

CREATE TABLE reservations (
  reservation_id TEXT    NOT NULL PRIMARY KEY,
  scope_id       TEXT    NOT NULL REFERENCES scopes (scope_id),
  worst_case     INTEGER NOT NULL CHECK (worst_case >= 0),
  state          TEXT    NOT NULL CHECK (state IN ('open', 'settled', 'released', 'forfeited')),
  scored         INTEGER NOT NULL CHECK (scored IN (0, 1)),
  charge         INTEGER CHECK (charge BETWEEN 0 AND worst_case),
  owner          TEXT    NOT NULL,
  expires_us     INTEGER NOT NULL,
  opened_seq     INTEGER NOT NULL REFERENCES journal (seq),
  closed_seq     INTEGER REFERENCES journal (seq),
  CHECK ((state = 'open') = (charge IS NULL)),
  CHECK ((state = 'open') = (closed_seq IS NULL)),
  CHECK (state <> 'forfeited' OR charge = worst_case),
  CHECK (state <> 'released' OR (charge = 0 AND scored = 0))
) STRICT;

CREATE INDEX open_reservations ON reservations (expires_us) WHERE state = 'open';

CREATE TRIGGER reservations_are_never_deleted BEFORE DELETE ON reservations
BEGIN SELECT RAISE(ABORT, 'a reservation is never deleted'); END;

CREATE TRIGGER reservations_close_once BEFORE UPDATE ON reservations
WHEN OLD.state <> 'open' OR NEW.worst_case < OLD.worst_case OR NEW.scored < OLD.scored
  OR NEW.reservation_id <> OLD.reservation_id OR NEW.scope_id <> OLD.scope_id
BEGIN SELECT RAISE(ABORT, 'a reservation closes once and only rises'); END;
