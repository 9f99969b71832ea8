"""A lock on a majority of independent servers, and on one that waits after it came back."""
