"""Prometheus metrics. Labels are bounded, and no value depends on a reward beyond what is released and paid for."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["OUTCOMES", "RELOADS", "Metrics"]

OUTCOMES = ("selected", "base", "abstained", "refused", "error")
"""How a request can end: an answer, a base-model answer, a refusal by the gate, one by the budget, a failure."""

RELOADS = ("loaded", "broken", "withdrawn")
"""What can become of a certificate file that changed."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """The server's metrics, in a registry of their own.

    Args:
        registry: where they are registered; a fresh one by default, so that two servers in one process do not clash.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.requests = Counter(
            "reticent_requests_total", "Chat requests by outcome.", ["outcome", "rule"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "reticent_request_seconds", "Whole request.", ["rule"], buckets=_SECONDS, registry=self.registry
        )
        self.phase_seconds = Histogram(
            "reticent_phase_seconds",
            "Phases of a request: reserve, draw, score, gate, settle.",
            ["phase"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.halting_time = Histogram(
            "reticent_halting_time",
            "PrivITP: candidates looked at in phase 2.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self.candidates = Counter("reticent_candidates_drawn_total", "Candidates drawn.", registry=self.registry)
        self.charged = Counter(
            "reticent_charged_nats_total", "Privacy loss settled, in nats.", ["rule"], registry=self.registry
        )
        self.forfeits = Counter(
            "reticent_forfeits_total", "Reservations settled at their worst case.", registry=self.registry
        )
        self.reservations_open = Gauge("reticent_reservations_open", "Reservations held now.", registry=self.registry)
        self.budget_remaining = Gauge(
            "reticent_budget_remaining_nats", "What is left to reserve.", ["scope"], registry=self.registry
        )
        self.certificate_expiry = Gauge(
            "reticent_certificate_expiry_timestamp_seconds",
            "When the certificate of a configured file expires.",
            ["certificate"],
            registry=self.registry,
        )
        self.certificate_age = Gauge(
            "reticent_certificate_age_seconds",
            "Time since the last release of its calibration.",
            ["certificate"],
            registry=self.registry,
        )
        self.certificate_unusable = Gauge(
            "reticent_certificate_file_unusable",
            "1 where the configured file is missing from the start, or what lies there cannot be used.",
            ["certificate"],
            registry=self.registry,
        )
        self.certificate_reloads = Counter(
            "reticent_certificate_reloads_total",
            "Changes of certificate files while the server runs: loaded, broken, withdrawn.",
            ["result"],
            registry=self.registry,
        )
        for result in RELOADS:
            self.certificate_reloads.labels(result=result)
        self.worker_errors = Counter(
            "reticent_worker_errors_total", "Failed calls of the reward worker.", registry=self.registry
        )
