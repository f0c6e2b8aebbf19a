"""The colours and shapes of all pictures, chosen so that colour-blind readers can tell them apart.

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

# The order of colours for things without a colour of their own. Yellow is too pale on white.
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
# The order of markers, by matplotlib's names for them.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

HONEST = BLUE
MALICIOUS = VERMILLION


def line_style(index: int) -> dict[str, Any]:
    """Return the colour and the marker of the index-th of several things, for matplotlib.

    No two of the first 49 things have the same colour and the same marker.
    """
    # After each turn through the colours, every colour gets the next marker.
    turn, place = divmod(index, len(COLOURS))
    marker = MARKERS[(place + turn) % len(MARKERS)]
    return {"color": COLOURS[place], "marker": marker}
