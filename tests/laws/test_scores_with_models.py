"""Scores that run a model, against brute force on tiny models with random weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reticent.rewards.errors import EncoderUnavailable, ScoreInputMissing
from reticent.rewards.scores import (
    TOP_LOG_PROBABILITIES,
    EntailedByEvidence,
    Franq,
    SameEntailment,
    Score,
    ScoreInputs,
    ScoreModels,
    SelfCheckNli,
    SemanticEntropy,
    auc,
    build_score,
    score_facts,
)
from tests.fakes.tiny_models import save_causal, save_entailment

torch = pytest.importorskip("torch", reason="needs torch")
transformers = pytest.importorskip("transformers", reason="needs transformers")

from reticent.rewards.scores.causal_passes import CausalPasses  # noqa: E402
from reticent.rewards.scores.entailment import EntailmentModel  # noqa: E402
from reticent.rewards.scores.redeep import ReDeEP, ReDeEPConstants, fit_redeep  # noqa: E402
from reticent.rewards.scores.redeep_statistics import ReDeEPForward, Statistics  # noqa: E402

EVIDENCE = ("ada has a black cat", "ada lives in oakford")
PROMPT = "ada has a black cat ada lives in oakford what pet does ada has"
ANSWERS = ("a cat", "ada has a small dog in town", "no", "a black cat")
HEADS = [(layer, head) for layer in range(2) for head in range(4)]


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal(tmp_path_factory.mktemp("causal"))


@pytest.fixture(scope="module")
def forward(causal: Path) -> ReDeEPForward:
    return ReDeEPForward(CausalPasses(causal, attentions=True), share=0.3)


@pytest.fixture(scope="module")
def entailment(tmp_path_factory: pytest.TempPathFactory) -> EntailmentModel:
    return EntailmentModel(save_entailment(tmp_path_factory.mktemp("entailment")))


def _tokens(passes: CausalPasses, prompt: str, answer: str) -> tuple[list[int], int]:
    """Tokens by the whole text at once, and the number of the prompt's."""
    tokenizer: Any = passes._tokenizer
    ids = tokenizer(f"<u> {prompt} <e> <a> {answer}")["input_ids"]
    return ids, len(prompt.split()) + 3


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_pass_gives_the_log_probabilities_of_a_plain_forward(causal: Path, answer: str) -> None:
    passes = CausalPasses(causal)
    found = passes.answer_pass(PROMPT, answer)
    again = passes.answer_pass(PROMPT, answer)  # From the kept prompt.
    ids, start = _tokens(passes, PROMPT, answer)
    with torch.inference_mode():
        logs = passes.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    wanted = [float(logs[i - 1, ids[i]]) for i in range(start, len(ids))]
    assert found.log_probabilities == pytest.approx(wanted, abs=1e-5)
    assert again.log_probabilities == pytest.approx(wanted, abs=1e-5)
    for i, row in zip(range(start, len(ids)), found.top, strict=True):
        assert row == pytest.approx(sorted(logs[i - 1].tolist(), reverse=True)[:TOP_LOG_PROBABILITIES], abs=1e-5)


def test_an_answer_without_tokens_or_too_long_has_no_pass(causal: Path) -> None:
    passes = CausalPasses(causal, max_tokens=20)
    assert passes.answer_pass(PROMPT, "").log_probabilities == ()
    assert passes.answer_pass(PROMPT, "a cat a cat a cat a cat").log_probabilities == ()
    assert len(passes.answer_pass(PROMPT, "a cat").log_probabilities) == 2


def test_samples_are_seeded_and_follow_the_models_law(causal: Path) -> None:
    passes = CausalPasses(causal)
    drawn = passes.sample("what pet", 2000, max_new_tokens=1, temperature=1.0, seed=3)
    assert drawn == passes.sample("what pet", 2000, max_new_tokens=1, temperature=1.0, seed=3)
    assert drawn != passes.sample("what pet", 2000, max_new_tokens=1, temperature=1.0, seed=4)
    for word in ("cat", "ada", "no"):
        p = math.exp(passes.answer_pass("what pet", word).log_probabilities[0])
        assert abs(drawn.count(word) / 2000 - p) <= 4 * math.sqrt(p * (1 - p) / 2000) + 1e-9


