"""The pages: one for the consortium, one for each member, each a single file without scripts.

Everything that a member or an operator wrote is escaped; a browser that opens a page fetches
nothing.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined, pass_context
from jinja2.runtime import Context

from fedif_consortium.evidence.keys import fingerprint
from fedif_consortium.statement import pictures, summary, templates
from fedif_consortium.statement.account import MIN_ROUNDS, RESAMPLES, Account, MemberAccount
from fedif_consortium.statement.manifest import Manifest
from fedif_consortium.statement.open_games import CREDIT_BOUNDS, open_games
from fedif_consortium.statement.records import RunRecords
from fedif_consortium.statement.verdict import RULES
from fedif_flower.run.completeness import LETTERS, NOT_ASKED
from fedif_flower.strategies.scoring import Scoring
from fedif_flower.valuation.path import ADAPTIVE

DASH = "\N{EN DASH}"
SMALL_REMAINDER, LARGE_REMAINDER = 0.001, 0.1  # Of the fall of the loss.
_INTERVAL = (
    f"The rounds of the run are drawn again, with replacement, {RESAMPLES:,} times; in 95 % of the "
    "drawings the contribution lies in the interval. A round in which a member had no part counts "
    "0 for it, so that a member with few rounds has a wide one. With fewer than "
    f"{MIN_ROUNDS} rounds there is none."
)
_SPREAD = (
    "The interval says how much depends on which rounds there were, not how much on which "
    "validation examples were chosen."
)
_CREDIT = (
    "A member is credited with its contribution within bounds, which hold for all alike. Its "
    "update counts for at most {length} the usual length of one from as many examples, and its "
    "mean weight for at most {weight} that of the median member by examples; of the last global "
    "steps, which everybody has, its update holds at most {borrowed} what is usual beside what is "
    "the member's own. What is negative counts whole. The table says which part is credited to "
    "nobody."
)
_MASKS = (
    "Updates were masked, and the server saw none of them: it knows their products with at most a "
    "few vectors a round, and their sum. Who kept the masks: {keeper}. The last hash of that "
    "keeper's log, which its operator can confirm: {last}. Cosines behind credits are known to a "
    "few percent."
)
_COUNTED = ("asked", "answered", "late", "missing", "refused", "paused", "offline")
_LETTERS = (
    "Least participation first: usable replies over requests, and rounds that a member could not "
    "be asked in. Each round: "
    + ", ".join(f"{letter} {what}" for what, letter in LETTERS.items())
    + f", {NOT_ASKED} not asked."
)
_OMEGA = (
    "What the strategy weighs a member's updates by, after its last round: no contribution. It "
    "does not add up, and says nothing about how much was gained."
)


def consortium_page(account: Account, records: RunRecords, manifest: Manifest) -> str:
    """Return the page for the consortium: every member in one table."""
    ends = [m.contribution for m in account.members]
    for member in account.members:
        ends.extend(member.interval or ())
    scale = pictures.Scale(ends, 5, 145)
    levels = [member.verdict.level for member in account.members]
    paid = sum(member.cents or 0 for member in account.members)
    return _render(
        "consortium",
        account,
        records,
        manifest,
        title=f"Contributions: {manifest.run}",
        drawn={
            m.client_id: pictures.interval(m.contribution, m.interval, scale)
            for m in account.members
        },
        curve=pictures.loss_curve(records.losses, account.first_round - 1),
        verdict_counts=" / ".join(
            str(levels.count(level)) for level in ("accept", "review", "quarantine")
        ),
        axis_words=f"{_short(scale.low)} to {_short(scale.high)}",
        remainder_words=_remainder_words(account, str(records.config.get("attribution", ""))),
        in_short=list(summary.for_consortium(account, _nats_of(account))),
        advice=summary.advice(account),
        total=sum(m.contribution for m in account.members),
        shared=sum(m.share for m in account.members) + account.nobody_share,
        paid=paid + (account.nobody_cents or 0),
        paid_words=f"not shared out: {account.unpaid}" if account.unpaid else "shared out below",
    )


def member_page(
    account: Account, member: MemberAccount, records: RunRecords, manifest: Manifest
) -> str:
    """Return a member's page: its own figures, and all contributions without names."""
    own = {part.round: part.contribution for part in records.parts_of[member.client_id]}
    numbers = [row.round for row in records.rounds]
    decimals = _decimals(account)
    values = tuple(m.contribution for m in account.members)
    return _render(
        "member",
        account,
        records,
        manifest,
        title=f"{member.name}: contribution to {manifest.run}",
        member=member,
        in_short=list(summary.for_member(account, member, _nats_of(account))),
        place=1 + sum(value > member.contribution for value in values),
        spread=pictures.distribution(values, member.contribution, decimals),
        rounds=pictures.by_round([own.get(number) for number in numbers], decimals, numbers[0]),
    )


