"""The intake of a strategy: the plain one, with what its setup asks for around it."""

from __future__ import annotations

from collections.abc import Callable

from fedif_flower.intake.intake import Intake, IntakeSettings
from fedif_flower.intake.late_replies import LateReplies
from fedif_flower.intake.local_guide import LocalGuide
from fedif_flower.intake.pace import Pace
from fedif_flower.local_methods import Guide, LocalMethod
from fedif_flower.messages.metrics import ReplyLimits
from fedif_flower.messages.screening import Look

MakeIntake = Callable[[IntakeSettings], Intake]


def build_intake(
    make: MakeIntake,
    *,
    limits: ReplyLimits,
    pace: Pace,
    look: Look | None,
    local_method: LocalMethod,
) -> Intake:
    """Return what takes in the replies of a strategy.

    Parameters
    ----------
    make : callable
        Returns the innermost intake, which reads replies: :class:`~.intake.Intake`, or another one.
    limits : ReplyLimits
        What a reply must report, and how much of that is believed.
    pace : Pace
        How long a round waits, and for how long late replies count.
    look : callable, optional
        Looks at each reply before it counts.
    local_method : LocalMethod
        What clients do beside plain SGD.
    """
    intake = make(IntakeSettings(limits, pace, look, has_vector=local_method.sends_vector))
    guide = local_method.guide()
    if local_method.sends_vector or guide is not None:
        intake = LocalGuide(intake, local_method, guide or Guide())
    if pace.late_rounds:
        intake = LateReplies(intake, pace)
    return intake