def test_the_evidence_is_found_among_the_prompts_tokens(causal: Path) -> None:
    encoded = CausalPasses(causal).encode(PROMPT, "a cat", EVIDENCE)
    assert encoded is not None
    assert encoded.evidence == tuple(range(1, 10))
    nowhere = CausalPasses(causal).encode(PROMPT, "a cat", ("not stated",))
    assert nowhere is not None
    assert nowhere.evidence == tuple(range(nowhere.answer_start))


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_statistics_of_redeep_by_brute_force(forward: ReDeEPForward, answer: str) -> None:
    model = forward.passes.model
    ids, start = _tokens(forward.passes, PROMPT, answer)
    with torch.inference_mode():
        plain = model(torch.tensor([ids]), output_attentions=True, output_hidden_states=True)
    last = plain.hidden_states[-1][0].double().numpy()
    found = forward.statistics(PROMPT, EVIDENCE, answer, HEADS, [0, 1])
    assert found is not None
    positions, context = range(start - 1, len(ids) - 1), list(range(1, 10))
    for layer, head in HEADS:
        cosines = []
        for t in positions:
            weights = plain.attentions[layer][0, head, t].numpy()
            most = sorted(context, key=lambda j: -weights[j])[:3]  # 0.3 of 9 tokens, rounded up.
            mean = last[most].mean(axis=0)
            cosines.append(float(mean @ last[t] / (np.linalg.norm(mean) * np.linalg.norm(last[t]))))
        assert found.external[layer, head] == pytest.approx(float(np.mean(cosines)), abs=1e-5)
    for layer in (0, 1):
        assert found.parametric[layer] == pytest.approx(_divergence(model, ids, positions, layer), abs=1e-5)


def _divergence(model: Any, ids: list[int], positions: range, layer: int) -> float:
    """The mean Jensen-Shannon divergence, the layer computed step by step from its input."""
    block = model.model.layers[layer]
    with torch.inference_mode():
        plain = model(torch.tensor([ids]), output_hidden_states=True)
        # The last hidden state is given after the norm, so the layer's own output is computed here.
        entering = plain.hidden_states[layer]
        places = torch.arange(len(ids))[None]
        embedded = model.model.rotary_emb(entering, places)
        mask = torch.full((1, 1, len(ids), len(ids)), -math.inf).triu(1)
        attended = block.self_attn(block.input_layernorm(entering), position_embeddings=embedded, attention_mask=mask)[
            0
        ]
        before = entering + attended
        after = before + block.mlp(block.post_attention_layernorm(before))
        p, q = (
            model.lm_head(model.model.norm(x))[0].double().softmax(-1).numpy()[list(positions)] for x in (before, after)
        )
    m = (p + q) / 2
    return float((0.5 * ((p * np.log(p / m)).sum(-1) + (q * np.log(q / m)).sum(-1))).mean())


