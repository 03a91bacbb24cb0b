"""The two statistics of ReDeEP (Sun et al. 2024) from a forward pass with hooks.

External context score of a head at a token: cosine between the mean last hidden state of the context tokens that the
head attends to most and the last hidden state at the token. Parametric knowledge score of a layer at a token:
Jensen-Shannon divergence between the next-token laws that the residual stream spells out before and after the layer's
feed-forward block. Both are averaged over the answer's tokens, at the positions that predict them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent.rewards.errors import EncoderUnavailable

from .causal_passes import CausalPasses

__all__ = ["ReDeEPForward", "Statistics"]


@dataclass(frozen=True)
class Statistics:
    """External context scores by (layer, head), in [-1, 1], and parametric knowledge scores by layer, in [0, log 2]."""

    external: dict[tuple[int, int], float]
    parametric: dict[int, float]


class ReDeEPForward:
    """Statistics of answers under a decoder of Llama's form (Llama, Mistral, Qwen2, Qwen3, SmolLM2 and their like).

    Args:
        passes: the model, loaded with attentions.
        share: which share of the context tokens, those attended to most, is read; at least one token.

    Raises:
        EncoderUnavailable: another form of decoder.
    """

    def __init__(self, passes: CausalPasses, share: float = 0.1) -> None:
        if not 0.0 < share <= 1.0:
            raise ValueError(f"share must be above 0 and at most 1: {share}")
        self.passes = passes
        self.share = share
        self._torch = passes.torch
        body = getattr(passes.model, "model", None)
        layers = getattr(body, "layers", None)
        wanted = ("self_attn", "mlp", "post_attention_layernorm")
        if layers is None or not all(hasattr(layer, name) for layer in layers for name in wanted):
            raise EncoderUnavailable("redeep", f"{type(passes.model).__name__} is no decoder of Llama's form")
        self._layers: Any = layers
        self._norm: Any = body.norm if body is not None else None
        self.layer_count = len(layers)
        self.head_count = int(passes.model.config.num_attention_heads)

    def statistics(
        self, prompt: str, evidence: Sequence[str], answer: str, heads: Sequence[tuple[int, int]], layers: Sequence[int]
    ) -> Statistics | None:
        """The statistics of these heads and layers; None for an answer without tokens or too long with its prompt."""
        encoded = self.passes.encode(prompt, answer, evidence)
        if encoded is None:
            return None
        rows = slice(encoded.answer_start - 1, len(encoded.ids) - 1)
        context = self._torch.tensor(encoded.evidence)
        attended = {layer for layer, _ in heads}
        with self._torch.inference_mode(), self._watching(rows, context, attended, set(layers)) as seen:
            self.passes.model(self._torch.tensor([encoded.ids]), logits_to_keep=1, use_cache=False)
            last = seen.pop("last")[0]
            external = self._external(seen, last[context], last[rows], heads)
            parametric = {layer: self._parametric(*seen["mlp", layer]) for layer in layers}
        return Statistics(external, parametric)

    def copying_scores(self) -> NDArray[np.float64]:
        """Σ Re λ/Σ |λ| over the eigenvalues of each head's output-value circuit from token to token, shape (L, H).

        1 for a head that raises the tokens that it reads, -1 for one that lowers them. Norms are left out.
        """
        model, torch = self.passes.model, self._torch
        with torch.inference_mode():
            through = (model.get_input_embeddings().weight.T @ model.get_output_embeddings().weight).double()
            out = np.zeros((self.layer_count, self.head_count))
            for i, layer in enumerate(self._layers):
                attention = layer.self_attn
                size = attention.o_proj.weight.shape[1] // self.head_count
                group = self.head_count // (attention.v_proj.weight.shape[0] // size)
                for h in range(self.head_count):
                    value = attention.v_proj.weight[(h // group) * size : (h // group + 1) * size].double()
                    output = attention.o_proj.weight[:, h * size : (h + 1) * size].double()
                    # The circuit W_U O V W_E has the nonzero eigenvalues of the small matrix V W_E W_U O.
                    eigenvalues = torch.linalg.eigvals(value @ through @ output)
                    out[i, h] = float(eigenvalues.real.sum() / eigenvalues.abs().sum())
        return out

    @contextmanager
    def _watching(self, rows: slice, context: Any, attended: set[int], layers: set[int]) -> Iterator[dict[Any, Any]]:
        seen: dict[Any, Any] = {}

        def attention(layer: int) -> Any:
            def hook(module: Any, args: Any, output: Any) -> None:
                seen["attention", layer] = output[1][0][:, rows][:, :, context]

            return hook

        def before_mlp(layer: int) -> Any:
            def hook(module: Any, args: Any) -> None:
                seen["before", layer] = args[0][0, rows]

            return hook

        def after_mlp(layer: int) -> Any:
            def hook(module: Any, args: Any, output: Any) -> None:
                before = seen.pop(("before", layer))
                seen["mlp", layer] = (before, before + output[0, rows])

            return hook

        def last(module: Any, args: Any, output: Any) -> None:
            seen["last"] = output

        handles = [self._norm.register_forward_hook(last)]
        handles += [self._layers[i].self_attn.register_forward_hook(attention(i)) for i in attended]
        for i in layers:
            handles.append(self._layers[i].post_attention_layernorm.register_forward_pre_hook(before_mlp(i)))
            handles.append(self._layers[i].mlp.register_forward_hook(after_mlp(i)))
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()

    def _external(
        self, seen: dict[Any, Any], context: Any, tokens: Any, heads: Sequence[tuple[int, int]]
    ) -> dict[tuple[int, int], float]:
        count = max(1, math.ceil(self.share * context.shape[0] - 1e-9))
        wanted: dict[int, list[int]] = {}
        for layer, head in heads:
            wanted.setdefault(layer, []).append(head)
        found = {}
        for layer, numbers in wanted.items():
            weights = seen["attention", layer][numbers]
            most = weights.topk(count, dim=-1).indices
            means = context[most].mean(dim=2)
            cosines = self._torch.nn.functional.cosine_similarity(means, tokens[None], dim=-1).mean(dim=1)
            found.update({(layer, head): float(x) for head, x in zip(numbers, cosines, strict=True)})
        return found

    def _parametric(self, before: Any, after: Any) -> float:
        head = self.passes.model.get_output_embeddings()
        p, q = (head(self._norm(x)).log_softmax(-1) for x in (before, after))
        middle = self._torch.logaddexp(p, q) - math.log(2.0)
        divergence = 0.5 * ((p.exp() * (p - middle)).sum(-1) + (q.exp() * (q - middle)).sum(-1))
        return max(0.0, float(divergence.double().mean()))
