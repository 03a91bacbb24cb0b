"""Declared reward models of every architecture through the real loading path, beside a plain transformers forward."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402
from transformers import (  # noqa: E402
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPTNeoXConfig,
    GPTNeoXModel,
)

from reticent.rewards.backends import build_backend  # noqa: E402
from reticent.rewards.backends.classifier import ClassifierBackend  # noqa: E402
from reticent.rewards.bounds import ClipBound, parse_bound  # noqa: E402
from reticent.rewards.encoders.base import Subject  # noqa: E402
from reticent.rewards.errors import ModelUnusable  # noqa: E402
from reticent.rewards.ports import RewardBackend  # noqa: E402
from reticent.rewards.profile import ModelProfile  # noqa: E402
from reticent.rewards.rendering import Rendering  # noqa: E402
from tests.contracts.test_reward_worker import RewardBackendContract  # noqa: E402
from tests.fakes import tiny_rewards as tiny  # noqa: E402

# DeBERTa's own code is compiled by a function of torch that is on its way out.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

PROMPT = "Passage: Ada has a cat. Question: What pet has Ada?"
ANSWERS = [
    "Ada has a cat.",
    "A dog.",
    "It is not stated. " * 5,
    " The dog ran home",
    "x",
    "Ada " * 30,
    "The quick brown fox",
    "yes or no: 1 2 3",
]
WIDE = 100.0
"""Bound of the tests, [-100, 100] with R = 200, so that a bounded reward is the raw one plus 100."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name in tiny.CONFIGS:
        made[name] = tmp_path_factory.mktemp(name)
        tiny.make_classifier(name, made[name])
    return made


def profile(folder: Path, template: str = "chat", **more: Any) -> ModelProfile:
    fields: dict[str, Any] = {"bound": ClipBound(-WIDE, WIDE, 2 * WIDE), "max_length": 256, **more}
    return ModelProfile(
        backend="transformers", name=folder.name, revision="1", folder=folder, template=template, **fields
    )


def raw(backend: ClassifierBackend, answers: list[str], prompt: str = PROMPT) -> list[float]:
    return [reward - WIDE for reward in backend.score(Subject(prompt), answers)]


