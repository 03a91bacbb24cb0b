"""A calibration site: answers a round with one noised histogram of records that it has not used before.

The site believes nothing that the server says. The plan is its own copy; what a round may ask of it follows from that
plan, or, where recruitment depends on the past, from the transcript, which it replays itself.

What a site must keep
---------------------
Its records come from its own law P_k, in a file whose making did not depend on scores or losses of this calibration
(no line left out because of what it says). The batch is drawn from the unused ones uniformly, from the operating
system's generator, so the order of the file does not matter. Ids and persons may decide who can still be drawn; scores
and losses do not.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from reticent.accounting.calibration.noise_scale import SENSITIVITY
from reticent.accounting.calibration.plan import Plan
from reticent.accounting.calibration.release import SiteBatch, make_release
from reticent.accounting.calibration.site_accountant import SiteAccountant
from reticent.accounting.calibration.site_errors import IdsNeeded, RequestRefused, TooFewRecords
from reticent.accounting.calibration.site_records import SiteRecord
from reticent.accounting.calibration.site_state import SiteState, StoredRelease
from reticent.accounting.calibration.transcript import Transcript

__all__ = ["CalibrationSite"]


class CalibrationSite:
    """One site under one plan.

    Args:
        plan: the registered plan, from the operator's hand and not from the server.
        name: the site's name in it.
        records: its labelled records.
        state: held (entered) by the caller.
        record_cap, person_cap: largest Σ Δ²/σ² of a record and of a person over all releases of this state. Left out:
            one release under this plan, so a person enters once.
        noise: for tests; see `make_release`.

    Raises:
        ValueError: the plan has no such site.
        IdsNeeded: see there.
    """

    def __init__(
        self,
        plan: Plan,
        name: str,
        records: Sequence[SiteRecord],
        state: SiteState,
        *,
        record_cap: float | None = None,
        person_cap: float | None = None,
        noise: Callable[[], int] | None = None,
    ) -> None:
        plan.site_index(name)
        others = any(stored.release.plan_digest != plan.digest for stored in state.releases)
        if others and not all(record.has_id for record in records):
            raise IdsNeeded
        self._plan, self._name, self._records, self._state, self._noise = plan, name, tuple(records), state, noise
        self._unit_loss = unit_loss(plan)
        self._accountant = SiteAccountant(
            state.releases,
            self._unit_loss if record_cap is None else record_cap,
            self._unit_loss if person_cap is None else person_cap,
        )

    @property
    def accountant(self) -> SiteAccountant:
        """What the releases have cost so far."""
        return self._accountant

    @property
    def used(self) -> frozenset[str]:
        """Keys of the records that releases under this plan hold."""
        return frozenset(key for stored in self._mine() for key in stored.records)

    def answer(self, round_number: int, slots: int, transcript: Transcript | None = None) -> bytes:
        """The release for a round, in the bytes to send; made and stored at the first call, the stored one afterwards.

        Args:
            round_number, slots: what the server says that it asks.
            transcript: the server's, where the plan's recruitment depends on the past.

        Raises:
            RequestRefused: the plan (with the transcript) does not ask that.
            TooFewRecords: there is nothing to send: the site drops out of the round.
            OSError: the release could not be stored, so it must not be sent.
        """
        stored = self._state.find(self._plan.digest, round_number)
        if stored is not None:
            if stored.release.slots != slots:
                raise RequestRefused(
                    "changed_request", f"round {round_number} was answered with another number of slots"
                )
            return stored.data
        self._check(round_number, slots, transcript)
        chosen = self._choose(slots)
        pairs = [(record.score, record.loss) for record in chosen]
        batch = SiteBatch.from_records(self._plan, round_number, self._name, pairs, slots=slots)
        stored = StoredRelease(
            make_release(self._plan, batch, noise=self._noise),
            self._unit_loss,
            tuple(record.key for record in chosen),
            tuple(record.person for record in chosen),
        )
        self._accountant.charge(stored)
        self._state.commit(stored)
        return stored.data

    def _mine(self) -> list[StoredRelease]:
        return [stored for stored in self._state.releases if stored.release.plan_digest == self._plan.digest]

    def _check(self, round_number: int, slots: int, transcript: Transcript | None) -> None:
        plan = self._plan
        if not 1 <= round_number <= plan.schedule.rounds:
            raise RequestRefused("wrong_round", f"the plan has no round {round_number}")
        if round_number < max((stored.release.round_number for stored in self._mine()), default=0):
            raise RequestRefused("wrong_round", f"a later round than {round_number} was answered already")
        if plan.recruitment.is_fixed:
            expected = plan.slots(round_number, self._name)
        else:
            expected = self._asked_by(transcript, round_number)
        if slots != expected or slots < 1:
            raise RequestRefused("wrong_slots", f"the plan asks for {expected} slots, the server for {slots}")

    def _asked_by(self, transcript: Transcript | None, round_number: int) -> int:
        if transcript is None:
            raise RequestRefused("wrong_round", "under this plan a request is checked against the transcript")
        if transcript.plan.digest != self._plan.digest:
            raise RequestRefused("wrong_plan", f"the transcript is of plan {transcript.plan.digest}")
        opened = transcript.open_round
        if opened is None or opened.round_number != round_number:
            raise RequestRefused("wrong_round", f"round {round_number} is not open in the transcript")
        return opened.slots(self._name)

    def _choose(self, slots: int) -> list[SiteRecord]:
        used = self.used
        unused = [record for record in self._records if record.key not in used]
        chosen: list[SiteRecord] = []
        together: Counter[str] = Counter()
        withheld = 0
        for record in _in_random_order(unused):
            if len(chosen) == slots:
                break
            if self._accountant.admits(record.key, record.person, together[record.person] + 1, self._unit_loss):
                chosen.append(record)
                together[record.person] += 1
            else:
                withheld += 1
        least = self._plan.least_records(slots)
        if len(chosen) < least:
            raise TooFewRecords(len(chosen), least, slots, len(self._records) - len(unused), withheld)
        return chosen


def _in_random_order(records: Sequence[SiteRecord]) -> Iterator[SiteRecord]:
    """Every record once, in an order drawn uniformly as far as it is asked for."""
    left = list(records)
    for last in range(len(left) - 1, -1, -1):
        index = secrets.randbelow(last + 1)
        left[index], left[last] = left[last], left[index]
        yield left[last]


def unit_loss(plan: Plan) -> float:
    """μ² = Δ²/σ²: what one release under the plan costs one record in it."""
    return (SENSITIVITY[plan.release] / plan.noise_scale) ** 2
