"""What an examination of a held-out set found: wrong labels, classes, copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from fedif_flower.valuation.fit_grid import Way
from fedif_flower.valuation.noise_profile import Suspect
from fedif_flower.words import listed

RARE = 10  # Examples of a class.
_PAIRS_NAMED = 3
MUCH_CONFUSED = 0.1  # Of the labels.


@dataclass(frozen=True)
class HeldOut:
    """What an examination of a held-out set found.

    Attributes
    ----------
    examples : int
        How many count.
    noise, low, high : float, optional
        The share of wrong labels, and the ends of its 90 % interval; ``None``: no estimate.
    lower_quartile : float, optional
        The share that three quarters of the bootstrap's draws reach.
    why_none : str
        Why there is no estimate; empty: there is one.
    accuracy : float, optional
        Of models on the fold that they were not trained on, by the given labels.
    suspects : tuple of Suspect
        The examples whose labels look wrong, the surest first; none where nothing looks wrong.
    by_class : float, optional
        The share of labels that are others than models answer, if each class has chances of its
        own; it errs upwards, since classes that look alike are confused by models, too. ``None``:
        there is no estimate, or some class that has labels has fewer than 20.
    transitions : tuple of tuple of float
        ``[C][C]``: the chance that an example of one class is labelled as another; empty where
        ``by_class`` is ``None``.
    missing : tuple of int
        The classes that the model answers and no example that counts has: there is none, or the
        loss gives the class weight 0. Either way nothing of the class can be valued.
    rare : mapping of int to int
        The classes with fewer than 10 examples, and how many.
    copies : int
        How many examples have the input of an earlier one.
    shared : int, optional
        How many have an input that is in the other split, too; ``None``: there was none.
    seconds : float
        How long it took.
    way : Way, optional
        By what the share was estimated; ``None``: there is no estimate.
    """

    examples: int
    noise: float | None = None
    low: float | None = None
    high: float | None = None
    lower_quartile: float | None = None
    why_none: str = ""
    accuracy: float | None = None
    suspects: tuple[Suspect, ...] = ()
    by_class: float | None = None
    transitions: tuple[tuple[float, ...], ...] = ()
    missing: tuple[int, ...] = ()
    rare: Mapping[int, int] = field(default_factory=dict)
    copies: int = 0
    shared: int | None = None
    seconds: float = 0.0
    way: Way | None = None

    @property
    def how(self) -> str:
        """By what the share was estimated, in words; empty: there is no estimate."""
        return "" if self.way is None else self.way.words()

    @property
    def correction(self) -> float:
        """The share of wrong labels to correct for.

        The estimate, where three quarters of the bootstrap's draws lie above 0. To correct right
        labels for a few wrong ones costs little, and to leave wrong ones as they are costs much:
        so this asks for less than the 90 % interval would.
        """
        if self.noise is None or not self.lower_quartile:
            return 0.0
        return self.noise

    @property
    def confused(self) -> float:
        """The share of labels that may be confused by class; 0: not more than models confuse."""
        return confused_share(self.noise, self.by_class)

    def words(self, where: str = "") -> str:
        """Return what was found, in a sentence or a few; ``where``: the file with the suspects."""
        phrases = [
            self._words_of_labels(where),
            *self._words_of_haste(),
            *self._words_of_confusions(where),
            *self._words_of_classes(),
            *self._words_of_copies(),
        ]
        return "; ".join(phrases)

    def _words_of_labels(self, where: str) -> str:
        if self.noise is None or self.low is None or self.high is None:
            return f"whether held-out labels are wrong is not known: {self.why_none}"
        interval = f"{100 * self.low:.0f} to {100 * self.high:.0f} %"
        if not self.noise:
            return f"none of the held-out labels looks wrong ({interval})"
        if not self.correction:
            about = f"about {100 * self.noise:.0f} % ({interval})"
            return f"{about} of the held-out labels may be wrong, or none"
        words = f"about {100 * self.noise:.0f} % ({interval}) of the held-out labels look wrong"
        if not self.suspects:
            return words
        return f"{words}: {self._words_of_suspects(where)}"

    def _words_of_haste(self) -> list[str]:
        if self.way is None or not self.way.is_cut_short:
            return []
        return [
            "the examination was cut short: more validation.seconds, or a faster machine, may find "
            "another share"
        ]

    def _words_of_confusions(self, where: str) -> list[str]:
        if not self.confused:
            return []
        chances = torch.tensor(self.transitions)
        chances.fill_diagonal_(-1.0)  # Behind all others.
        num_pairs = len(chances) * (len(chances) - 1)
        likeliest = chances.flatten().argsort(descending=True)[: min(_PAIRS_NAMED, num_pairs)]
        pairs = []
        for place in likeliest.tolist():
            label, other = divmod(place, len(chances))
            pairs.append(f"{label} as {other} ({100 * float(chances[label, other]):.0f} %)")
        phrases = [
            f"but up to {100 * self.confused:.0f} % may be confused, {', '.join(pairs)}, or a "
            'model cannot tell these classes apart: validation.noise = "by-class" corrects for it'
        ]
        # Else they were named with those that look wrong; of secret data nobody is told any.
        if self.suspects and not self.correction:
            phrases.append(self._words_of_suspects(where))
        return phrases

    def _words_of_suspects(self, where: str) -> str:
        count = f"{len(self.suspects)} suspects"
        return f"{count} in {where}" if where else count

    def _words_of_classes(self) -> list[str]:
        phrases = []
        if self.missing:
            phrases.append(f"no held-out example that counts of the classes {listed(self.missing)}")
        if self.rare:
            few = [f"{label} ({count})" for label, count in self.rare.items()]
            phrases.append(f"fewer than {RARE} held-out examples of the classes {listed(few)}")
        return phrases

    def _words_of_copies(self) -> list[str]:
        phrases = []
        if self.copies:
            phrases.append(f"{self.copies} of {self.examples} held-out inputs are there twice")
        if self.shared:
            phrases.append(f"{self.shared} of them are in the test split, too")
        return phrases

    def to_record(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        rare = {str(label): count for label, count in self.rare.items()}
        return {
            **asdict(self),
            "suspects": [list(vars(suspect).values()) for suspect in self.suspects],
            "rare": rare,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> HeldOut:
        """Read what :meth:`to_record` returned."""
        values = dict(record)
        values["suspects"] = tuple(Suspect(*suspect) for suspect in record["suspects"])
        values["transitions"] = tuple(map(tuple, record["transitions"]))
        values["missing"] = tuple(record["missing"])
        values["rare"] = {int(label): count for label, count in record["rare"].items()}
        values["way"] = Way.from_record(record["way"])
        return cls(**values)


def confused_share(noise: float | None, by_class: float | None) -> float:
    """Return the share of labels that may be wrong if each class has chances of its own.

    Parameters
    ----------
    noise : float, optional
        The estimate for labels that are wrong whatever their class.
    by_class : float, optional
        The one with chances by class.

    Returns
    -------
    float
        0 where it is no more than a tenth above the other: models confuse as much by themselves.
    """
    if by_class is None or by_class - (noise or 0.0) < MUCH_CONFUSED:
        return 0.0
    return by_class
