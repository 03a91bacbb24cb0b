"""The gate's score of a chosen answer: gathers what the score reads, and computes it beside the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from reticent.accounting.lattice import RewardLattice
from reticent.accounting.noise import discrete_gaussian
from reticent.plugin.gate import Gate
from reticent.plugin.ports import Candidate, CandidateSource, Verifier
from reticent.plugin.resolve import Plan
from reticent.plugin.selection.base import Selection
from reticent.plugin.selection.gated import gate_noise_of
from reticent.rewards.errors import ScoreDependsOnRewards, ScoreInputMissing
from reticent.rewards.scores import TOP_LOG_PROBABILITIES, NoisyReward, ScoreInputs

__all__ = ["Scoring"]

RewardOf = Callable[[Candidate], Awaitable[int]]


class Scoring:
    """Scores chosen answers.

    Args:
        gate: whose score it is.
        source: for teacher-forced passes.
        lattice: of the rewards, for the score that reads one.
        verifier: the service that an `external` score asks, or None.
    """

    def __init__(
        self, gate: Gate, source: CandidateSource, lattice: RewardLattice, verifier: Verifier | None = None
    ) -> None:
        self._gate = gate
        self._source = source
        self._lattice = lattice
        self._verifier = verifier

    @property
    def top_log_probabilities(self) -> int:
        """How many of the largest log-probabilities of each position candidates must come with."""
        return TOP_LOG_PROBABILITIES if "top_log_probabilities" in self._gate.score.needs else 0

    async def score(self, plan: Plan, selection: Selection, reward_of: RewardOf) -> float | None:
        """The score of the chosen answer; None where it is not a number, or something that it reads is not there.

        Args:
            plan, selection: of the request.
            reward_of: the reward of a candidate in granules. Called only for a score that reads it, and only where the
                plan's rule has the charge for it in its reservation and its settlement.

        Raises:
            ScoreDependsOnRewards: the rule does not charge for the noise of this score. Nothing was read.
        """
        score, chosen = self._gate.score, selection.chosen
        noisy = await self._noisy_reward(plan, chosen, reward_of) if "noisy_reward" in score.needs else None
        logs, ratios = await self._log_probabilities(plan, chosen)
        verifier = None
        if "verifier" in score.needs and self._verifier is not None:
            verifier = await self._verifier.score(plan.prompt.subject, chosen.judged)
        inputs = ScoreInputs(
            question=plan.prompt.subject.question,
            evidence=plan.prompt.subject.evidence,
            answer=chosen.judged,
            others=tuple(peer.judged for peer in selection.peers),
            mean_log_probability=math.fsum(logs) / len(logs) if logs else None,
            lift_log_ratios=ratios,
            prompt=plan.prompt.subject.prompt,
            top_log_probabilities=chosen.top_log_probabilities or None,
            verifier=verifier,
            noisy_reward=noisy,
        )
        try:
            value = await asyncio.to_thread(score.compute, inputs)
        except ScoreInputMissing:
            return None
        return value if math.isfinite(value) else None

    async def _log_probabilities(
        self, plan: Plan, chosen: Candidate
    ) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
        """With the evidence, and the ratios to those without; empty and None where they are not needed or not there.

        Those with the evidence come free from sampling. Where they did not come, or are of other tokens than the pass
        without evidence sees, a second teacher-forced pass gives them.
        """
        needs, logs = self._gate.score.needs, chosen.log_probabilities
        salt = plan.caller.tenant.id
        if not logs and chosen.judged and needs & {"log_probabilities", "teacher_forced"}:
            logs = await self._source.score_with_evidence(plan.prompt, chosen, salt=salt)
        if "teacher_forced" not in needs or plan.prompt.bare_messages is None:
            return logs, None
        bare = await self._source.score_without_evidence(plan.prompt, chosen, salt=salt)
        if bare and len(bare) != len(logs):
            logs = await self._source.score_with_evidence(plan.prompt, chosen, salt=salt)
        if len(bare) != len(logs):
            return logs, None
        return logs, tuple(a - b for a, b in zip(logs, bare, strict=True))

    async def _noisy_reward(self, plan: Plan, chosen: Candidate, reward_of: RewardOf) -> float:
        """clip(r + N(0, σ_g²), 0, R)/R, drawn on the lattice (privacy.md, section 5)."""
        score = self._gate.score
        if not isinstance(score, NoisyReward) or gate_noise_of(plan.rule) != score.noise_scale:
            raise ScoreDependsOnRewards(score.name)
        noisy = await reward_of(chosen) + discrete_gaussian(self._lattice.to_units(score.noise_scale))
        return min(max(noisy, 0), self._lattice.units_max) / self._lattice.units_max
