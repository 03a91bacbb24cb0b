"""Calibration of the embedded certificate through the running server, with the configuration that serves.

Three sites ask questions of their own, judge the answers with the checker, and release noised histograms. What they
calibrate are answers that the private rule selected, so every one of them is charged, in a ledger of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import openai

from reticent.accounting.calibration import Plan, SiteBatch, Transcript, make_release
from reticent.accounting.certificates import Certificate, issue, judge_transcript
from reticent.plugin.embedded.task import Item, generate, loss

__all__ = ["Record", "Respondent", "calibrate"]

_TOGETHER = 8
_LIFETIME = timedelta(days=365)
_SITE_SEEDS = 9000


@dataclass(frozen=True)
class Record:
    """One calibrated answer: the gate's score and the declared loss. It stays at its site."""

    score: float
    loss: float


class Respondent:
    """Asks the running server under the observe policy.

    Args:
        base_url: the server's address, ending in `/v1`.
        key: a key whose tenant observes.
        model: the served model.
        fingerprint: what the server must say that it runs with every answer.
    """

    def __init__(self, base_url: str, key: str, model: str, fingerprint: str) -> None:
        self._client = openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=300.0)
        self._model = model
        self._fingerprint = fingerprint
        self.charged = 0.0

    async def records(self, site: str, items: Sequence[Item]) -> list[Record]:
        """Answers to all items, a few at a time; an answer without a score counts as one with score 0."""
        gate = asyncio.Semaphore(_TOGETHER)

        async def one(item: Item) -> Record:
            async with gate:
                completion = await self._client.chat.completions.create(
                    model=self._model,
                    messages=[{"role": "user", "content": item.question}],
                    user=site,
                    extra_body={"reticent": {"evidence": [item.passage]}},
                )
            facts = (completion.model_extra or {})["reticent"]
            if facts["selection"] == "base":
                raise RuntimeError("the calibration's budget is spent: its answers would be base answers")
            if facts["certificate"]["fingerprint"] != self._fingerprint:
                raise RuntimeError("the server runs another configuration than the one that was planned")
            self.charged += facts["charge"]
            return Record(facts["score"] or 0.0, float(loss(item, completion.choices[0].message.content or "")))

        return list(await asyncio.gather(*(one(item) for item in items)))


async def calibrate(
    plan: Plan, respondent: Respondent, tell: Callable[[str], None], *, lifetime: timedelta = _LIFETIME
) -> Certificate:
    """Run the plan's rounds until a threshold is certified; issue the certificate.

    Args:
        plan: registered before the first question is asked.
        respondent: the server.
        tell: is told the progress of each round.
        lifetime: how long the certificate holds after the last release.

    Raises:
        NotCertified: no threshold after the last round; carries the best bounds.
    """
    transcript = Transcript(plan)
    supplies = {site.name: _supply(index, site.name) for index, site in enumerate(plan.sites)}
    asked: list[Item] = []
    for round_number in range(1, plan.schedule.rounds + 1):
        for site in plan.sites:
            items = [next(supplies[site.name]) for _ in range(plan.slots(round_number, site.name))]
            asked += items
            records = await respondent.records(site.name, items)
            batch = SiteBatch.from_records(plan, round_number, site.name, [(r.score, r.loss) for r in records])
            transcript.append(make_release(plan, batch))
            tell(f"round {round_number}, site {site.name}: {len(items)} answers, {len(asked)} in all")
        verdict = judge_transcript(transcript)
        tell(f"round {round_number}: {len(verdict.certified)} of {len(plan.thresholds)} thresholds certified")
        if verdict.chosen is not None:
            break
    distinct = {(item.passage, item.question) for item in asked}
    return issue(transcript, datetime.now(UTC), lifetime, unique_items=len(distinct))


def _supply(index: int, site: str) -> Iterator[Item]:
    """Questions of one site, drawn independently: now and then one comes twice, as it would in service."""
    return generate(_SITE_SEEDS + index, 1_000_000, sites=(site,))
