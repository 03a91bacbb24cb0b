-- Answers that no charge covers, and idempotency keys.

ALTER TABLE scopes ADD COLUMN unprotected INTEGER NOT NULL DEFAULT 0 CHECK (unprotected BETWEEN 0 AND settled);

DROP TRIGGER scopes_keep_what_was_granted_and_spent;

CREATE TRIGGER scopes_keep_what_was_granted_and_spent BEFORE UPDATE ON scopes
WHEN NEW.granted < OLD.granted OR NEW.spent < OLD.spent OR NEW.overhead <> OLD.overhead
  OR NEW.unprotected < OLD.unprotected
  OR NEW.scope_id <> OLD.scope_id OR NEW.parent IS NOT OLD.parent
  OR NEW.epsilon <> OLD.epsilon OR NEW.delta <> OLD.delta
BEGIN SELECT RAISE(ABORT, 'grants and spending never shrink'); END;

-- SHA-256 of the idempotency key that a reservation was made for: repeats the journal, as every column here does.
ALTER TABLE reservations ADD COLUMN claim TEXT CHECK (length(claim) = 64);

DROP TRIGGER reservations_close_once;

CREATE TRIGGER reservations_close_once BEFORE UPDATE ON reservations
WHEN OLD.state <> 'open' OR NEW.worst_case < OLD.worst_case OR NEW.scored < OLD.scored
  OR NEW.reservation_id <> OLD.reservation_id OR NEW.scope_id <> OLD.scope_id OR NEW.claim IS NOT OLD.claim
BEGIN SELECT RAISE(ABORT, 'a reservation closes once and only rises'); END;

-- The one table whose rows are erased: it holds answers, which are content and not part of the accounts.
CREATE TABLE claims (
  claim_id       TEXT    NOT NULL PRIMARY KEY CHECK (length(claim_id) = 64),
  request_digest TEXT    NOT NULL CHECK (length(request_digest) = 64),
  reservation_id TEXT    NOT NULL UNIQUE REFERENCES reservations (reservation_id),
  answer         BLOB    CHECK (length(answer) <= 1048576),
  expires_us     INTEGER NOT NULL
) STRICT;

CREATE INDEX claims_by_age ON claims (expires_us);

-- An answer is handed out for free, so it must have been paid for: it is there only for a settled reservation.
CREATE TRIGGER claims_are_made_paid BEFORE INSERT ON claims
WHEN NEW.answer IS NOT NULL
 AND (SELECT state FROM reservations WHERE reservation_id = NEW.reservation_id) IS NOT 'settled'
BEGIN SELECT RAISE(ABORT, 'an answer needs a settled reservation'); END;

CREATE TRIGGER claims_are_answered_when_settled BEFORE UPDATE ON claims
WHEN NEW.answer IS NOT NULL
 AND (SELECT state FROM reservations WHERE reservation_id = NEW.reservation_id) IS NOT 'settled'
BEGIN SELECT RAISE(ABORT, 'an answer needs a settled reservation'); END;

CREATE TRIGGER claims_keep_their_answer BEFORE UPDATE ON claims
WHEN OLD.reservation_id = NEW.reservation_id
 AND (OLD.answer IS NOT NULL OR NEW.request_digest <> OLD.request_digest OR NEW.expires_us <> OLD.expires_us)
BEGIN SELECT RAISE(ABORT, 'a claim is answered once'); END;

CREATE TRIGGER claims_outlive_open_reservations BEFORE DELETE ON claims
WHEN (SELECT state FROM reservations WHERE reservation_id = OLD.reservation_id) = 'open'
BEGIN SELECT RAISE(ABORT, 'the reservation is open'); END;
