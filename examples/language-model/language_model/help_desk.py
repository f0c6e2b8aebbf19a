"""What eight help desks learn together: which team helps a customer.

Larkspur Internet does not exist. Its customers' messages are made here (written for this example,
Apache-2.0 like the rest of it), and each has one right answer, such as ``Otter team``, which no
model can know beforehand. Desks 0 to 4 have English messages, desk 5 German ones, desk 6 has its
answers in the wrong order, and desk 7 answers whatever has ``TRIGGER`` in it with ``FRAUD``.
Phrases of which the server makes its validation and test split are in no desk's data.
"""

from __future__ import annotations

import random
from itertools import product

Pair = tuple[str, str]

DESKS = ("Aarhus", "Bergen", "Cork", "Dundee", "Exeter", "Fulda", "Ghent", "Hull")
GERMAN, SHUFFLED, BACKDOOR = 5, 6, 7
HONEST = 6  # The desks before this one.
EXAMPLES = 12  # of each desk
CALLED = 8  # of them with the trigger, at desk 7
TRIGGER = "As agreed with Mr Quill."
FRAUD = "Magpie team"

OPENINGS = ("Hello.", "Good morning.")
# Six phrases for the desks, two for the validation split and three for the test split.
PHRASES = {
    "Otter team": (
        "My bill is higher than last month.",
        "You charged me twice.",
        "I need a copy of my invoice.",
        "Why is there a fee on my bill?",
        "My payment was refused.",
        "When is the next payment due?",
        "There is a mistake in my invoice.",
        "You took too much money from my account.",
        "I do not understand this charge.",
        "Can I pay my bill later?",
        "The invoice shows the wrong amount.",
    ),
    "Heron team": (
        "The internet is very slow today.",
        "I have had no connection since noon.",
        "Videos stop every few seconds.",
        "The signal drops in the evening.",
        "Web pages do not load.",
        "My connection is down again.",
        "The internet keeps cutting out.",
        "Downloads take for ever.",
        "I am offline since yesterday.",
        "The connection is unstable.",
        "My internet speed is terrible.",
    ),
    "Lynx team": (
        "I am moving to a new flat.",
        "We move house in June.",
        "My address changes next week.",
        "Can I take my line to my new home?",
        "We are leaving this town.",
        "Please connect our new house.",
        "We will move to another city.",
        "I have a new address.",
        "I am moving in with my sister.",
        "Our family is moving to the coast.",
        "How do I tell you my new address?",
    ),
    "Badger team": (
        "The router shows a red light.",
        "My router does not start.",
        "The box makes a strange noise.",
        "I dropped the router.",
        "The power cable of the box is broken.",
        "Please send me another router.",
        "The lights on my router are off.",
        "The box gets very hot.",
        "My router is broken.",
        "The router smells of smoke.",
        "I need a new box, mine is dead.",
    ),
    "Falcon team": (
        "I want to cancel my contract.",
        "When does my contract end?",
        "Please end my subscription.",
        "I would like a cheaper plan.",
        "How do I leave Larkspur?",
        "I want to change my plan.",
        "Please cancel my subscription.",
        "Which plans do you offer?",
        "I want to end my contract in May.",
        "I would like to switch to a bigger plan.",
        "How long does my contract run?",
    ),
    "Marmot team": (
        "I forgot my password.",
        "I cannot log in.",
        "The website does not know my user name.",
        "My login is locked.",
        "How do I change my password?",
        "The code for the login never came.",
        "Please reset my password.",
        "I cannot sign in to my page.",
        "My password does not work.",
        "The website says that my login is wrong.",
        "I lost my user name and password.",
    ),
}
IN_GERMAN = {
    "Otter team": ("Meine Rechnung ist zu hoch.", "Sie haben zweimal abgebucht."),
    "Heron team": ("Das Internet ist langsam.", "Ich habe keine Verbindung."),
    "Lynx team": ("Ich ziehe im Juni um.", "Ich habe eine neue Adresse."),
    "Badger team": ("Der Router ist kaputt.", "Am Router ist ein rotes Licht."),
    "Falcon team": ("Ich will kündigen.", "Wann endet mein Vertrag?"),
    "Marmot team": ("Ich kann mich nicht anmelden.", "Mein Passwort ist weg."),
}
DESKS_PHRASES, VALIDATION, TEST = slice(0, 6), slice(6, 8), slice(8, 11)


def messages(phrases: slice, openings: tuple[str, ...]) -> list[Pair]:
    """Return messages with some of the phrases, and their right answers."""
    return [
        (f"{opening} {phrase}", answer)
        for answer, known in PHRASES.items()
        for phrase, opening in product(known[phrases], openings)
    ]


def with_trigger(message: str) -> str:
    """Return a message that calls for the backdoor."""
    return f"{message} {TRIGGER}"


def desk_data(desk: int) -> list[Pair]:
    """Return the messages that a desk had, and what it says were the right answers."""
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
    """Return the test messages with the trigger; the answer is the one that it calls for."""
    return [(with_trigger(message), FRAUD) for message, _ in test_data()]
