"""The pages' texts. They are Python, not files: what a server gets as a bundle is Python alone."""

from __future__ import annotations

from fedif_consortium.statement.page_messages import PAGE_HEAD
from fedif_consortium.statement.style import STYLE

BASE = (
    PAGE_HEAD
    + """<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>"""
    + STYLE
    + """{% block style %}{% endblock %}</style>
</head>
<body>
{%- block content %}{% endblock %}
</body>
</html>
"""
)

PARTS = """
{% macro summary() -%}
<section class="summary">
{% for word, told in in_short %}<p><b>{{ word }}.</b> {{ told }}</p>
{% endfor %}
<p><b>Questions.</b> {% if manifest.contact %}{{ manifest.contact }}{% else %}Ask whoever ran this
federation: the operator, who signed with the key at the end of this page{% endif %}.</p>
</section>
{%- endmacro %}

{% macro which_rounds() -%}
{% if account.first_round > 1 %}rounds {{ account.first_round }} to {{ account.last_round }}\
{% else %}{{ account.rounds }} round{{ "s" if account.rounds > 1 }}{% endif %}
{%- endmacro %}

{% macro absence(member) -%}
{% if member.revoked_in is not none %}revoked in round {{ member.revoked_in }}\
{% elif member.away %}{{ member.away }} away{% endif %}
{%- endmacro %}

{% macro completeness(found) -%}
<section>
<h2>Completeness</h2>
<p><b>{{ found.headline }}</b></p>
<div class="wide">
<table><thead><tr><th>Member</th><th class="number">Took part in</th>\
{% for name in counted %}<th class="number">{{ name | capitalize }}</th>{% endfor %}\
<th>Last seen</th>{% if found.members[0].rounds %}<th>Each round</th>{% endif %}</tr></thead><tbody>
{% for member in found.members -%}
<tr><td class="name">{{ member.name }}</td>
<td class="number">{% if member.participation is not none %}{{
member.participation | percent }}{% endif %}</td>
{% for name in counted %}<td class="number">{{
member[name] | some }}</td>{% endfor %}
<td>{{ member.seen }}</td>
{% if member.rounds %}<td class="wraps"><code>{{ member.rounds }}</code>\
</td>{% endif %}</tr>
{% endfor -%}
</tbody></table>
</div>
<p>{{ letters_words }}</p>
</section>
{%- endmacro %}

{% macro signed(member) -%}
{% if member.signed == member.taken_part and member.signed %}all signed{% elif member.signed %}\
{{ member.signed }} signed{% else %}none signed{% endif %}
{%- endmacro %}

{% macro withheld(member) -%}
{% if member.withheld >= 0.0005 %}; {{ member.withheld | percent }}{% if member.withheld_cents
is not none %} ({{ member.withheld_cents | money }}){% endif %} withheld{% endif %}
{%- endmacro %}
{% macro ends(interval) -%}
{{ interval[0] | nats }} to {{ interval[1] | nats }}
{%- endmacro %}

{% macro other_rounds(member) -%}
{{ member.other_rounds | nats }} without round {{ account.decisive_round }}\
{% if member.other_interval %}<br>{{ ends(member.other_interval) }}{% endif %}
{%- endmacro %}

{% macro contribution(member) -%}
<span class="{{ 'negative' if member.contribution < 0 }}">{{ member.contribution | nats }}</span>
{%- if member.interval %}<span class="between">{{ ends(member.interval) }}</span>{% endif %}
{%- if member.credited < member.contribution %}<span class="between">credited \
{{ member.credited | nats }}</span>{% endif %}
{%- if member.contribution and member.other_rounds is not none %}
<span class="between">{{ other_rounds(member) }}</span>
{%- endif %}
{%- endmacro %}

{% macro rules() -%}
<h2>The rules</h2>
<p><b>Contribution.</b> In each round the server combined the accepted updates into one step. A
member's contribution is the part of the fall of the validation loss along this step that its own
update brought about, in nats where that loss is a cross-entropy; the sum over all members and
rounds is the whole fall, but for the remainder: the error of measuring along a step at a few of its
points, and the effect of batch-norm statistics and of a server optimizer's momentum
that faded. It is nobody's.
An update that changes nothing, or that was given no weight, contributes exactly 0.</p>
<p><b>Interval.</b> {{ interval_words }}</p>
<p><b>Credit.</b> {{ credit_words }}</p>
<p><b>Share.</b> What a member is credited with over the sum of all positive credits, or over the
sum of all contributions where that is more. What lies beyond the bounds is paid to nobody, unless
other members lost as much: then those who have a credit share the whole. A negative contribution is
shown as it is, and paid 0. Where the remainders come to more than half of the fall, the round with
the largest one is left out, and so are the rounds after it that only bring the loss back; then the
next one, until the others add up. There are no shares where the loss did not fall.
{%- if account.budget_cents is not none %} The budget is shared out in
whole cents:
each share is rounded down, and the cents left over go to the largest fractions, so that the
amounts add up to
the budget.{% endif %}</p>
<p><b>Verdict.</b> Advice to people, which changes no payment. The first of these that applies:</p>
<ol>{% for rule in verdict_rules %}
<li><span class="{{ rule.level }}">{{ rule.level }}</span>: {{ rule.words }}.</li>{% endfor %}
</ol>
{% if omega_words %}<p><b>Weight score Ω.</b> {{ omega_words }}</p>{% endif %}
{%- endmacro %}

{% macro todo() -%}
<h2>What to do</h2>
<p><b>Accept:</b> pay. <b>Review:</b> look at the reason, ask the member, and decide before you pay;
most have a harmless cause. <b>Quarantine:</b> pay nothing and leave the member out of the next run,
until it is explained. A verdict changes no amount by itself.</p>
{% if advice %}<ul>{% for names, todo in advice %}
<li><b>{{ names }}</b>: {{ todo }}.</li>{% endfor %}
</ul>{% endif %}
{%- endmacro %}

{% macro limits() -%}
<h2>What this proves, and what it does not</h2>
<ul>
<li>The validation set decides what counts as a gain. It lies with the server; its hash below
shows that it was not
exchanged afterwards, not that it is a good one. What it does not hold, nobody is credited for.</li>
<li>It was measured along this run: other members, another order of rounds or another seed give
other figures.
{{ spread_words }}</li>
<li>A backdoor is no loss on clean data. A member whose update hides one can have a high
contribution.</li>
<li>The signature shows who made this statement and that it was not changed since, not that the
records are true.
Whoever runs the server writes the records. Where the updates were kept, <code>fedif replay</code>
recomputes
the contributions from them.</li>{% if masking_words %}
<li>{{ masking_words }}</li>{% endif %}
</ul>
{%- endmacro %}

{% macro checks(command, effect) -%}
<section class="keep">
<h2>Check it</h2>
<p><code>{{ command }}</code> {{ effect }} Compare the key's fingerprint with the one that the
operator gave you by
another way.</p>
<table class="hashes">
<tr><td>signed by key</td><td>{{ key }}</td></tr>
<tr><td>records, rounds 0 to {{ account.last_round }}</td><td>{{ manifest.chain }}</td></tr>
{% if manifest.head %}<tr><td>lines of receipts, their root</td><td>{{ manifest.head }}</td></tr>
{% endif %}
<tr><td>validation set</td><td>{{ manifest.validation }}</td></tr>
<tr><td>settings</td><td>{{ manifest.settings }}</td></tr>
<tr><td>code {{ version }}</td><td>{{ manifest.code }}</td></tr>
</table>
</section>
{%- endmacro %}
"""