def _render(
    name: str, account: Account, records: RunRecords, manifest: Manifest, **more: Any
) -> str:
    return (
        _environment()
        .get_template(name)
        .render(
            decimals=_decimals(account),
            account=account,
            config=records.config,
            manifest=manifest,
            key=fingerprint(manifest.signer),
            version=records.provenance.get("versions", {}).get("fedif-flower", ""),
            verdict_rules=RULES,
            counted=_COUNTED,
            letters_words=_LETTERS,
            interval_words=_INTERVAL,
            spread_words=_SPREAD,
            credit_words=_credit_words(records),
            open_games=open_games(records.config),
            masking_words=_masking_words(records),
            omega_words=_omega_words(account, records.scoring),
            **more,
        )
    )


def _credit_words(records: RunRecords) -> str:
    """Return the bounds of a run in words."""
    values = {name: float(records.config.get(f"credit-{name}", 0.0)) for name in CREDIT_BOUNDS}
    if not any(values.values()):
        return "Each member is credited with its contribution: this run bounded no credit."
    told = {name: f"{v:g} times" if v else "any multiple of" for name, v in values.items()}
    return _CREDIT.format(**told)


def _masking_words(records: RunRecords) -> str:
    """Return who kept the masks of a run; nothing where updates were not masked."""
    if records.masking is None:
        return ""
    keeper, last = (str(records.masking.get(name, "")) for name in ("keeper", "log"))
    return _MASKS.format(keeper=keeper, last=last or "not known: the keeper gave none")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=DictLoader(
            {
                "base": templates.BASE,
                "parts": templates.PARTS,
                "consortium": templates.CONSORTIUM,
                "member": templates.MEMBER,
            }
        ),
        autoescape=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(
        nats=_nats,
        loss=summary.loss,
        percent=summary.percent,
        money=summary.money,
        some=lambda value: value or DASH,
        score=lambda value: DASH if value is None else f"{value:.3f}",
        count=lambda value: DASH if value is None else f"{value:,.0f}".replace(",", "\u202f"),
        date=lambda text: text.replace("T", " ").replace("Z", " UTC"),
    )
    return environment


@pass_context
def _nats(context: Context, value: float) -> str:
    """Return a contribution with as many decimals as the page's others."""
    return pictures.nats(value, context["decimals"])


def _nats_of(account: Account) -> summary.Nats:
    return partial(pictures.nats, decimals=_decimals(account))


def _decimals(account: Account) -> int:
    return pictures.decimals_for([m.contribution for m in account.members])


def _omega_words(account: Account, scores: Scoring | None) -> str:
    """Return what weight scores are; nothing where no member has one."""
    if all(member.weight_score is None for member in account.members):
        return ""
    return f"{_OMEGA} {scores.words()}" if scores else _OMEGA


def _remainder_words(account: Account, rule: str) -> str:
    if not account.decrease:
        return "the loss did not change"
    share = abs(account.remainder) / abs(account.decrease)
    words = f"{100 * share:.1f} % of the fall, credited to nobody"
    if share < SMALL_REMAINDER:
        words = "less than 0.1 % of the fall, credited to nobody"
    elif (account.remainder < 0) is (account.decrease > 0):
        words = f"nobody's: the contributions add up to {100 * share:.1f} % more than the fall"
    if share > LARGE_REMAINDER:
        finer = "attribution = adaptive makes it smaller"
        words += f": large; {'update-clipping bounds long steps' if rule == ADAPTIVE else finer}"
    return words


def _short(value: float) -> str:
    return f"{value:.2g}".replace("-", pictures.MINUS)
