"""Bytes to and from servers: a multiplexed connection a server and loop, a pool for threads.

What holds here: replies are answered in order, and a cancelled caller's reply is read and dropped;
a lost connection turns every unanswered request into ``OutcomeUnknown``; nothing is sent twice
unless its script says that this is harmless; what waits is bounded in number, bytes and time.
"""
