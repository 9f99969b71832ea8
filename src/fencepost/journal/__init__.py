"""A journal: what the server has answered and the source does not have yet. Likes and write-behind stand on it.

A shard's keys share a slot: an opening record, journals an item each, and which items are dirty. A
flusher claims, saves and acknowledges, under a fence that the source compares.
"""
