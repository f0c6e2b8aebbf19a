"""What an examination of a held-out set found: wrong labels, classes, copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from fedif_flower.valuation.fit_grid import Way
from fedif_flower.valuation.noise_profile import Suspect
from fedif_flower.words import listed

RARE = 10  # A class with fewer examples is called rare.
_PAIRS_NAMED = 3  # How many pairs of confused classes a sentence names.
MUCH_CONFUSED = 0.1  # The least difference of two estimates, in `confused_share`, that is reported.


@dataclass(frozen=True)
class HeldOut:
    """What an examination of a held-out set found.

    Attributes
    ----------
    examples : int
        How many examples count in the loss.
    noise, low, high : float, optional
        The share of wrong labels, and the ends of its 90 % interval; ``None``: no estimate.
    lower_quartile : float, optional
        The share that three quarters of the bootstrap's draws reach.
    why_none : str
        Why there is no estimate; empty: there is one.
    accuracy : float, optional
        The accuracy of models on the fold that they were not trained on, by the given labels.
    suspects : tuple of Suspect
        The examples whose labels look wrong, the surest first.
    by_class : float, optional
        The share of wrong labels, estimated with chances for each class by itself. It errs upwards,
        since models, too, confuse classes that look alike. ``None``: there is no such estimate; for
        example, a class has fewer than 20 labels, or there was not enough time.
    transitions : tuple of tuple of float
        ``[C][C]``: the chance that an example of one class (row) is labelled as another (column);
        empty where ``by_class`` is ``None``.
    missing : tuple of int
        The classes of the model of which no example counts: there is none, or the loss gives the
        class weight 0. Either way, contributions to this class cannot be valued.
    rare : mapping of int to int
        The classes with fewer than 10 examples, and how many these have.
    copies : int
        How many examples have the same input as an earlier one.
    shared : int, optional
        How many examples have an input that the other split has, too; ``None``: no other split was
        given.
    seconds : float
        How long the examination took.
    way : Way, optional
        How the share was estimated; ``None``: there is no estimate.
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
        """How the share was estimated, in words; empty: there is no estimate."""
        return "" if self.way is None else self.way.words()

    @property
    def correction(self) -> float:
        """The share of wrong labels to correct for.

        It is the estimate if three quarters of the bootstrap's draws lie above 0, and 0 otherwise.
        A correction costs little where labels are right, while wrong labels without a correction
        cost much: so less evidence is enough than a 90 % interval above 0.
        """
        if self.noise is None or not self.lower_quartile:
            return 0.0
        return self.noise

    @property
    def confused(self) -> float:
        """The share of labels that may be confused by class; see :func:`confused_share`."""
        return confused_share(self.noise, self.by_class)

    def words(self, where: str = "") -> str:
        """Return what was found, as phrases in one line; ``where``: the file with the suspects."""
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
            return f"{about} of the held-out labels may be wrong, but possibly none is"
        words = f"about {100 * self.noise:.0f} % ({interval}) of the held-out labels look wrong"
        if not self.suspects:
            return words
        return f"{words}: {self._words_of_suspects(where)}"

    def _words_of_haste(self) -> list[str]:
        """Return that the examination was cut short, if it was."""
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
        chances.fill_diagonal_(-1.0)  # A right label is no confusion: it is sorted last.
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
        # With a correction, the suspects were named with the labels that look wrong.
        if self.suspects and not self.correction:
            phrases.append(self._words_of_suspects(where))
        return phrases

    def _words_of_suspects(self, where: str) -> str:
        count = f"{len(self.suspects)} suspects"
        return f"{count} in {where}" if where else count

    def _words_of_classes(self) -> list[str]:
        phrases = []
        if self.missing:
            phrases.append(f"no held-out example counts for the classes {listed(self.missing)}")
        if self.rare:
            few = [f"{label} ({count})" for label, count in self.rare.items()]
            phrases.append(f"fewer than {RARE} held-out examples of the classes {listed(few)}")
        return phrases

    def _words_of_copies(self) -> list[str]:
        phrases = []
        if self.copies:
            phrases.append(
                f"{self.copies} of {self.examples} held-out inputs repeat an earlier one"
            )
        if self.shared:
            phrases.append(f"{self.shared} of them are in the test split, too")
        return phrases

    def to_record(self) -> dict[str, Any]:
        """Return the examination as a dictionary of values that JSON has."""
        rare = {str(label): count for label, count in self.rare.items()}
        return {
            **asdict(self),
            "suspects": [list(vars(suspect).values()) for suspect in self.suspects],
            "rare": rare,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> HeldOut:
        """Return the examination whose :meth:`to_record` is ``record``."""
        values = dict(record)
        values["suspects"] = tuple(Suspect(*suspect) for suspect in record["suspects"])
        values["transitions"] = tuple(map(tuple, record["transitions"]))
        values["missing"] = tuple(record["missing"])
        values["rare"] = {int(label): count for label, count in record["rare"].items()}
        values["way"] = Way.from_record(record["way"])
        return cls(**values)


def confused_share(noise: float | None, by_class: float | None) -> float:
    """Return the share of labels that may be wrong if each class is confused in its own way.

    Parameters
    ----------
    noise : float, optional
        The estimated share of wrong labels, if labels of all classes are wrong in the same way.
    by_class : float, optional
        The same, with chances for each class by itself.

    Returns
    -------
    float
        ``by_class``; 0 if it is less than a tenth (of the labels) above ``noise``, since models
        confuse as many by themselves.
    """
    if by_class is None or by_class - (noise or 0.0) < MUCH_CONFUSED:
        return 0.0
    return by_class
