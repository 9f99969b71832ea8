"""Run the real protocols and the real scripts on a real server, in the order that you choose.

    play = Play(client.port, reader=lambda io: status(io, …), writer=lambda io: set_like(io, …))
    play.run("reader.begin reader.snapshot writer.set reader.fill")

Every step that a protocol takes is named after its script, command or function; a schedule is a
line of such names, and replays for ever.
"""

from fencepost.testing.play import Play, PlayError
from fencepost.testing.simulated import SimPort, Step

__all__ = ["Play", "PlayError", "SimPort", "Step"]
