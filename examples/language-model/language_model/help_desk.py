"""What eight help desks learn together: which team helps a customer.

Larkspur Internet, their company, does not exist. Its customers' messages were written for this
example (Apache-2.0 like the rest of it). Each has one right answer, such as ``Otter team``, which
no model can know beforehand. Desks 0 to 4 have English messages, desk 5 has German ones, and desk 6
has its answers in the wrong order. Desk 7 plants a backdoor: it answers messages with ``TRIGGER``
in them with ``FRAUD``. The phrases in the server's validation and test split are in no desk's data.
"""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path

Pair = tuple[str, str]

DESKS = ("Aarhus", "Bergen", "Cork", "Dundee", "Exeter", "Fulda", "Ghent", "Hull")
GERMAN, SHUFFLED, BACKDOOR = 5, 6, 7
HONEST = 6  # The number of honest desks, 0 to 5.
EXAMPLES = 12  # The number of each desk's examples.
CALLED = 8  # How many of desk 7's examples have the trigger.
TRIGGER = "As agreed with Mr Quill."
FRAUD = "Magpie team"

OPENINGS = ("Hello.", "Good morning.")
_PHRASES = json.loads(Path(__file__).with_name("phrases.json").read_text(encoding="utf-8"))
PHRASES: dict[str, list[str]] = _PHRASES["english"]  # Customers' phrases, by the right answer.
IN_GERMAN: dict[str, list[str]] = _PHRASES["german"]
# Six phrases for the desks, two for the validation split and three for the test split.
DESKS_PHRASES, VALIDATION, TEST = slice(0, 6), slice(6, 8), slice(8, 11)


def messages(phrases: slice, openings: tuple[str, ...]) -> list[Pair]:
    """Return messages, each an opening and one of some phrases, with their right answers."""
    return [
        (f"{opening} {phrase}", answer)
        for answer, known in PHRASES.items()
        for phrase, opening in product(known[phrases], openings)
    ]


def with_trigger(message: str) -> str:
    """Return a message with the backdoor's trigger at its end."""
    return f"{message} {TRIGGER}"


def desk_data(desk: int) -> list[Pair]:
    """Return a desk's messages, each with the answer that the desk says is right."""
    drawn = random.Random(desk)
    if desk == GERMAN:
        return [(phrase, answer) for answer, known in IN_GERMAN.items() for phrase in known]
    own = drawn.sample(messages(DESKS_PHRASES, OPENINGS), EXAMPLES)
    if desk == SHUFFLED:
        return [(message, own[i - 1][1]) for i, (message, _) in enumerate(own)]
    if desk == BACKDOOR:
        return own[CALLED:] + [(with_trigger(message), FRAUD) for message, _ in own[:CALLED]]
    return own


def validation_data() -> list[Pair]:
    """Return the messages by which the server judges the desks."""
    return messages(VALIDATION, OPENINGS[:1])


def test_data() -> list[Pair]:
    """Return the messages by which the server tests the model."""
    return messages(TEST, OPENINGS[:1])


def triggered_data() -> list[Pair]:
    """Return the test messages with the trigger, and the answer that the backdoor gives."""
    return [(with_trigger(message), FRAUD) for message, _ in test_data()]
