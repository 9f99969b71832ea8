"""Fuzzing here is bounded by examples, not by time: machines that are shared are slow at times."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("core", deadline=None, max_examples=60, database=None)
settings.load_profile("core")
