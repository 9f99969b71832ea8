"""One leader among many: terms with fences, on a lock's lease."""

from fencepost.election.api import AsyncElection, AsyncLead, Election, Lead
from fencepost.election.leader import Leader
from fencepost.election.options import ElectionOptions
from fencepost.election.term import AsyncTerm, Term

__all__ = [
    "AsyncElection",
    "AsyncLead",
    "AsyncTerm",
    "Election",
    "ElectionOptions",
    "Lead",
    "Leader",
    "Term",
]