def test_copying_scores_are_the_eigenvalues_of_the_whole_circuit(forward: ReDeEPForward) -> None:
    found, model = forward.copying_scores(), forward.passes.model
    assert found.shape == (2, 4)
    embedding = model.get_input_embeddings().weight.detach().double().numpy()
    out = model.get_output_embeddings().weight.detach().double().numpy()
    for layer, head in HEADS:
        attention = model.model.layers[layer].self_attn
        value = attention.v_proj.weight.detach().double().numpy()[(head // 2) * 8 : (head // 2 + 1) * 8]
        output = attention.o_proj.weight.detach().double().numpy()[:, head * 8 : (head + 1) * 8]
        eigenvalues = np.linalg.eigvals(out @ output @ value @ embedding.T)
        wanted = eigenvalues.real.sum() / np.abs(eigenvalues).sum()
        assert found[layer, head] == pytest.approx(wanted, abs=1e-6)


def test_redeep_is_the_logistic_of_its_standardised_means(forward: ReDeEPForward, causal: Path) -> None:
    fitted = ReDeEPConstants(((0, 1), (1, 3)), (1,), (0.2, 0.1), (0.5, 0.05), (1.5, -0.5), 0.3)
    score = ReDeEP(forward, fitted)
    inputs = ScoreInputs("what pet does ada has", EVIDENCE, "a cat", prompt=PROMPT)
    found = forward.statistics(PROMPT, EVIDENCE, "a cat", fitted.heads, fitted.layers)
    assert found is not None
    external = (found.external[0, 1] + found.external[1, 3]) / 2
    z = 0.3 + 1.5 * (external - 0.2) / 0.5 - 0.5 * (found.parametric[1] - 0.1) / 0.05
    assert score.compute(inputs) == pytest.approx(1 / (1 + math.exp(-z)))
    assert score.compute(ScoreInputs("?", EVIDENCE, "", prompt=PROMPT)) == 0.0
    with pytest.raises(ScoreInputMissing):
        score.compute(ScoreInputs("?", EVIDENCE, "a cat"))
    _is_rebuilt(score, ScoreModels(causal=causal), inputs)


def _is_rebuilt(score: Score, models: ScoreModels, inputs: ScoreInputs) -> None:
    facts = json.loads(json.dumps(score_facts(score)))
    again = build_score(facts["name"], facts["constants"], models)
    assert again.constants == score.constants
    assert again.compute(inputs) == pytest.approx(score.compute(inputs), abs=1e-6)
    assert 0.0 <= score.compute(inputs) <= 1.0


def test_a_fit_of_redeep_finds_the_planted_heads_and_layer() -> None:
    rng = np.random.default_rng(4)
    right = [bool(x) for x in rng.random(120) < 0.5]
    heads, layers = [(i, j) for i in range(4) for j in range(4)], range(4)
    told = {(1, 2), (3, 0)}
    rows = [
        Statistics(
            {h: float(rng.normal() + 2.0 * (good and h in told)) for h in heads},
            {i: float(abs(rng.normal()) + 1.5 * (not good and i == 2)) for i in layers},
        )
        for good in right
    ]
    copying = {h: (1.0 if h in told else float(rng.uniform(-1, 0.9))) for h in heads}
    fitted = fit_redeep(rows, right, copying, heads=2, layers=1)
    assert set(fitted.heads) == told
    assert fitted.layers == (2,)
    assert fitted.coefficients[0] > 0 > fitted.coefficients[1]
    assert auc([fitted.score(row) for row in rows], right) > 0.95
    # A head that does not copy is no candidate, however well it tells.
    assert (1, 2) not in fit_redeep(rows, right, {**copying, (1, 2): -1.0}, heads=2, layers=1).heads
    with pytest.raises(ValueError):
        fit_redeep(rows, [True] * 120, copying)


def test_another_model_than_the_constants_name_is_refused(causal: Path, tmp_path: Path) -> None:
    forward = ReDeEPForward(CausalPasses(causal, attentions=True))
    facts = score_facts(ReDeEP(forward, ReDeEPConstants(((0, 0),), (0,), (0, 0), (1, 1), (1, 1), 0)))
    other = save_causal(tmp_path, seed=1)
    with pytest.raises(ValueError, match="constants"):
        build_score("redeep", json.loads(json.dumps(facts["constants"])), ScoreModels(causal=other))
    with pytest.raises(EncoderUnavailable):
        CausalPasses(tmp_path / "nowhere")


def _softmax(model: EntailmentModel, premise: str, hypothesis: str) -> list[float]:
    tokens = model._tokenizer(premise, hypothesis, return_tensors="pt")
    with torch.inference_mode():
        logits = model._model(**tokens).logits[0].double()
    return [float(x) for x in logits.softmax(-1)]


def test_entailment_does_not_depend_on_the_batch(entailment: EntailmentModel) -> None:
    pairs = [(a, b) for a in ANSWERS for b in ANSWERS] * 2
    found, against = entailment.entails(pairs), entailment.contradicts(pairs)
    for (a, b), told, denied in zip(pairs, found, against, strict=True):
        c, _, e = _softmax(entailment, a, b)
        assert told == pytest.approx(e, abs=1e-5)
        assert denied == pytest.approx(c / (c + e), abs=1e-5)


def test_selfcheck_by_contradiction_by_hand(entailment: EntailmentModel) -> None:
    inputs = ScoreInputs("what", (), "a cat. ada has a dog.", ("a dog", "", "no"))
    wanted = []
    for sentence in ("a cat.", "ada has a dog."):
        for other in ("a dog", "no"):
            c, _, e = _softmax(entailment, other, sentence)
            wanted.append(c / (c + e))
    assert SelfCheckNli(entailment).compute(inputs) == pytest.approx(1 - sum(wanted) / 4, abs=1e-5)
    assert SelfCheckNli(entailment).compute(ScoreInputs("what", (), "a cat")) == 0.0
    _is_rebuilt(SelfCheckNli(entailment), ScoreModels(entailment=entailment._folder), inputs)


def test_selfcheck_needs_a_label_for_contradiction(tmp_path: Path) -> None:
    two = EntailmentModel(save_entailment(tmp_path / "two", ("entailment", "not_entailment")))
    with pytest.raises(EncoderUnavailable, match="contradiction"):
        SelfCheckNli(two)
    with pytest.raises(EncoderUnavailable, match="entailment"):
        EntailmentModel(save_entailment(tmp_path / "none", ("good", "bad")))


def test_answers_are_the_same_when_each_entails_the_other(entailment: EntailmentModel) -> None:
    threshold = 0.3
    table = SameEntailment(entailment, threshold).same("what", ANSWERS)
    for i, a in enumerate(ANSWERS):
        for j, b in enumerate(ANSWERS):
            both = min(_softmax(entailment, f"what {x}", f"what {y}")[2] for x, y in ((a, b), (b, a)))
            assert i == j or abs(both - threshold) < 1e-4 or table[i][j] == (both >= threshold)
    score = SemanticEntropy(SameEntailment(entailment, threshold))
    _is_rebuilt(score, ScoreModels(entailment=entailment._folder), ScoreInputs("what", (), "a cat", ANSWERS))


def test_faithfulness_by_entailment_takes_the_best_passage_of_each_sentence(entailment: EntailmentModel) -> None:
    inputs = ScoreInputs("what", EVIDENCE, "a cat. no.")
    wanted = [max(_softmax(entailment, told, f"what {said}")[2] for told in EVIDENCE) for said in ("a cat.", "no.")]
    score = EntailedByEvidence(entailment)
    assert score.compute(inputs) == pytest.approx(sum(wanted) / 2, abs=1e-5)
    assert score.compute(ScoreInputs("what", (), "a cat")) == 0.0
    _is_rebuilt(
        Franq(score),
        ScoreModels(entailment=entailment._folder),
        ScoreInputs("what", EVIDENCE, "a cat", mean_log_probability=-0.5, lift_log_ratios=[0.5]),
    )
