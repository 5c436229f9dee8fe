"""What the judge service counts, in Prometheus' terms. A registry of its own for every app."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE

from flowright.judge_service.traffic import Admission
from flowright.judge_service.wire import JudgeResponse

__all__ = ["CONTENT_TYPE", "ServiceMetrics"]

# Seconds: rules answer in microseconds, a reasoning model in minutes.
_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class ServiceMetrics:
    """Counters of one service. Labels have few values: unknown paths are all `other`."""

    def __init__(self, admission: Admission, judge: str, simulated: bool) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "flowright_judge_requests",
            "Requests by endpoint and HTTP code; 499 is a client that went away.",
            ("endpoint", "code"),
            registry=self._registry,
        )
        self._verdicts = Counter(
            "flowright_judge_verdicts",
            "Verdicts by status and by who decided.",
            ("status", "source"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "flowright_judge_verdict_seconds",
            "Time of one verdict in the judge, queueing left out.",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._tokens = Counter(
            "flowright_judge_tokens",
            "Tokens that verdicts took.",
            ("kind",),
            registry=self._registry,
        )
        self.refused = Counter(
            "flowright_judge_refused",
            "Requests refused with 429 because the queue was full.",
            registry=self._registry,
        )
        self._gauge("in_flight", "Verdicts in the making.").set_function(lambda: admission.running)
        self._gauge("queued", "Verdicts that wait for a place.").set_function(
            lambda: admission.queued
        )
        info = Gauge(
            "flowright_judge_info",
            "Who judges, and whether the numbers are simulated.",
            ("judge", "simulated"),
            registry=self._registry,
        )
        info.labels(judge, str(simulated).lower()).set(1)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"flowright_judge_{name}", meaning, registry=self._registry)

    def judged(self, response: JudgeResponse) -> None:
        """Count a verdict, or a member of a batch that got none."""
        self._verdicts.labels(response.status, response.source or "none").inc()
        if response.status == "invalid":
            return
        self._seconds.observe(response.metadata.latency)
        self._tokens.labels("prompt").inc(response.metadata.prompt_tokens)
        self._tokens.labels("completion").inc(response.metadata.completion_tokens)

    def text(self) -> bytes:
        return generate_latest(self._registry)
