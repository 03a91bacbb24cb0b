"""What the rewards package refuses, one class a reason. Each error carries the values that explain it.

None of them carries a prompt, an answer, a weight or a reward: their texts may be logged.
"""

from __future__ import annotations

__all__ = [
    "BackendFailed",
    "BackendUnavailable",
    "BatchNotStarted",
    "EncoderMismatch",
    "EncoderUnavailable",
    "HeadAltered",
    "HeadInvalid",
    "HeadNotReproduced",
    "InvalidPairs",
    "ModelUnusable",
    "ProfileInvalid",
    "RewardsError",
    "ScoreDependsOnRewards",
    "ScoreInputMissing",
    "SensitivityMismatch",
    "TrainingFailed",
    "UnknownName",
    "UnsafeAddress",
    "UnusablePair",
    "WidthMismatch",
    "WorkerError",
    "WorkerFailed",
    "WorkerRefused",
    "WorkerUnavailable",
]

# ruff: noqa: N818  -- the names state what happened; all are RewardsError.


class RewardsError(Exception):
    """Base of every error of this package."""


class UnknownName(RewardsError, LookupError):
    """A name that no registry here knows."""

    def __init__(self, kind: str, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"unknown {kind} {name!r}; known: {', '.join(known)}")
        self.kind = kind
        self.name = name
        self.known = known


class EncoderUnavailable(RewardsError):
    """The files of an encoder are not installed."""

    def __init__(self, encoder: str, reason: str) -> None:
        super().__init__(f"encoder {encoder!r} is not available: {reason}")
        self.encoder = encoder
        self.reason = reason


class HeadInvalid(RewardsError, ValueError):
    """A head file is not JSON of the expected form, or holds a number out of range."""


class HeadAltered(HeadInvalid):
    """A head's contents do not have the hash that stands in its file: it was changed by hand or damaged."""

    def __init__(self, stored: str, computed: str) -> None:
        super().__init__(f"the head was altered after training: its hash is {computed}, the file says {stored}")
        self.stored = stored
        self.computed = computed


class SensitivityMismatch(HeadInvalid):
    """The sensitivity that a head states is not the one that its own numbers give."""

    def __init__(self, stored: float, computed: float) -> None:
        super().__init__(f"the head states sensitivity {stored!r}, its numbers give {computed!r}")
        self.stored = stored
        self.computed = computed


class WidthMismatch(HeadInvalid):
    """Features of another width than the weights."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"the head has {expected} weights, the features have width {found}")
        self.expected = expected
        self.found = found


class EncoderMismatch(HeadInvalid):
    """The encoder at hand is not the one that the head was trained on."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"the head was trained on encoder {expected}, this is {found}")
        self.expected = expected
        self.found = found


class InvalidPairs(RewardsError, ValueError):
    """A preference file that cannot be trained on. `line` is the 1-based line, or None for the file as a whole."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason if line is None else f"line {line}: {reason}")
        self.reason = reason
        self.line = line


class UnusablePair(InvalidPairs):
    """A line of the right form that says nothing: an empty text, two equal answers, or what an earlier line said."""


class HeadNotReproduced(RewardsError, ValueError):
    """Training on the pairs at hand does not give the head at hand. `distance` is what lies between the weights."""

    def __init__(self, distance: float, allowed: float) -> None:
        super().__init__(
            f"training on these pairs gives weights {distance:.3g} away from the head's, allowed {allowed:.3g}"
        )
        self.distance = distance
        self.allowed = allowed


class TrainingFailed(RewardsError, ValueError):
    """The minimiser was not reached, or not closely enough for the sensitivity to be certified."""


class UnsafeAddress(RewardsError, ValueError):
    """The worker was asked to listen, or the client to connect, somewhere else than on loopback or a Unix socket."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address!r} is neither a loopback address nor a Unix socket nor reached through TLS")
        self.address = address


class ProfileInvalid(RewardsError, ValueError):
    """The description of a reward model cannot be used."""


class ModelUnusable(RewardsError, ValueError):
    """What lies in a model's folder, or answers at its address, is not the reward model that its profile describes."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"reward model {name!r} cannot be used: {reason}")
        self.name = name
        self.reason = reason


class WorkerError(RewardsError):
    """Base of what may go wrong between client and worker."""


class WorkerUnavailable(WorkerError):
    """No connection to the worker was made: surely no reward was computed, and a reservation may be released whole."""


class WorkerRefused(WorkerUnavailable):
    """The worker answered that it did not take the request (secret, size, form), or did not start it in time (busy): no
    reward was computed, and none will be."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the worker refused the request with status {status}")
        self.status = status


class WorkerFailed(WorkerError):
    """The request may have reached the worker, and no usable rewards came back: rewards may have been computed."""


class BatchNotStarted(WorkerError):
    """Inside the worker: a batch left the queue before it was started, so surely no reward was or will be computed.

    `reason` is `full` (it was not taken into the queue), `busy` (its patience ended), `gone` (its client left) or
    `unavailable` (what computes rewards was not reached).
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"a batch left the queue before it was started: {reason}")
        self.reason = reason


class BackendUnavailable(BatchNotStarted):
    """Inside the worker: the server that computes rewards was not reached, so surely no reward was computed."""

    def __init__(self) -> None:
        super().__init__("unavailable")


class BackendFailed(WorkerError):
    """Inside the worker: the server that computes rewards was reached and gave no usable rewards."""


class ScoreInputMissing(RewardsError, ValueError):
    """A score was asked for without what it reads."""

    def __init__(self, score: str, needed: str) -> None:
        super().__init__(f"score {score!r} needs {needed}")
        self.score = score
        self.needed = needed


class ScoreDependsOnRewards(RewardsError, ValueError):
    """The gate was given a score that can depend on D."""

    def __init__(self, score: str) -> None:
        super().__init__(f"score {score!r} depends on rewards, so the gate cannot use it without a charge")
        self.score = score
