"""The colours and shapes of every picture: those that colour-blind readers tell apart.

The colours are the eight of Okabe and Ito, "Color Universal Design" (2008). No picture tells two
things apart by colour alone: points differ in shape too, lines in their dashes.
"""

from __future__ import annotations

from typing import Any

BLACK = "#000000"
ORANGE = "#e69f00"
SKY = "#56b4e9"
GREEN = "#009e73"
YELLOW = "#f0e442"
BLUE = "#0072b2"
VERMILLION = "#d55e00"
PURPLE = "#cc79a7"

# In this order where things have no colours of their own. Yellow is too pale for lines on white.
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
# As matplotlib calls them, in the same order.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

HONEST = BLUE
MALICIOUS = VERMILLION


def look(index: int) -> dict[str, Any]:
    """Return the colour and the marker of the index-th of several things, for matplotlib.

    No two of the first 49 have both alike.
    """
    turn, place = divmod(index, len(COLOURS))
    marker = MARKERS[(place + turn) % len(MARKERS)]
    return {"color": COLOURS[place], "marker": marker}
