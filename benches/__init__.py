"""Benchmarks: fencepost and its peers side by side, in one run.

``make bench`` measures what needs no further installation; ``make bench-full`` also makes a venv a
group of peers (``benches/peers/*.txt``). Nothing here asserts a time: machines are noisy, so each
figure is a median of interleaved rounds, and what counts is the ratio of the pair.
"""
