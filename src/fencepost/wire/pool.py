"""One server as threads see it. Written by the sync counterpart of ``single``."""
