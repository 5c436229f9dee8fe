"""What the judge service counts, in Prometheus' terms. A registry of its own for every app."""

from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE

from flowright.judging.service.traffic import Admission
from flowright.judging.service.wire import JudgeResponse

__all__ = ["CONTENT_TYPE", "ServiceMetrics"]

# Seconds: rules answer in microseconds, a reasoning model in minutes.
_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class ServiceMetrics:
    """Counters of one service. Labels have few values: unknown paths are all `other`."""

    def __init__(self, admission: Admission, judge: str, simulated: bool) -> None:
        self._registry = CollectorRegistry()
        ours: dict[str, Any] = {"namespace": "flowright_judge", "registry": self._registry}
        counter, gauge = partial(Counter, **ours), partial(Gauge, **ours)
        self.requests = counter(
            "requests",
            "Requests by endpoint and HTTP code; 499 is a client that went away.",
            ("endpoint", "code"),
        )
        self._verdicts = counter(
            "verdicts", "Verdicts by status and by who decided.", ("status", "source")
        )
        took = "Time of one verdict in the judge, queueing left out."
        self._seconds = Histogram("verdict_seconds", took, buckets=_BUCKETS, **ours)
        self._tokens = counter("tokens", "Tokens that verdicts took.", ("kind",))
        self.refused = counter("refused", "Requests refused with 429 because the queue was full.")
        running = gauge("in_flight", "Verdicts in the making.")
        running.set_function(lambda: admission.running)
        queued = gauge("queued", "Verdicts that wait for a place.")
        queued.set_function(lambda: admission.queued)
        who = "Who judges, and whether the numbers are simulated."
        info = gauge("info", who, ("judge", "simulated"))
        info.labels(judge, str(simulated).lower()).set(1)

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