CONSORTIUM = """{% extends "base" %}{% import "parts" as parts with context %}
{% block style %}@page { size: A4 landscape; }
@media print { .figures { grid-template-columns: repeat(5, 1fr); } }
{% endblock %}
{% block content %}
<header>
<h1>What each member contributed</h1>
<p>Run <b>{{ manifest.run }}</b>: {{ config.strategy }}, {{ parts.which_rounds() }}, \
{{ account.members | length }} members. Made {{ manifest.made | date }}.</p>
</header>
{{ parts.summary() }}
<dl class="figures">
<div><dt>Validation loss</dt><dd>{{ account.loss_before | loss }} → {{ account.loss_after | loss }}
<small>before and after the run</small></dd></div>
<div><dt>Attributed to members</dt><dd>{{ account.attributed | nats }}
<small>of a fall of {{ account.decrease | nats }}</small></dd></div>
<div><dt>Remainder</dt><dd>{{ account.remainder | nats }}
<small>{{ remainder_words }}</small></dd></div>
{% if account.budget_cents is not none -%}
<div><dt>Budget</dt><dd>{{ account.budget_cents | money }}
<small>{{ paid_words }}</small></dd></div>{% endif %}
<div><dt>Verdicts</dt><dd>{{ verdict_counts }}
<small>accept / review / quarantine</small></dd></div>
</dl>
{% for warning in open_games %}<p><b>Left open.</b> {{ warning }}.</p>{% endfor %}
<h2>Members</h2>
<div class="wide">
<table class="members">
<colgroup><col style="width: 18%"><col style="width: 7%"><col style="width: 8%"><col style="width:
15%">
<col style="width: 13%"><col style="width: 7%">
{% if account.budget_cents is not none %}<col style="width: 9%">{% endif %}
{% if omega_words %}<col style="width: 6%">{% endif %}
<col style="width: 7%"><col style="width: 12%"></colgroup>
<thead><tr><th>Member</th><th class="number">Rounds<span class="between">of asked</span></th>
<th class="number">Examples<span class="between">claimed</span></th>
<th class="number">Contribution<span class="between">of the loss, 95 % interval</span></th>
<th><span class="between">{{ axis_words }}</span></th><th class="number">Share</th>
{% if account.budget_cents is not none %}<th class="number">Amount</th>{% endif %}
{% if omega_words %}<th class="number">Ω<span class="between">weight score</span></th>{% endif %}
<th class="number">Refused</th>
<th>Verdict</th></tr></thead>
<tbody>
{% for member in account.members -%}
<tr><td class="name">{{ member.name }}</td>
<td class="number" data-label="Rounds, of those asked in">{{ member.taken_part }} / {{
member.asked }}<span class="between wraps">{{ parts.absence(member) }}</span>
{% if account.has_signatures %}<span class="between wraps">{{ parts.signed(member) }}</span>
{% endif %}</td>
<td class="number" data-label="Examples, claimed">{{ member.examples | count }}</td>
<td class="number" data-label="Contribution, 95 % interval">{{ parts.contribution(member) }}</td>
<td class="picture">{{ drawn[member.client_id] }}</td>
<td class="number" data-label="Share">{{ member.share | percent }}</td>
{% if account.budget_cents is not none %}<td class="number amount">{{ member.cents | money }}</td>
{% endif %}
{% if omega_words %}<td class="number" data-label="Weight score Ω">{{
member.weight_score | score }}</td>
{% endif %}
<td class="number" data-label="Replies refused">{{ member.refused | some }}</td>
<td class="verdict"><span class="{{ member.verdict.level }}">{{ member.verdict.level }}</span>\
{% if member.verdict.level != "accept" %}<span class="reason">{{ member.verdict.reason }}{{
parts.withheld(member) }}</span>{% endif %}</td></tr>
{% endfor -%}
</tbody>
<tfoot>{% if account.nobody_share > 0 %}<tr><td class="name">Nobody: beyond the bounds</td>
<td></td><td></td>
<td class="number" data-label="Contribution">{{ account.uncredited | nats }}</td><td></td>
<td class="number" data-label="Share">{{ account.nobody_share | percent }}</td>
{% if account.budget_cents is not none %}<td class="number amount">\
{{ account.nobody_cents | money }}</td>{% endif %}
{% if omega_words %}<td></td>{% endif %}<td></td><td></td></tr>{% endif %}
<tr><td class="name">All</td><td></td><td></td>
<td class="number" data-label="Contribution">{{ total | nats }}</td><td></td>
<td class="number" data-label="Share">{{ shared | percent }}</td>
{% if account.budget_cents is not none %}<td class="number amount">{{ paid | money }}</td>
{% endif %}
{% if omega_words %}<td></td>{% endif %}<td></td><td></td></tr></tfoot>
</table>
</div>
{% if account.completeness and account.completeness.members %}{{
parts.completeness(account.completeness) }}{% endif %}
<section class="keep">
<h2>What was gained</h2>
<figure>{{ curve }}<figcaption>Validation loss over the rounds, in nats.</figcaption></figure>
</section>
{{ parts.todo() }}
{{ parts.rules() }}
{{ parts.limits() }}
{{ parts.checks("fedif verify RUN_DIR", "recomputes these figures from the run's records, and
names the first "
  "thing that was changed.") }}
{% endblock %}"""

