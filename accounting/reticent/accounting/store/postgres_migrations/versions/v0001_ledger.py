"""The ledger's tables, and the triggers that keep the journal append-only.

Never edit a revision that was published: add the next one.

Every column outside the journal repeats something the journal says, so that an auditor can recompute all of them.
Amounts are integers of 1e-9 nat. Names compare byte by byte (COLLATE "C"): no update of the operating system's
collations can then damage an index. The journal's head has a row of its own: writers lock it, and the journal's own
trigger moves it.
"""

from alembic import op

revision = "0001"
down_revision = None

JOURNAL = """
CREATE TABLE journal (
  seq      bigint NOT NULL CONSTRAINT journal_pkey PRIMARY KEY,
  time_us  bigint NOT NULL,
  kind     text   NOT NULL,
  payload  text   NOT NULL,
  previous text   NOT NULL CONSTRAINT journal_previous CHECK (length(previous) = 64),
  hash     text   NOT NULL CONSTRAINT journal_hash CHECK (length(hash) = 64)
)
"""

HEAD = """
CREATE TABLE journal_head (
  only_row boolean NOT NULL DEFAULT true CONSTRAINT journal_head_pkey PRIMARY KEY
    CONSTRAINT journal_head_only_row CHECK (only_row),
  seq      bigint  NOT NULL,
  hash     text    NOT NULL
) WITH (fillfactor = 10)
"""

DATASETS = """
CREATE TABLE datasets (
  dataset_id  text COLLATE "C" NOT NULL CONSTRAINT datasets_pkey PRIMARY KEY,
  renyi_order text   NOT NULL,
  guarantee   text   NOT NULL CONSTRAINT datasets_guarantee CHECK (guarantee IN ('dp', 'probabilistic')),
  opened_seq  bigint NOT NULL CONSTRAINT datasets_opened_seq REFERENCES journal (seq)
)
"""

SCOPES = """
CREATE TABLE scopes (
  scope_id    text COLLATE "C" NOT NULL CONSTRAINT scopes_pkey PRIMARY KEY,
  kind        text   NOT NULL CONSTRAINT scopes_kind CHECK (kind IN ('dataset', 'tenant', 'user')),
  parent      text COLLATE "C" CONSTRAINT scopes_parent REFERENCES scopes (scope_id),
  dataset_id  text COLLATE "C" NOT NULL CONSTRAINT scopes_dataset REFERENCES datasets (dataset_id),
  epsilon     double precision NOT NULL CONSTRAINT scopes_epsilon CHECK (epsilon > 0 AND epsilon < 'Infinity'),
  delta       double precision NOT NULL CONSTRAINT scopes_delta CHECK (delta > 0 AND delta < 1),
  overhead    bigint NOT NULL CONSTRAINT scopes_overhead CHECK (overhead >= 0),
  granted     bigint NOT NULL,
  spent       bigint NOT NULL,
  reserved    bigint NOT NULL,
  open        bigint NOT NULL CONSTRAINT scopes_open CHECK (open >= 0),
  settled     bigint NOT NULL CONSTRAINT scopes_settled CHECK (settled >= 0),
  released    bigint NOT NULL CONSTRAINT scopes_released CHECK (released >= 0),
  forfeited   bigint NOT NULL CONSTRAINT scopes_forfeited CHECK (forfeited >= 0),
  unprotected bigint NOT NULL DEFAULT 0 CONSTRAINT scopes_unprotected CHECK (unprotected >= 0),
  opened_seq  bigint NOT NULL CONSTRAINT scopes_opened_seq REFERENCES journal (seq),
  CONSTRAINT scopes_never_overspent CHECK (spent >= 0 AND reserved >= 0 AND spent + reserved <= granted),
  CONSTRAINT scopes_root CHECK ((kind = 'dataset') = (parent IS NULL))
) WITH (fillfactor = 50)
"""

RESERVATIONS = """
CREATE TABLE reservations (
  reservation_id text COLLATE "C" NOT NULL CONSTRAINT reservations_pkey PRIMARY KEY,
  scope_id   text COLLATE "C" NOT NULL CONSTRAINT reservations_scope REFERENCES scopes (scope_id),
  worst_case bigint   NOT NULL CONSTRAINT reservations_worst_case CHECK (worst_case >= 0),
  state      text     NOT NULL
    CONSTRAINT reservations_state CHECK (state IN ('open', 'settled', 'released', 'forfeited')),
  scored     smallint NOT NULL CONSTRAINT reservations_scored CHECK (scored IN (0, 1)),
  charge     bigint   CONSTRAINT reservations_charge CHECK (charge BETWEEN 0 AND worst_case),
  owner      text     NOT NULL,
  expires_us bigint   NOT NULL,
  opened_seq bigint   NOT NULL CONSTRAINT reservations_opened_seq REFERENCES journal (seq),
  closed_seq bigint   CONSTRAINT reservations_closed_seq REFERENCES journal (seq),
  claim      text     CONSTRAINT reservations_claim CHECK (length(claim) = 64),
  CONSTRAINT reservations_charged_when_closed CHECK ((state = 'open') = (charge IS NULL)),
  CONSTRAINT reservations_closed_by_an_entry CHECK ((state = 'open') = (closed_seq IS NULL)),
  CONSTRAINT reservations_forfeited_whole CHECK (state <> 'forfeited' OR charge = worst_case),
  CONSTRAINT reservations_released_unscored CHECK (state <> 'released' OR (charge = 0 AND scored = 0))
)
"""

