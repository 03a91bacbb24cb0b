"""Candidates of the base model for the embedded task, drawn in bulk with vLLM's offline engine.

The settings are those of the running server (`SAMPLING`), so that the reward model is trained on answers of the same
law as those that it will judge.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from reticent.plugin.embedded.engine import set_engine_environment
from reticent.plugin.embedded.task import EVIDENCE_TEMPLATE, Item

__all__ = ["SAMPLING", "Sample", "draw"]

SAMPLING = {"temperature": 0.5, "top_p": 1.0, "max_tokens": 48}
"""Sampling parameters of the embedded configuration."""


@dataclass(frozen=True)
class Sample:
    """One candidate: its text and the mean log-probability of its tokens under the base model (nats)."""

    text: str
    mean_log_probability: float


def draw(
    model: Path, items: Iterable[Item], candidates: int, seed: int, batch: int = 256
) -> Iterator[tuple[Item, list[Sample]]]:
    """Yield every item with `candidates` samples, in order; `seed` steers the engine's generator.

    Items are drawn in batches, so that an interrupted run has yielded what it drew so far.
    """
    set_engine_environment()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(model), dtype="bfloat16", max_model_len=2048, block_size=32, seed=seed, disable_log_stats=True
    )
    parameters = SamplingParams(n=candidates, logprobs=0, **SAMPLING)
    stream = iter(items)
    while chunk := list(islice(stream, batch)):
        messages = [
            [{"role": "user", "content": EVIDENCE_TEMPLATE.format(evidence=item.passage, question=item.question)}]
            for item in chunk
        ]
        for item, output in zip(chunk, engine.chat(messages, parameters, use_tqdm=False), strict=True):
            yield (
                item,
                [
                    Sample(o.text.strip(), (o.cumulative_logprob or 0.0) / max(1, len(o.token_ids)))
                    for o in output.outputs
                ],
            )
