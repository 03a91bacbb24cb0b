"""Naming a reward model in the configuration, and what stands of it in a fingerprint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from reticent.accounting.lattice import RewardLattice
from reticent.plugin.core import sensitivity_of
from reticent.plugin.facts import server_facts
from reticent.plugin.rewards_source import load_reward_model, worker_model
from reticent.plugin.settings import ConfigurationError, Settings, load_settings
from reticent.rewards.bounds import ClipBound, SigmoidBound, parse_bound
from reticent.rewards.head import LinearHead
from reticent.rewards.profile import ModelProfile
from reticent.rewards.protocol import model_digest
from reticent.rewards.scores import build_score
from tests.fakes.build import settings_document

EMBEDDED = Path(__file__).resolve().parents[2] / "deploy" / "embedded"
MODEL = {
    "backend": "transformers",
    "name": "rm",
    "revision": "7c5b",
    "bound": "sigmoid:0.5,2",
    "max_length": 2048,
    "folder": "models/rm",
}


def load(folder: Path, model: dict[str, Any] | None = None, **rewards: Any) -> Settings:
    document = settings_document(folder)
    if model is not None:
        document["rewards"] |= {"model": {**MODEL, **model}, "sensitivity": "range"}
        del document["rewards"]["head"]
    document["rewards"] |= rewards
    document["rewards"] = {name: value for name, value in document["rewards"].items() if value is not None}
    path = folder / "reticent.yaml"
    path.write_text(yaml.safe_dump(document))
    return load_settings(path)


def test_an_operator_can_name_a_model(tmp_path: Path) -> None:
    settings = load(tmp_path, {"reward_max": 2.0})
    profile = worker_model(settings.rewards)
    assert isinstance(profile, ModelProfile)
    assert profile.folder == tmp_path.resolve() / "models" / "rm"
    assert profile.bound == SigmoidBound(0.5, 2.0, 2.0)
    model = load_reward_model(settings.rewards)
    assert (model.reward_max, sensitivity_of(settings.rewards, model)) == (2.0, 2.0)
    facts = server_facts(settings, model, RewardLattice(2.0, 2.0), build_score("self_consistency"))["reward_model"]
    assert facts.items() >= {"name": "rm", "revision": "7c5b", "backend": "transformers", "max_length": 2048}.items()
    assert facts["bound"] == {"kind": "sigmoid", "center": 0.5, "scale": 2.0, "reward_max": 2.0}
    assert str(tmp_path) not in json.dumps(facts)


@pytest.mark.parametrize(
    "change",
    [
        {"revision": "8"},
        {"name": "other"},
        {"bound": "sigmoid:0.5,3"},
        {"bound": "clip:0,1"},
        {"max_length": 2047},
        {"long_input": "zero"},
        {"template": "pair"},
        {"dtype": "bfloat16"},
        {"reward_max": 2.0},
    ],
)
def test_whatever_changes_rewards_changes_the_digest(tmp_path: Path, change: dict[str, Any]) -> None:
    before = model_digest(load_reward_model(load(tmp_path, {}).rewards).public_facts())
    assert model_digest(load_reward_model(load(tmp_path, change).rewards).public_facts()) != before
    same = load(tmp_path, {"folder": "elsewhere", "batch_tokens": 9})
    assert model_digest(load_reward_model(same.rewards).public_facts()) == before


@pytest.mark.parametrize(
    ("model", "rewards", "said"),
    [
        ({}, {"sensitivity": "certified"}, "no sensitivity of a model is certified"),
        ({}, {"sensitivity": "declared"}, "declared_reason"),
        ({}, {"head": "head.json"}, "head or model"),
        (None, {"head": None}, "head or model"),
        ({}, {"host": "127.0.0.1"}, "socket or host"),
        ({}, {"host": "127.0.0.1", "socket": None}, "managed"),
        ({}, {"host": "0.0.0.0", "socket": None, "managed": False}, "loopback"),
        ({"bound": "tanh:0,1"}, {}, "a bound is"),
        ({"bound": "clip:1,0"}, {}, "low must lie below"),
        ({"bound": "clip:0"}, {}, "a bound is"),
        ({"folder": None}, {}, "folder"),
        ({"backend": "http", "url": "http://10.0.0.1/"}, {}, "folder"),
        ({"backend": "http", "url": "http://10.0.0.1/", "folder": None, "template": "{prompt} {answer}"}, {}, "TLS"),
        ({"surplus": 1}, {}, "rewards.model"),
    ],
)
def test_a_model_that_cannot_be_meant_is_refused(
    tmp_path: Path, model: dict[str, Any] | None, rewards: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load(tmp_path, model, **rewards)


def test_a_worker_on_loopback_is_run_by_the_operator(tmp_path: Path) -> None:
    rewards = load(tmp_path, {}, host="127.0.0.1", socket=None, managed=False).rewards
    assert (rewards.host, rewards.port, rewards.socket) == ("127.0.0.1", 8991, None)


def test_a_declared_sensitivity_needs_its_reason_and_never_exceeds_the_range(tmp_path: Path) -> None:
    declared = {"sensitivity": "declared", "declared_reason": "trained with DP-SGD"}
    settings = load(tmp_path, {}, declared_sensitivity=0.1, **declared)
    assert sensitivity_of(settings.rewards, load_reward_model(settings.rewards)) == 0.1
    settings = load(tmp_path, {}, declared_sensitivity=5.0, **declared)
    assert sensitivity_of(settings.rewards, load_reward_model(settings.rewards)) == 1.0


def test_bounds_are_read_from_their_short_form() -> None:
    assert parse_bound("sigmoid:-1,0.5", 3.0) == SigmoidBound(-1.0, 0.5, 3.0)
    assert parse_bound("clip:-4,4") == ClipBound(-4.0, 4.0, 1.0)
    for text in ("", "clip", "clip:", "clip:a,b", "clip:nan,1", "clip:0,1,2", "sigmoid:0,0", "sigmoid:0,-1"):
        with pytest.raises(ValueError):
            parse_bound(text)


def test_the_shipped_head_has_the_facts_that_its_certificate_was_made_for() -> None:
    head = LinearHead.load(EMBEDDED / "head.json")
    certificate = json.loads((EMBEDDED / "certificate.json").read_text())
    found: list[dict[str, Any]] = []

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("reward_model"), dict):
                found.append(value["reward_model"])
            for part in value.values():
                collect(part)
        elif isinstance(value, list):
            for part in value:
                collect(part)

    collect(certificate)
    assert found
    lattice = RewardLattice(head.reward_max, head.sensitivity)
    expected = {**head.public_facts(), "sensitivity": lattice.sensitivity, "lattice_bits": lattice.bits}
    for facts in found:
        assert facts == expected