CLAIMS = """
CREATE TABLE claims (
  claim_id       text COLLATE "C" NOT NULL CONSTRAINT claims_pkey PRIMARY KEY
    CONSTRAINT claims_id CHECK (length(claim_id) = 64),
  request_digest text   NOT NULL CONSTRAINT claims_digest CHECK (length(request_digest) = 64),
  reservation_id text COLLATE "C" NOT NULL CONSTRAINT claims_one_each UNIQUE
    CONSTRAINT claims_reservation REFERENCES reservations (reservation_id),
  answer         bytea  CONSTRAINT claims_answer CHECK (length(answer) <= 1048576),
  expires_us     bigint NOT NULL
)
"""

INDEXES = (
    "CREATE INDEX open_reservations ON reservations (expires_us, opened_seq) WHERE state = 'open'",
    "CREATE INDEX expiring_claims ON claims (expires_us)",
)

REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation', MESSAGE = TG_ARGV[0];
END
$$
"""

# One look at all rows of a statement. The head moves here and nowhere else.
FOLLOW = """
CREATE FUNCTION follow_the_head() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  head journal_head;
  entries bigint;
  first bigint;
  last bigint;
BEGIN
  SELECT count(*), min(seq), max(seq) INTO entries, first, last FROM added;
  IF entries = 0 THEN
    RETURN NULL;
  END IF;
  SELECT * INTO STRICT head FROM journal_head FOR UPDATE;
  IF first <> head.seq + 1 OR last <> head.seq + entries
    OR EXISTS (SELECT FROM (SELECT previous, lag(hash, 1, head.hash) OVER (ORDER BY seq) AS before FROM added) AS link
               WHERE previous <> before)
  THEN
    RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation', MESSAGE = 'an entry must follow the last one';
  END IF;
  UPDATE journal_head SET seq = last, hash = (SELECT hash FROM added WHERE seq = last);
  RETURN NULL;
END
$$
"""

HEAD_IS_LAST = """
CREATE FUNCTION head_is_last() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  IF NEW.seq <= OLD.seq
    OR NEW.seq <> (SELECT max(seq) FROM journal)
    OR NOT EXISTS (SELECT FROM journal WHERE seq = NEW.seq AND hash = NEW.hash)
  THEN
    RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation', MESSAGE = 'the head is the last entry';
  END IF;
  RETURN NEW;
END
$$
"""


def _refusal(name: str, table: str, events: str, message: str, *, when: str | None = None) -> str:
    """A trigger that refuses a statement, or the rows that `when` holds for (evaluated without calling anything)."""
    each = "STATEMENT" if when is None else f"ROW WHEN ({when})"
    return f"CREATE TRIGGER {name} BEFORE {events} ON {table} FOR EACH {each} EXECUTE FUNCTION refuse('{message}')"


TRIGGERS = (
    _refusal("journal_is_append_only", "journal", "UPDATE OR DELETE OR TRUNCATE", "the journal is append-only"),
    "CREATE TRIGGER journal_grows_at_its_end AFTER INSERT ON journal REFERENCING NEW TABLE AS added"
    " FOR EACH STATEMENT EXECUTE FUNCTION follow_the_head()",
    "CREATE TRIGGER journal_head_is_last BEFORE UPDATE ON journal_head FOR EACH ROW EXECUTE FUNCTION head_is_last()",
    _refusal("journal_head_stays", "journal_head", "DELETE OR TRUNCATE", "the journal has a head"),
    _refusal("datasets_are_immutable", "datasets", "UPDATE OR DELETE OR TRUNCATE", "a data set is immutable"),
    _refusal("scopes_are_never_deleted", "scopes", "DELETE OR TRUNCATE", "a scope is never deleted"),
    _refusal(
        "scopes_keep_what_was_granted_and_spent",
        "scopes",
        "UPDATE",
        "grants and spending never shrink",
        when="NEW.granted < OLD.granted OR NEW.spent < OLD.spent OR NEW.unprotected < OLD.unprotected"
        " OR NEW.overhead <> OLD.overhead OR NEW.scope_id <> OLD.scope_id OR NEW.kind <> OLD.kind"
        " OR NEW.parent IS DISTINCT FROM OLD.parent OR NEW.dataset_id <> OLD.dataset_id"
        " OR NEW.epsilon <> OLD.epsilon OR NEW.delta <> OLD.delta OR NEW.opened_seq <> OLD.opened_seq",
    ),
    _refusal("reservations_are_never_deleted", "reservations", "DELETE OR TRUNCATE", "a reservation is never deleted"),
    _refusal(
        "reservations_close_once",
        "reservations",
        "UPDATE",
        "a reservation closes once and only rises",
        when="OLD.state <> 'open' OR NEW.worst_case < OLD.worst_case OR NEW.scored < OLD.scored"
        " OR NEW.reservation_id <> OLD.reservation_id OR NEW.scope_id <> OLD.scope_id"
        " OR NEW.owner <> OLD.owner OR NEW.claim IS DISTINCT FROM OLD.claim OR NEW.opened_seq <> OLD.opened_seq",
    ),
)


def upgrade() -> None:
    # Unlike tables, functions are not looked for among temporary ones unless their schema is named.
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    tables = (JOURNAL, HEAD, DATASETS, SCOPES, RESERVATIONS, CLAIMS)
    for statement in (*tables, *INDEXES, REFUSE, FOLLOW, HEAD_IS_LAST, *TRIGGERS):
        op.execute(statement.replace(" FUNCTION ", f" FUNCTION {schema}."))
    op.execute(f"INSERT INTO journal_head (seq, hash) VALUES (0, '{'0' * 64}')")  # noqa: S608
