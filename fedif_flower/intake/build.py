"""The intake of a strategy: the plain one, wrapped by those for the features of its setup."""

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
    """Build the intake of a strategy.

    The innermost intake reads the replies. Around it is a :class:`LocalGuide` if the local method
    has a half on the server, and around that :class:`LateReplies` if late replies count.

    Parameters
    ----------
    make : callable
        Returns the innermost intake: :class:`~fedif_flower.intake.intake.Intake`, or another one.
    limits : ReplyLimits
        What a reply must report, and how much of that is believed.
    pace : Pace
        How long a round waits, and for how many rounds a late reply counts.
    look : callable, optional
        Looks at each reply before it counts; a ReplyError that it raises refuses the reply.
    local_method : LocalMethod
        What clients do besides plain SGD.
    """
    intake = make(IntakeSettings(limits, pace, look, has_vector=local_method.sends_vector))
    guide = local_method.guide()
    if local_method.sends_vector or guide is not None:
        intake = LocalGuide(intake, local_method, guide or Guide())
    if pace.late_rounds:
        intake = LateReplies(intake, pace)
    return intake
