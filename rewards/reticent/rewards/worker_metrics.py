"""What the worker counts. No reward, and nothing computed from one, is among it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["REFUSALS", "WorkerMetrics"]

REFUSALS = ("full", "busy", "gone", "unavailable")
"""Why a batch was sent away unstarted."""

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class WorkerMetrics:
    """The worker's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.pass_seconds = Histogram(
            "reticent_worker_pass_seconds",
            "One pass of the reward model, of one request or several.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.candidates = Counter(
            "reticent_worker_candidates_total", "Candidates scored, the canary's included.", registry=self._registry
        )
        self.waiting = Gauge(
            "reticent_worker_batches_open", "Batches that wait or are being scored.", registry=self._registry
        )
        self.refused = Counter(
            "reticent_worker_refused_total",
            "Batches sent away unstarted: queue full, patience ended, client gone, reward server not reached.",
            ["reason"],
            registry=self._registry,
        )
        self.failures = Counter(
            "reticent_worker_failures_total", "Batches that were started and gave no rewards.", registry=self._registry
        )
        for reason in REFUSALS:
            self.refused.labels(reason=reason)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
