"""Reward laws: what their names mean, pools as files, and every way in which a file can be wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reticent.accounting.errors import AccountingError, InvalidQuantityError
from reticent.accounting.planning.laws import BetaLaw, PointLaw, RewardLaw, RewardLawError, parse_law
from reticent.accounting.planning.pools import PoolLaw, load_pool


def pool_line(*rewards: Any, field: str = "proxy_reward") -> str:
    return json.dumps({"prompt_id": "x", "responses": [{field: reward} for reward in rewards]})


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def mean_of(law: RewardLaw, prompt: int = 0) -> float:
    values, weights = law.nodes(prompt)
    return float(values @ weights)


@pytest.mark.parametrize(
    ("text", "mean", "square"),
    [
        ("beta:2,2", 1.0, 1.2),
        ("uniform", 1.0, 4.0 / 3.0),
        ("beta:5,1", 5.0 / 3.0, 4.0 * 5.0 / 7.0),
        ("point:0.3", 0.3, 0.09),
    ],
)
def test_a_named_law_has_its_moments_in_nodes_and_in_draws(text: str, mean: float, square: float) -> None:
    law = parse_law(text, 2.0)
    assert law.text == text
    values, weights = law.nodes(0)
    assert weights.sum() == pytest.approx(1.0)
    assert values @ weights == pytest.approx(mean, abs=1e-4)
    assert values**2 @ weights == pytest.approx(square, abs=1e-3)
    drawn = law.draw(0, np.random.default_rng(1), (400, 50))
    assert drawn.shape == (400, 50)
    assert drawn.mean() == pytest.approx(mean, abs=0.02)
    assert 0.0 <= drawn.min() <= drawn.max() <= 2.0


@pytest.mark.parametrize(
    "text", ["beta:2", "beta:a,b", "beta:2,2,2", "beta:", "point:", "point:x", "point:1,2", "no-such-file", "beta", ""]
)
def test_a_text_that_names_no_law_is_refused(text: str) -> None:
    with pytest.raises(RewardLawError):
        parse_law(text, 1.0)


@pytest.mark.parametrize(
    "text", ["beta:0,1", "beta:-1,1", "beta:nan,1", "beta:inf,1", "point:1.5", "point:-0.1", "point:nan"]
)
def test_a_law_with_impossible_parameters_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuantityError):
        parse_law(text, 1.0)


def test_bounds_belong_to_pools_only() -> None:
    with pytest.raises(RewardLawError, match="pool file only"):
        parse_law("uniform", 1.0, (0.0, 1.0))


def test_a_pool_keeps_every_prompts_rewards_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "pool.jsonl", pool_line(0.1, 0.1, 0.7), "", pool_line(0.4, None), pool_line(None))
    law = parse_law(str(path), 1.0)
    assert isinstance(law, PoolLaw)
    assert law.prompts == law.prompts_read == 2
    values, weights = law.nodes(0)
    assert values.tolist() == pytest.approx([0.1, 0.7])
    assert weights.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert mean_of(law, 1) == pytest.approx(0.4)
    assert set(law.draw(0, np.random.default_rng(0), (100,)).round(6)) == {0.1, 0.7}


def test_a_gzipped_pool_reads_like_a_plain_one(tmp_path: Path) -> None:
    plain = write(tmp_path / "pool.jsonl", pool_line(0.2, 0.3))
    packed = tmp_path / "pool"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert load_pool(packed, 1.0).rewards[0].tolist() == load_pool(plain, 1.0).rewards[0].tolist()


def test_declared_bounds_map_raw_rewards_to_the_range_and_broken_ones_to_zero(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text('{"responses": [{"s": -7}, {"s": 1}, {"s": 9}, {"s": NaN}, {"s": Infinity}]}', encoding="utf-8")
    law = load_pool(path, 2.0, (-3.0, 5.0), reward_field="s")
    assert law.rewards[0].tolist() == pytest.approx([0.0, 1.0, 2.0, 0.0, 0.0])
    assert law.clipped == pytest.approx(4 / 5)


def test_a_long_pool_is_thinned_by_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "pool.jsonl", *(pool_line(k / 100) for k in range(100)))
    one, same, other = (load_pool(path, 1.0, most_prompts=10, seed=seed) for seed in (1, 1, 2))
    assert (one.prompts, one.prompts_read) == (10, 100)
    assert [r[0] for r in one.rewards] == [r[0] for r in same.rewards] != [r[0] for r in other.rewards]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"not json\n", "line 1 is not JSON"),
        (b'{"responses": []}\n[1]\n', "line 2 has no list"),
        (b'{"responses": 3}\n', "line 1 has no list"),
        (b'{"responses": [{"proxy_reward": "high"}]}\n', "must be a number or null"),
        (b'{"responses": [{"proxy_reward": true}]}\n', "must be a number or null"),
        (b'{"responses": [{"proxy_reward": null}]}\n', "no response has a number"),
        (b"", "no response has a number"),
        (b"\xff\xfe\x00", "neither text"),
        (gzip.compress(b"x" * 1000)[:20], "neither text"),
        (b'{"responses": [{"proxy_reward": 1' + b"0" * 400 + b"}]}", "too large"),
    ],
)
def test_a_pool_that_cannot_be_used_says_why(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_bytes(content)
    with pytest.raises(RewardLawError, match=why):
        load_pool(path, 1.0)


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 1.0), (float("nan"), 1.0), (0.0, float("inf"))])
def test_bounds_out_of_order_are_refused(tmp_path: Path, bounds: tuple[float, float]) -> None:
    with pytest.raises(RewardLawError, match="bounds"):
        load_pool(write(tmp_path / "pool.jsonl", pool_line(0.5)), 1.0, bounds)


def test_a_folder_is_no_pool(tmp_path: Path) -> None:
    with pytest.raises(AccountingError):
        load_pool(tmp_path, 1.0)


def test_laws_refuse_a_range_that_is_none() -> None:
    for R in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidQuantityError):
            BetaLaw(1.0, 1.0, R)
        with pytest.raises(InvalidQuantityError):
            PointLaw(0.0, R)