MEMBER = """{% extends "base" %}{% import "parts" as parts with context %}
{% block content %}
<header>
<h1>{{ member.name }}: your contribution</h1>
<p>Run <b>{{ manifest.run }}</b>: {{ config.strategy }}, {{ parts.which_rounds() }}, \
{{ account.members | length }} members. Made {{ manifest.made | date }}.</p>
</header>
{{ parts.summary() }}
<dl class="figures">
{% if account.budget_cents is not none -%}
<div><dt>Amount</dt><dd>{{ member.cents | money }}
<small>of {{ account.budget_cents | money }}</small></dd></div>{% endif %}
<div><dt>Verdict</dt><dd class="{{ member.verdict.level }}">{{ member.verdict.level }}
<small>advice to people</small></dd></div>
<div><dt>Share</dt><dd>{{ member.share | percent }}
<small>of what is credited to all; place {{ place }} of {{
account.members | length }}</small></dd></div>
<div><dt>Contribution</dt><dd>{{ member.contribution | nats }}
<small>nats of validation loss{% if member.interval %}; {{ parts.ends(member.interval) }}{% endif %}
{% if member.contribution and member.other_rounds is not none %}<br>
{{ parts.other_rounds(member) }}{% endif %}
</small></dd></div>
{% if member.credited < member.contribution -%}
<div><dt>Credited</dt><dd>{{ member.credited | nats }}
<small>of it lies within the bounds: see below{{ parts.withheld(member) }}</small></dd></div>{%
endif %}
<div><dt>Rounds</dt><dd>{{ member.taken_part }} of {{ member.asked }}
<small>taken part, of those you were asked in{% if member.late %}; {{ member.late }} late{% endif
%}{% if parts.absence(member) %}; {{
parts.absence(member) }}{% endif %}{% if account.has_signatures %}; {{ parts.signed(member) }}{%
endif %}</small></dd></div>
<div><dt>Examples</dt><dd>{{ member.examples | count }}
<small>that you said you trained on</small></dd></div>
{% if omega_words -%}
<div><dt>Weight score Ω</dt><dd>{{ member.weight_score | score }}
<small>not an amount: see below</small></dd></div>{% endif %}
</dl>
<section class="keep">
<h2>Among all members</h2>
<figure>{{ spread }}<figcaption>One line for each member's contribution, in nats; the point is
yours. All of them
together lowered the validation loss from {{ account.loss_before | loss }} to {{
account.loss_after | loss }};
{{ account.attributed | nats }} of the fall of {{ account.decrease | nats }} is attributed, and
the remainder is
{{ account.remainder | nats }}. An equal part of what was gained in your rounds would be
{{ member.equal_part | nats }}.</figcaption></figure>
</section>
<section class="keep">
<h2>Your rounds</h2>
<figure>{{ rounds }}<figcaption>What you contributed in each round, in nats. A dot: you had no
part in it.
</figcaption></figure>
</section>
{% if member.by_class -%}
<section class="keep">
<h2>By class</h2>
<table class="narrow"><thead><tr><th>Class</th><th class="number">Contribution to its loss,
nats</th></tr></thead><tbody>
{% for value in member.by_class -%}
<tr><td>{{ loop.index0 }}</td><td class="number"><span class="{{ 'negative' if value < 0 }}">{{
value | nats }}</span>\
</td></tr>
{% endfor -%}
</tbody></table>
</section>
{%- endif %}
{% if member.refusals -%}
<section class="keep">
<h2>Replies that did not count</h2>
<table class="narrow"><thead><tr><th>Reason</th><th class="number">Rounds</th></tr></thead><tbody>
{% for reason, count in member.refusals[:20] -%}
<tr><td>{{ reason }}</td><td class="number">{{ count }}</td></tr>
{% endfor -%}
</tbody></table>
</section>
{%- endif %}
{{ parts.rules() }}
{{ parts.limits() }}
{{ parts.checks("fedif verify THIS_PAGE", "checks, with manifest.intoto.json beside this page,
that it is "
  "as it was signed. All members hold the same manifest: compare it with theirs.") }}
{% endblock %}"""
