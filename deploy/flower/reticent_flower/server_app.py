"""The calibration server as a Flower ServerApp: the same rounds, deadlines and transcript, over Flower's messages.

A request lives as long as its round, so a node that comes back later does not answer it, and spends no records on it.
Run configuration: `plan`, `out`, `round-seconds`, `gather-seconds` (how long to wait for all sites before the first
round opens), `stop` (end at the first certificate).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from reticent.accounting.calibration.plan import Plan
from reticent.accounting.calibration.rounds import Rounds, RoundStatus
from reticent.accounting.calibration.transcript import ReleaseRefusedError
from reticent.accounting.certificates import certifies
from reticent.accounting.fingerprint import canonical_json

__all__ = ["app"]

log = logging.getLogger("flwr.reticent")
app = ServerApp()

_PAUSE = 0.2
_WHO_SECONDS = 30.0


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the calibration to its end."""
    config = context.run_config
    plan = Plan.load(str(config["plan"]))
    rounds = Rounds(
        plan,
        Path(str(config["out"])),
        timedelta(seconds=float(config["round-seconds"])),
        certified=certifies if config["stop"] else None,
    )
    with rounds:
        conversation = _Conversation(grid, rounds)
        conversation.gather(float(config["gather-seconds"]))
        while (status := rounds.tick()).state != "finished":
            conversation.step(status)
            time.sleep(_PAUSE)
    log.info("calibration finished: %s", status.reason)


@dataclass
class _Conversation:
    """Which node is which site, and what was asked of it."""

    grid: Grid
    rounds: Rounds
    nodes: dict[str, int] = field(default_factory=dict)
    greeted: set[int] = field(default_factory=set)
    waiting: dict[str, tuple[str, int]] = field(default_factory=dict)
    asked: set[tuple[int, str]] = field(default_factory=set)

    def gather(self, seconds: float) -> None:
        """Wait until every site is there, but not longer than `seconds`."""
        deadline = time.monotonic() + seconds
        while len(self.nodes) < len(self.rounds.plan.sites) and time.monotonic() < deadline:
            self._greet()
            self._listen()
            time.sleep(_PAUSE)

    def step(self, status: RoundStatus) -> None:
        """Ask whom the round misses and who is there; take what has come."""
        self._greet()
        for site in status.missing:
            if site in self.nodes and (status.round_number, site) not in self.asked and status.closes_at:
                self._ask(site, status, (status.closes_at - datetime.now(UTC)).total_seconds())
        self._listen()

    def _greet(self) -> None:
        present = set(self.grid.get_node_ids())
        self.nodes = {site: node for site, node in self.nodes.items() if node in present}
        for node in present - self.greeted:
            self.greeted.add(node)
            self._send(node, "who", {}, _WHO_SECONDS)

    def _ask(self, site: str, status: RoundStatus, seconds: float) -> None:
        if seconds <= 0.0:
            return
        self.asked.add((status.round_number, site))
        plan = self.rounds.plan
        request: dict[str, str | int] = {
            "plan_digest": plan.digest,
            "round": status.round_number,
            "slots": status.asked[site],
        }
        if not plan.recruitment.is_fixed:
            request["transcript"] = canonical_json(self.rounds.transcript.to_json())
        self._send(self.nodes[site], "release", request, seconds)

    def _send(self, node: int, kind: str, request: dict[str, str | int], seconds: float) -> None:
        content = RecordDict({"request": ConfigRecord({**request})})
        message = Message(content, dst_node_id=node, message_type=f"query.{kind}", ttl=seconds)
        for identifier in self.grid.push_messages([message]):
            self.waiting[identifier] = (kind, node)

    def _listen(self) -> None:
        if not self.waiting:
            return
        for reply in self.grid.pull_messages(list(self.waiting)):
            kind, node = self.waiting.pop(reply.metadata.reply_to_message_id, ("", 0))
            if reply.has_error() or "reply" not in reply.content:
                log.warning("node %s did not answer", node)
                if kind == "who":
                    self.greeted.discard(node)
                continue
            content = reply.content["reply"]
            assert isinstance(content, ConfigRecord)
            if kind == "who":
                self._introduce(node, str(content.get("site")), str(content.get("plan_digest")))
            elif kind == "release":
                self._take(node, content)

    def _introduce(self, node: int, site: str, digest: str) -> None:
        if site not in {known.name for known in self.rounds.plan.sites} or digest != self.rounds.plan.digest:
            log.warning("node %s is no site of this plan", node)
        elif site in self.nodes:
            log.warning("node %s says that it is %s, which is there already", node, site)
        else:
            self.nodes[site] = node

    def _take(self, node: int, content: ConfigRecord) -> None:
        site = next((name for name, known in self.nodes.items() if known == node), None)
        if site is None or "release" not in content:
            log.warning("node %s sends no release: %s", node, content.get("refused"))
            return
        try:
            entry = self.rounds.submit(site, str(content["release"]).encode())
        except ReleaseRefusedError as error:
            log.warning("a release of %s was refused: %s", site, error.reason)
        else:
            log.info("round %s: %s released %s slots", entry.release.round_number, site, entry.release.slots)
