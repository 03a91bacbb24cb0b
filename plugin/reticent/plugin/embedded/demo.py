"""`make demo`: the story of the project, played against a running embedded server with the `openai` client.

Three answers and a falling budget, an answer that the gate refuses, and a budget that runs out under both policies.
Every step states what must happen; a step that goes otherwise makes the demo fail.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import openai
from openai.types.chat import ChatCompletion
from rich import box
from rich.console import Console
from rich.table import Table

from reticent.plugin.embedded.task import Item, generate

__all__ = ["Step", "play", "story"]

_MOST_TRIES = 40
_MOST_TO_EXHAUST = 400


@dataclass(frozen=True)
class Step:
    """One line of the story: what was asked for, what happened, and whether that is what should have happened."""

    who: str
    title: str
    result: str
    text: str
    charge: str
    left: str
    well: bool


class _Player:
    """Asks questions of the embedded task."""

    def __init__(self, base_url: str, model: str, keys: Mapping[str, str], seed: int) -> None:
        self._clients = {
            name: openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=120.0)
            for name, key in keys.items()
        }
        self._model = model
        self._items = generate(seed, 10_000)
        # New users at every run, so that the demo finds full user budgets however often it is played.
        self.run = secrets.token_hex(4)

    def ask(self, tenant: str, user: str, **extension: Any) -> tuple[Item, ChatCompletion]:
        item = next(self._items)
        completion = self._clients[tenant].chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": item.question}],
            user=f"{user}-{self.run}",
            extra_body={"reticent": {"evidence": [item.passage], **extension}},
        )
        return item, completion


def _facts(completion: ChatCompletion) -> dict[str, Any]:
    found: dict[str, Any] = (completion.model_extra or {})["reticent"]
    return found


def _said(completion: ChatCompletion) -> str:
    message = completion.choices[0].message
    return message.content or message.refusal or ""


def _step(title: str, who: str, result: str, completion: ChatCompletion, well: bool) -> Step:
    facts = _facts(completion)
    charge = "unbounded" if facts["charge"] is None else f"{facts['charge']:.6f}"
    return Step(who, title, result, _said(completion), charge, f"{facts['remaining']['user']:.6f}", well)


def _three_answers(player: _Player) -> Iterator[Step]:
    """Three private answers for one user; each must cost something, and the budget must fall by just that."""
    left: float | None = None
    for number in (1, 2, 3):
        _, completion = player.ask("demo-open", "alice")
        facts = _facts(completion)
        now, charge = facts["remaining"]["user"], facts["charge"]
        fell = left is None or abs((left - now) - charge) < 1e-8
        well = facts["selection"] == "privbon" and charge > 0 and fell and bool(_said(completion))
        left = now
        yield _step(f"privbon, answer {number}", "demo-open/alice", "answered", completion, well)
    _, completion = player.ask("demo-open", "alice", rule="privitp")
    facts = _facts(completion)
    well = facts["selection"] == "privitp" and facts["charge"] > 0 and facts["halting_time"] >= 1
    yield _step("privitp, lazy", "demo-open/alice", "answered", completion, well)
    _, completion = player.ask("demo-open", "alice", rule="bon")
    facts = _facts(completion)
    well = facts["charge"] is None and "not private" in facts.get("warning", "")
    yield _step("bon, allowed here, not private", "demo-open/alice", "answered", completion, well)


def _gate(player: _Player) -> Iterator[Step]:
    """The strict tenant gets certified answers and refusals; both must come up."""
    seen: dict[str, ChatCompletion] = {}
    for number in range(_MOST_TRIES):
        # A user for every question, so that no user budget runs out here.
        _, completion = player.ask("demo-strict", f"bob{number}")
        refused = completion.choices[0].message.refusal is not None
        seen.setdefault("refused" if refused else "answered", completion)
        if len(seen) == 2:
            break
    for result, title in (("answered", "above the threshold"), ("refused", "below the threshold")):
        found = seen.get(result)
        if found is None:
            yield Step("demo-strict/bob", title, "did not come", f"in {_MOST_TRIES} questions", "", "", False)
            continue
        facts = _facts(found)
        expected = "accepted" if result == "answered" else "score_below_threshold"
        well = facts["certificate"]["status"] == expected and facts["score_accepted"] is (result == "answered")
        yield _step(title, "demo-strict/bob", result, found, well)


def _exhaust(player: _Player, tenant: str, user: str) -> tuple[int, ChatCompletion | openai.APIStatusError]:
    """Ask until the user's budget is spent; how many answers that took, and what came then."""
    for number in range(_MOST_TO_EXHAUST):
        try:
            _, completion = player.ask(tenant, user, candidates=2)
        except openai.PermissionDeniedError as error:
            return number, error
        if _facts(completion)["selection"] == "base":
            return number, completion
    raise RuntimeError(f"the budget of {tenant}/{user} was not spent after {_MOST_TO_EXHAUST} answers")


def _exhaustion(player: _Player) -> Iterator[Step]:
    """A user's budget runs out: one tenant's policy gives base answers, the other's refuses."""
    number, end = _exhaust(player, "demo-open", "carol")
    title = f"spent after {number}, policy base"
    if isinstance(end, ChatCompletion):
        facts = _facts(end)
        well = facts["charge"] == 0 and bool(_said(end)) and not facts["score_accepted"]
        yield _step(title, "demo-open/carol", "exhausted: base answer", end, well)
    else:
        yield Step("demo-open/carol", title, "exhausted: refused", str(end.code), "", "", False)
    number, end = _exhaust(player, "demo-strict", "dave")
    title = f"spent after {number}, policy refuse"
    if isinstance(end, openai.APIStatusError):
        well = end.status_code == 403 and end.code == "privacy_budget_exhausted"
        yield Step("demo-strict/dave", title, "exhausted: refused", f"{end.status_code} {end.code}", "0", "", well)
    else:
        yield _step(title, "demo-strict/dave", "exhausted: base answer", end, False)


def story(base_url: str, model: str, keys: Mapping[str, str], seed: int) -> Iterator[Step]:
    """Play every chapter; yield its steps as they happen.

    Args:
        base_url: the server's address, ending in `/v1`.
        model: the served model.
        keys: the two demo tenants' keys.
        seed: of the questions.
    """
    player = _Player(base_url, model, keys, seed)
    chapters: tuple[Callable[[_Player], Iterator[Step]], ...] = (_three_answers, _gate, _exhaustion)
    for chapter in chapters:
        yield from chapter(player)


def play(base_url: str, model: str, keys: Mapping[str, str]) -> bool:
    """Play the story and print it as a table; say whether every step went as told."""
    console = Console()
    steps: list[Step] = []
    try:
        for step in story(base_url, model, keys, seed=secrets.randbits(31)):
            console.print(f"[{'green' if step.well else 'red'}]{step.result}[/]  {step.who}, {step.title}: {step.text}")
            steps.append(step)
    except openai.APIConnectionError:
        console.print(f"no server answers at {base_url}; start it with: make serve")
        return False
    except (openai.APIStatusError, RuntimeError) as error:
        console.print(f"[red]the story ended early:[/] {error}")
        return False
    table = Table(title="What happened (charge and what is left to the user, in nats)", box=box.SIMPLE_HEAD)
    for name in ("who", "asked", "result"):
        table.add_column(name)
    for name in ("charge", "left"):
        table.add_column(name, justify="right")
    for step in steps:
        result = step.result if step.well else f"NOT AS TOLD: {step.result}"
        table.add_row(step.who, step.title, result, step.charge, step.left)
    console.print(table)
    return all(step.well for step in steps)