def plain_inputs(folder: Path, template: str, answer: str) -> dict[str, Any]:
    """What somebody would write who knows nothing of this package."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if template == "pair":
        return dict(tokenizer(PROMPT, answer, return_tensors="pt"))
    if template == "chat":
        messages = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": answer}]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    else:
        text = template.replace("{prompt}", PROMPT).replace("{answer}", answer)
    return dict(tokenizer(text, add_special_tokens=False, return_tensors="pt", return_token_type_ids=False))


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_every_architecture_scores_as_a_plain_forward_does(folders: dict[str, Path], name: str) -> None:
    folder, template = folders[name], tiny.CONFIGS[name][1]
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    expected = []
    for answer in ANSWERS:
        inputs = plain_inputs(folder, template, answer)
        if name == "modernbert":
            inputs.pop("token_type_ids", None)
        with torch.no_grad():
            expected.append(model(**inputs).logits.item())
    found = raw(ClassifierBackend(profile(folder, template)), ANSWERS)
    assert max(expected) - min(expected) > 1e-2, "the rewards of this model do not differ"
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 1e-5), ("bfloat16", 1e-3), ("float16", 1e-3)])
@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_a_raw_reward_does_not_depend_on_its_batch(
    folders: dict[str, Path], name: str, dtype: str, allowed: float
) -> None:
    backend = ClassifierBackend(profile(folders[name], tiny.CONFIGS[name][1], dtype=dtype))
    alone = [raw(backend, [answer])[0] for answer in ANSWERS]
    rng = random.Random(1)
    for _ in range(3):
        chosen = rng.sample(range(len(ANSWERS)), rng.randint(2, len(ANSWERS)))
        assert raw(backend, [ANSWERS[i] for i in chosen]) == pytest.approx([alone[i] for i in chosen], abs=allowed)


def test_free_shapes_in_half_precision_would_fail_that_test(folders: dict[str, Path]) -> None:
    """The twin: the same weights in batches padded as float32 is."""
    moved = 0.0
    for name, (_, template) in tiny.CONFIGS.items():
        backend = ClassifierBackend(profile(folders[name], template, dtype="bfloat16"))
        alone = [raw(backend, [answer])[0] for answer in ANSWERS]
        object.__setattr__(
            backend.profile, "dtype", "float32"
        )  # Shapes follow this name; the weights stay as they are.
        moved = max(moved, *(abs(a - b) for a, b in zip(raw(backend, ANSWERS), alone, strict=True)))
    assert moved > 1e-3


class TestClassifierBackend(RewardBackendContract):
    @pytest.fixture(autouse=True)
    def _folder(self, folders: dict[str, Path]) -> None:
        self.folder = folders["llama"]

    def backend(self) -> RewardBackend:
        return build_backend(profile(self.folder, bound=parse_bound("sigmoid:0,2", 0.5)))


# --- other heads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_openassistants_head_is_read_by_its_own_layout(tmp_path: Path, pooling: str) -> None:
    tiny.make_openassistant(tmp_path, pooling)
    template = tiny.CONFIGS["gpt_neox"][1]
    weights = load_file(tmp_path / "model.safetensors")
    stated = json.loads((tmp_path / "config.json").read_text())
    stated.pop("model_type")
    base = GPTNeoXModel(GPTNeoXConfig(**stated)).eval()
    base.load_state_dict({k.removeprefix("gpt_neox."): v for k, v in weights.items() if k.startswith("gpt_neox.")})
    expected = []
    for answer in ANSWERS:
        with torch.no_grad():
            states = base(**plain_inputs(tmp_path, template, answer)).last_hidden_state[0]
        pooled = states.mean(0) if pooling == "mean" else states[-1]
        expected.append(float(pooled @ weights["out_proj.weight"][0] + weights["out_proj.bias"][0]))
    found = raw(ClassifierBackend(profile(tmp_path, template)), ANSWERS)
    assert found == pytest.approx(expected, abs=1e-4)


def test_armorms_gate_weighs_its_objectives(tmp_path: Path) -> None:
    """Beside the sums written out, one candidate and one objective at a time."""
    tiny.make_gated(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    base = AutoModel.from_pretrained(tmp_path).eval()
    expected = []
    for answer in ANSWERS:
        inputs = plain_inputs(tmp_path, "chat", answer)
        ids = inputs["input_ids"][0].tolist()
        place = max(i for i in range(len(ids) - 1) if tuple(ids[i : i + 2]) == tiny.GATE)
        with torch.no_grad():
            states = base(**inputs).last_hidden_state[0]
        gate = states[place]
        for i in range(4):
            gate = weights[f"gating.layers.{i}.weight"] @ gate + weights[f"gating.layers.{i}.bias"]
            gate = torch.clamp(gate, min=0) if i < 3 else gate
        shares = [math.exp(float(g) / 2) for g in gate]
        objectives = weights["regression_layer.weight"] @ states[-1]
        total = 0.0
        for k, share in enumerate(shares):
            adjusted = sum(float(objectives[j]) * float(weights["reward_transform_matrix"][j, k]) for j in range(5))
            total += 1.5 * share / sum(shares) * adjusted
        expected.append(total)
    found = raw(ClassifierBackend(profile(tmp_path)), ANSWERS)
    assert max(expected) - min(expected) > 0.1
    assert found == pytest.approx(expected, abs=1e-4)


# --- templates and lengths ----------------------------------------------------------------------------------------


def test_the_chat_template_is_applied_once(folders: dict[str, Path]) -> None:
    folder = folders["llama"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("<s>a")["input_ids"][:2] == [1, 1], "the tokenizer of this test would double the first token"
    encoded = Rendering(folder, "chat", 256, "zero").encode(PROMPT, " Ada has a cat. ")
    assert encoded is not None
    messages = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": "Ada has a cat."}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert tokenizer.decode(encoded.ids) == text
    assert encoded.ids.count(1) == 1


@pytest.mark.parametrize("template", ["chat", "pair", "Q: {prompt}<|end|>A: {answer}</s>"])
def test_a_long_prompt_loses_its_start_and_an_answer_nothing(folders: dict[str, Path], template: str) -> None:
    folder = folders["llama"]
    whole = Rendering(folder, template, 10_000, "truncate-prompt").encode(PROMPT * 20, "Ada has a cat.")
    cut = Rendering(folder, template, 100, "truncate-prompt").encode(PROMPT * 20, "Ada has a cat.")
    alone = Rendering(folder, template, 10_000, "zero").encode("", "Ada has a cat.")
    assert whole is not None
    assert cut is not None
    assert alone is not None
    assert len(cut.ids) == 100 < len(whole.ids)
    kept_head = next(i for i, (a, b) in enumerate(zip(cut.ids, whole.ids, strict=False)) if a != b)
    rest = len(cut.ids) - kept_head
    assert cut.ids[kept_head:] == whole.ids[-rest:]
    assert len(alone.ids) - kept_head < rest, "what surrounds the answer is all there"
    assert Rendering(folder, template, 100, "zero").encode(PROMPT * 20, "Ada has a cat.") is None


@pytest.mark.parametrize("template", ["chat", "pair", "Q: {prompt}<|end|>A: {answer}</s>"])
@pytest.mark.parametrize("rule", ["truncate-prompt", "zero"])
def test_an_answer_that_does_not_fit_gets_zero(folders: dict[str, Path], template: str, rule: Any) -> None:
    backend = ClassifierBackend(profile(folders["llama"], template, max_length=60, long_input=rule))
    rewards = backend.score(Subject("?"), ["Ada has a cat.", "Zx9 " * 60, ""])
    assert rewards[0] > 0
    assert rewards[1:] == [0.0, 0.0]


def test_an_answer_that_the_template_would_change_gets_zero(tmp_path: Path) -> None:
    tiny.make_classifier("llama", tmp_path)
    tiny.make_tokenizer(tmp_path, tiny.CHAT.replace("m['content'] | trim", "m['content'].split('</think>')[-1]"))
    rendering = Rendering(tmp_path, "chat", 256, "zero")
    assert rendering.encode("Why?", "Because.") is not None
    assert rendering.encode("Why?", "I think</think>Because.") is None


# --- refusals -----------------------------------------------------------------------------------------------------


def _edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_model_without_its_reward_head_is_refused(tmp_path: Path) -> None:
    """transformers would make the head up at random, and say so in a warning only."""
    tiny.make_tokenizer(tmp_path)
    AutoModelForCausalLM.from_config(tiny.CONFIGS["llama"][0]()).save_pretrained(tmp_path)
    with pytest.raises(ModelUnusable, match="weights are missing"):
        ClassifierBackend(profile(tmp_path))


def test_a_gated_model_without_its_gate_is_refused(tmp_path: Path) -> None:
    tiny.make_classifier("llama", tmp_path)
    _edit(tmp_path, architectures=["LlamaForRewardModelWithGating"])
    with pytest.raises(ModelUnusable, match="regression_layer"):
        ClassifierBackend(profile(tmp_path))


def test_what_is_no_reward_model_is_refused_with_a_reason(tmp_path: Path) -> None:
    tiny.make_classifier("llama", tmp_path / "two", num_labels=2)
    with pytest.raises(ModelUnusable, match="2 labels"):
        ClassifierBackend(profile(tmp_path / "two"))
    tiny.make_classifier("llama", tmp_path / "odd")
    with pytest.raises(ModelUnusable, match="256 tokens"):
        ClassifierBackend(profile(tmp_path / "odd", max_length=257))
    _edit(tmp_path / "odd", model_type="no-such-thing")
    with pytest.raises(ModelUnusable, match="no-such-thing"):
        ClassifierBackend(profile(tmp_path / "odd", "pair"))
    with pytest.raises(ModelUnusable, match="no tokenizer"):
        ClassifierBackend(profile(tmp_path / "none"))
    tiny.make_tokenizer(tmp_path / "tokenizer")
    with pytest.raises(ModelUnusable, match=r"no config\.json"):
        ClassifierBackend(profile(tmp_path / "tokenizer"))
    tiny.make_tokenizer(tmp_path / "plain", "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}"
    "{% endif %}{% endfor %}")  # fmt: skip
    with pytest.raises(ModelUnusable, match="does not show"):
        Rendering(tmp_path / "plain", "chat", 9, "zero")


def test_a_reward_that_is_not_finite_is_zero(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tiny.make_classifier("llama", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["score.weight"][:] = math.inf
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert ClassifierBackend(profile(tmp_path)).score(Subject(PROMPT), ANSWERS) == [0.0] * len(ANSWERS)
