"""Figures for Prometheus, in a registry of this application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fencepost.jobs import Figures

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_CACHE_GAUGES = {
    "load_p50": "Seconds that a load takes: half of the last ones took no longer.",
    "load_p99": "Seconds that a load takes: 99 in 100 of the last ones took no longer.",
    "bypassed": "1 while the server of the caches is passed by, since it did not answer.",
}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """What one process counts; Prometheus adds the processes up."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._caches: dict[str, Callable[[], Mapping[str, object]]] = {}
        self.registry.register(_Caches(self._caches))
        self.requests = Counter(
            "campus_requests",
            "Requests answered.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "campus_request_seconds",
            "Seconds from a request's head to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.likes = Counter(
            "campus_likes",
            "Likes set and taken back; changed is no where it was so already.",
            ["action", "changed"],
            registry=self.registry,
        )
        self.problems = Counter(
            "campus_problems", "Requests that failed, by kind.", ["kind"], registry=self.registry
        )
        self.link = Gauge(
            "campus_like_server_up",
            "1 if the like server answered when it was last asked.",
            registry=self.registry,
        )
        self.leads = Gauge(
            "campus_leader",
            "1 while this process leads: it audits and makes the digests.",
            registry=self.registry,
        )
        self.duty_runs = Counter(
            "campus_duty_runs",
            "Runs of the leader's duties: done, skipped (somebody had done it), refused (somebody newer"
            " leads), failed.",
            ["duty", "verdict"],
            registry=self.registry,
        )
        self.duty_running = Gauge(
            "campus_duty_running",
            "1 while this process runs a duty.",
            ["duty"],
            registry=self.registry,
        )
        self.queue = Gauge(
            "fencepost_jobs_queue",
            "Jobs of the desk by state; overdue are those of due whose time has come.",
            ["state"],
            registry=self.registry,
        )
        self.queue_late = Gauge(
            "fencepost_jobs_late_seconds",
            "By how much the job is late that waits longest.",
            registry=self.registry,
        )
        self.backlog_items = Gauge(
            "fencepost_likes_backlog_items",
            "Activities whose likes wait in the journal.",
            registry=self.registry,
        )
        self.backlog_changes = Gauge(
            "fencepost_likes_backlog_changes",
            "Changes that they are, counted over the first thousand activities a shard.",
            registry=self.registry,
        )
        self.backlog_seconds = Gauge(
            "fencepost_likes_backlog_seconds",
            "For how long the oldest of them waits.",
            registry=self.registry,
        )

    def watch_jobs(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Show what a worker counts, as ``fencepost_jobs_…``."""
        self.registry.register(_Jobs(counts))

    def show_queue(self, figures: Figures) -> None:
        """Show how much there is in the queue, and how late it is."""
        for name in ("ready", "due", "overdue", "running", "dead"):
            self.queue.labels(name).set(getattr(figures, name))
        self.queue_late.set(figures.late)

    def watch(self, stats: Callable[[], Mapping[str, object]]) -> None:
        """Show the figures that ``stats`` gives at each scrape, as ``fencepost_likes_…``."""
        self.registry.register(_Stats(stats))

    def watch_cache(self, name: str, stats: Callable[[], Mapping[str, object]]) -> None:
        """Show the figures of a cache at each scrape, as ``fencepost_cache_…{cache="name"}``."""
        self._caches[name] = stats

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.registry)


_LIKE_GAUGES = {
    "dirty": "Items that this process saw waiting when it looked last.",
    "oldest": "Seconds for which the oldest of them waited.",
}


class _Stats(Collector):
    """What ``likes.stats()`` counts, and how long flushes took."""

    def __init__(self, stats: Callable[[], Mapping[str, object]]) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        stats = dict(self._stats())
        seconds, flushes = stats.pop("flush_seconds", 0.0), stats.pop("flushes", 0)
        buckets = stats.pop("flush_buckets", {})
        for name, value in sorted(stats.items()):
            if not isinstance(value, int | float):
                continue
            family: CounterMetricFamily | GaugeMetricFamily
            if name in _LIKE_GAUGES:
                family = GaugeMetricFamily(f"fencepost_likes_{name}", _LIKE_GAUGES[name])
            else:
                says = f"Likes: {name.replace('_', ' ')} of this process."
                family = CounterMetricFamily(f"fencepost_likes_{name}", says)
            family.add_metric([], float(value))
            yield family
        if isinstance(buckets, dict) and isinstance(seconds, float) and isinstance(flushes, int):
            took = [(str(most), float(count)) for most, count in buckets.items()]
            histogram = HistogramMetricFamily(
                "fencepost_likes_flush_seconds",
                "Seconds from a flush's claim to its acknowledgement.",
            )
            histogram.add_metric([], [*took, ("+Inf", float(flushes))], seconds)
            yield histogram


_JOBS = {
    "begun": "Jobs that this process began.",
    "late_ms": "Milliseconds by which they began late, all together.",
    "done": "Jobs that ended well.",
    "failed": "Tries that failed.",
    "lost": "Claims that were lost to others while their job ran.",
    "refused": "Acknowledgements that came too late.",
}


class _Jobs(Collector):
    """What a worker counts."""

    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        counts = self._counts()
        for name, says in _JOBS.items():
            family = CounterMetricFamily(f"fencepost_jobs_{name}", says)
            family.add_metric([], float(counts.get(name, 0)))
            yield family


class _Caches(Collector):
    """What ``cache.stats()`` counts: one family a figure, one series a cache."""

    def __init__(self, caches: Mapping[str, Callable[[], Mapping[str, object]]]) -> None:
        self._caches = caches

    def collect(self) -> Iterable[Metric]:
        shown = {name: dict(stats()) for name, stats in self._caches.items()}
        for figure in sorted({figure for stats in shown.values() for figure in stats}):
            family: CounterMetricFamily | GaugeMetricFamily
            name, says = f"fencepost_cache_{figure}", f"Caches: {figure} of this process."
            if figure in _CACHE_GAUGES:
                family = GaugeMetricFamily(name, _CACHE_GAUGES[figure], labels=["cache"])
            else:
                family = CounterMetricFamily(name, says, labels=["cache"])
            for cache, stats in shown.items():
                value = stats.get(figure, 0)
                if isinstance(value, int | float):
                    family.add_metric([cache], float(value))
            yield family
