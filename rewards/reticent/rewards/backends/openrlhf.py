"""`http`: OpenRLHF's remote protocol as a client: `{"query": [...], "prompts": [...]}` to `{"rewards": [...]}`.

The server's half, `POST /get_reward`, is a route of the worker (`worker_app.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from reticent.rewards.errors import BackendFailed, ModelUnusable
from reticent.rewards.profile import ModelProfile
from reticent.rewards.rendering import cut_text

from .remote import RemoteBackend

__all__ = ["OpenRlhfBackend"]

_ROWS = 128


class OpenRlhfBackend(RemoteBackend[tuple[str, str]]):
    """Raw rewards of a server that speaks OpenRLHF's protocol.

    `query` is prompt and answer in the profile's template, `prompts` the same up to the answer. Lengths are counted in
    characters: what that server does with a text that is too long for its model cannot be seen from here, so
    `max_length` should be short enough.

    Args:
        profile: of backend `http`.
        transport: for tests.
    """

    def __init__(self, profile: ModelProfile, transport: httpx.BaseTransport | None = None) -> None:
        if profile.url is None:
            raise ModelUnusable(profile.name, "its profile names no url")
        super().__init__(profile, _ROWS, transport)
        self._url = profile.url
        self._before, _, rest = profile.template.partition("{prompt}")
        self._middle, _, self._after = rest.partition("{answer}")

    def _input(self, prompt: str, answer: str) -> tuple[str, str] | None:
        room = self.profile.max_length - len(self._before + self._middle + self._after)
        kept = cut_text(prompt, answer, room, self.profile.long_input)
        if kept is None:
            return None
        begun = self._before + kept + self._middle
        return begun, begun + answer + self._after

    def _call(self, inputs: Sequence[tuple[str, str]]) -> list[float]:
        body = {"query": [query for _, query in inputs], "prompts": [prompt for prompt, _ in inputs]}
        answer = self._caller.post(self._url, body)
        rewards = answer.get("rewards") if isinstance(answer, dict) else None
        if not isinstance(rewards, list) or len(rewards) != len(inputs):
            raise BackendFailed("the reward server did not give one reward a candidate")
        if not all(isinstance(r, int | float) and not isinstance(r, bool) for r in rewards):
            raise BackendFailed("the reward server gave a reward that is no number")
        return [float(reward) for reward in rewards]
