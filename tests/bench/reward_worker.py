"""Throughput of the reward worker: candidates in one batch against one by one, and requests that share a pass.

    python tests/bench/reward_worker.py [--candidates N] [--tokens N] [--repeats N] [--model FOLDER]

Every way is timed in turn within one run, so that ratios mean something on a machine that is busy otherwise; the first
round warms up. Features: MiniLM (`minilm/grounded`, the embedded head's) and, where --model names the converted
SmolLM2, its hidden states (`causal/-1`) and, with --classifier, a sequence classifier on the same weights with a
random head. With
--request-seconds (the median of a whole request from `serving.py`) also the share of a request that scoring takes.
Not a test: these numbers depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reticent.rewards.backends import HeadBackend, build_backend
from reticent.rewards.batches import ScoringQueue
from reticent.rewards.bounds import ClipBound
from reticent.rewards.encoders import Encoder, Subject, build_encoder
from reticent.rewards.head import LinearHead, SensitivityCertificate, new_identifier
from reticent.rewards.ports import PairBackend
from reticent.rewards.profile import ModelProfile
from reticent.rewards.sensitivity import HeadFacts

_TEXT = "the keeper walked home along the shore with his old dog while a storm came up and the lamp went out"
WORDS = _TEXT.split()


def texts(count: int, words: int, seed: int) -> list[str]:
    """Answers of about `words` tokens; no two are equal."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, words)).capitalize() + "." for _ in range(count)]


def with_head(encoder: Encoder) -> HeadBackend:
    """The encoder under a head of random weights: they do not change the time."""
    certificate = SensitivityCertificate.of(HeadFacts(1000, 1, 0.1, 2.0, 1e-9, 0.5, 1.0), "0" * 64)
    weights = tuple(float(x) for x in np.random.default_rng(1).normal(size=encoder.dimension))
    return HeadBackend(LinearHead(weights, encoder.name, encoder.revision, certificate, new_identifier()), encoder)


def classifier(model: Path, folder: Path, dtype: str) -> PairBackend:
    """SmolLM2 as a sequence classifier."""
    import shutil

    import torch
    from transformers import AutoModelForSequenceClassification

    if not (folder / "config.json").exists():
        made = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
        made.score.weight.data.normal_(std=0.05)
        made.save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(model / name, folder / name)
    return build_backend(
        ModelProfile(
            backend="transformers",
            name="SmolLM2",
            revision="bench",
            bound=ClipBound(-10.0, 10.0),
            max_length=1024,
            folder=folder,
            dtype="float32" if dtype == "float32" else "bfloat16",
        ),
        threads=1,
    )


def one_by_one(backend: PairBackend, subject: Subject, answers: Sequence[str]) -> list[float]:
    """A pass for each candidate."""
    return [backend.score(subject, [answer])[0] for answer in answers]


def shared(backend: PairBackend, subjects: Sequence[Subject], answers: Sequence[str]) -> None:
    """As many requests as subjects, which arrive together; each has its part of the answers."""

    async def all_of_them() -> None:
        queue = ScoringQueue(backend)
        share = len(answers) // len(subjects)
        await asyncio.gather(
            *(queue.score(one, answers[i * share : (i + 1) * share]) for i, one in enumerate(subjects))
        )
        queue.close()

    asyncio.run(all_of_them())


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128, help="words of a candidate, each about a token")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", type=Path, help="folder of SmolLM2-135M-Instruct as converted by `make model`")
    parser.add_argument("--classifier", nargs="*", default=[], choices=["float32", "bfloat16"], help="with --model")
    parser.add_argument("--request-seconds", type=float, help="median seconds of a request of as many candidates")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    subject = Subject("Write about a lighthouse.", "Write about a lighthouse.", (" ".join(texts(4, 16, 7)),))
    others = [Subject(f"{subject.prompt} {i}", subject.question, subject.evidence) for i in range(4)]
    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        backends: dict[str, PairBackend] = {"minilm/grounded": with_head(build_encoder("minilm/grounded", threads=1))}
        if options.model is not None:
            smol = build_encoder("causal/-1", model_folder=options.model, threads=1)
            backends["smollm2 causal/-1"] = with_head(smol)
            for dtype in options.classifier:
                backends[f"smollm2 classifier {dtype}"] = classifier(options.model, Path(folder), dtype)
        for repeat in range(options.repeats + 1):
            answers = texts(options.candidates, options.tokens, repeat)
            for name, backend in backends.items():
                ways: dict[str, Callable[[], object]] = {
                    "one batch": partial(backend.score, subject, answers),
                    "one by one": partial(one_by_one, backend, subject, answers),
                    "4 requests": partial(shared, backend, others, answers),
                }
                for way, run in ways.items():
                    start = time.perf_counter()
                    run()
                    if repeat > 0:
                        found[f"{name}: {way}"].append(time.perf_counter() - start)
    rows: list[dict[str, Any]] = []
    for key, seconds in found.items():
        base = found[key.rpartition(": ")[0] + ": one by one"]
        row: dict[str, Any] = {
            "way": key,
            "median_s": statistics.median(seconds),
            "speedup": statistics.median(b / s for b, s in zip(base, seconds, strict=True)),
        }
        if options.request_seconds is not None:
            row["share_of_request"] = row["median_s"] / options.request_seconds
        rows.append(row)
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'way':44} {'median s':>9} {'against one by one':>19}")
    for row in rows:
        share = f"  {100 * row['share_of_request']:.0f} % of a request" if "share_of_request" in row else ""
        print(f"{row['way']:44} {row['median_s']:9.3f} {row['speedup']:18.2f}x{share}")


if __name__ == "__main__":
    main()
