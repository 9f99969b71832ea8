"""The keys that are asked for most, over all processes: counted by sample, merged each second."""

from fencepost.hotkeys.api import AsyncHotKeys, HotKeys
from fencepost.hotkeys.options import HotKeysOptions
from fencepost.hotkeys.scripts import HotKey

__all__ = ["AsyncHotKeys", "HotKey", "HotKeys", "HotKeysOptions"]
