"""campus: a notice board with hearts, built from the parts of fencepost.

Applications do not import this package; ``fencepost serve`` runs it.
"""
