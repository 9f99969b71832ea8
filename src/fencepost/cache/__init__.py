"""A read-through cache whose refresh is fenced: late writers are rejected, waiting is bounded."""
