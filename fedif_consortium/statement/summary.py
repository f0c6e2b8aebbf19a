"""What a statement comes to, in plain sentences: the first thing that its pages say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fedif_consortium.statement.account import Account, MemberAccount

Nats = Callable[[float], str]
_MOST_NAMED = 8  # Members.


def for_consortium(account: Account, nats: Nats) -> Iterator[tuple[str, str]]:
    """Yield what the consortium should know first: a word for it, and a sentence or two.

    Parameters
    ----------
    account : Account
        The run's.
    nats : callable
        Writes a contribution.
    """
    paid = [member for member in account.members if member.share > 0]
    if account.completeness and account.completeness.verdict != "complete":
        yield _capital(account.completeness.verdict), " ".join(account.completeness.reasons)
    yield "Gain", _gain(account)
    if account.left_out:
        yield "Left out", _left_out(account)
    if account.unpaid:
        yield _unpaid(account)
    else:
        first = max(paid, key=lambda member: member.share)
        told = f"{len(paid)} of {len(account.members)} members have a share"
        most = f"{percent(first.share)}"
        if account.budget_cents is not None:
            nobody = account.nobody_cents or 0
            told = (
                f"{money(account.budget_cents - nobody)} of {money(account.budget_cents)} go to "
                f"{len(paid)} of {len(account.members)} members"
            )
            told += f", and {money(nobody)} to nobody" if nobody else ""
            most = f"{money(first.cents or 0)}"
        yield "Paid", f"{told}. {first.name} gets the most: {most}."
    if account.decisive_round is not None:
        yield "One round decided", _decided(account, nats)
    if open_signs := _with_0_between(account):
        moved = sum(member.contribution != 0 for member in account.members)
        yield (
            "Not certain",
            f"The intervals of {'all' if open_signs == moved else f'{open_signs} of the'} {moved} "
            "members that changed anything include 0: with other rounds they might have "
            "contributed nothing.",
        )
    for level, todo in (
        ("quarantine", "Pay nothing and leave out of the next run, until it is explained"),
        ("review", "Ask before you pay"),
    ):
        named = [member.name for member in account.members if member.verdict.level == level]
        if named:
            yield level.capitalize(), f"{todo}: {_listed(named)}."
    if revoked := [member.name for member in account.members if member.revoked_in is not None]:
        yield "Revoked", f"Their registration ended during the run: {_listed(revoked)}."
    if all(member.verdict.level == "accept" for member in account.members):
        yield "Verdicts", "All are accepted: nothing speaks against paying."


def for_member(account: Account, member: MemberAccount, nats: Nats) -> Iterator[tuple[str, str]]:
    """Yield what a member should know first; see :func:`for_consortium`."""
    if account.budget_cents is not None:
        of = f"{money(member.cents or 0)} of {money(account.budget_cents)}"
    else:
        of = f"a share of {percent(member.share)}"
    if account.completeness and account.completeness.verdict == "incomplete":
        yield "Incomplete", "Too little of what this run asked its members for came."
    yield _unpaid(account) if account.unpaid else ("Paid", f"You get {of}.")
    if member.contribution == 0:
        did = "Your updates changed nothing."
    else:
        way = "lowered" if member.contribution > 0 else "raised"
        did = f"Your updates {way} the validation loss by {nats(abs(member.contribution))[1:]}."
    yield "Why", f"{did} {_gain(account)}"
    if account.left_out:
        yield "Left out", _left_out(account)
    if member.contribution != 0 and member.other_rounds is not None:
        own = member.contribution - member.other_rounds
        yield (
            "One round decided",
            f"Round {account.decisive_round} brought more than half of all that was gained. Of "
            f"your {nats(member.contribution)} it gave {nats(own)}, the other rounds "
            f"{nats(member.other_rounds)}.",
        )
    if _includes_0(member):
        yield (
            "Not certain",
            "Your interval includes 0: with other rounds you might have contributed nothing.",
        )
    verdict = member.verdict
    told = f"{_capital(verdict.reason)}."
    if verdict.level == "accept":
        yield "Accepted", told
    else:
        advice = f" {verdict.advice}." if verdict.advice else ""
        yield (
            verdict.level.capitalize(),
            f"{told}{advice} The verdict changes no amount: it asks people to look first.",
        )


def advice(account: Account) -> list[tuple[str, str]]:
    """Return whom to ask and what to look at: members' names and one sentence for them all."""
    groups: dict[str, list[str]] = {}
    for member in account.members:
        if member.verdict.advice:
            groups.setdefault(member.verdict.advice, []).append(member.name)
    return [(_listed(names), todo) for todo, names in groups.items()]


def suggests_later_rounds(account: Account) -> bool:
    """Tell whether the first round that counts is the one that decided."""
    return account.decisive_round == account.first_round


def money(cents: int) -> str:
    """Return an amount as people read it: ``1 234.50``."""
    return f"{cents // 100:,}.{cents % 100:02}".replace(",", "\u202f")


def percent(share: float) -> str:
    """Return a share of 1 in percent."""
    return f"{100 * share:.1f} %"


def loss(value: float) -> str:
    """Return a validation loss."""
    return f"{value:.3f}" if value >= 0.1 else f"{value:.3g}"


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _unpaid(account: Account) -> tuple[str, str]:
    return "No shares", f"In this run {account.unpaid}."


def _gain(account: Account) -> str:
    way = "lowered" if account.decrease > 0 else "did not lower"
    rounds = f"{account.rounds} rounds" if account.rounds > 1 else "The only round"
    return (
        f"{rounds} {way} the validation loss: {loss(account.loss_before)} before, "
        f"{loss(account.loss_after)} after."
    )


def _left_out(account: Account) -> str:
    which, one = ", ".join(map(str, account.left_out)), len(account.left_out) == 1
    return (
        f"{f'Round {which} counts' if one else f'Rounds {which} count'} for nobody: contributions "
        "do not say where the change of the validation loss came from, or the loss only came back."
    )


def _decided(account: Account, nats: Nats) -> str:
    number = account.decisive_round or 0
    told = (
        f"Round {number} alone brought {nats(account.decisive)} of {nats(account.attributed)}. "
        "Who was in it, and from which model it began, decides the shares."
    )
    if suggests_later_rounds(account):
        told += (
            f" The first rounds gain much by any data: weigh paying from round {number + 1} on "
            f"(fedif statement RUN_DIR --from-round {number + 1})."
        )
    return told


def _includes_0(member: MemberAccount) -> bool:
    between = member.interval
    return between is not None and member.contribution != 0 and between[0] <= 0 <= between[1]


def _with_0_between(account: Account) -> int:
    return sum(map(_includes_0, account.members))
