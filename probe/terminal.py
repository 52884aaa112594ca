"""Text that others wrote, on its way to a terminal."""

from __future__ import annotations

import unicodedata

# Control and format characters (colours, bidirectional overrides), halves of characters, odd line ends.
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def visible(text: str) -> str:
    """The text with control characters (other than line ends) written out, so that none reaches the terminal."""
    return "".join(
        char if char == "\n" or unicodedata.category(char) not in _HIDDEN else f"\\u{ord(char):04x}" for char in text
    )
