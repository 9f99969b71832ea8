"""Delayed execution: later, at a time, again and again."""
