"""The page's texts: Python, not files, as the statement's are."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light; --ink: #1b1f24; --soft: #57606a; --line: #d8dde3; --wash: #f5f7f9;
  --paper: #fff; --blue: #1f5fa8; --red: #b3341f; --green: #1d6b3a; --amber: #8a5a00; }
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --ink: #e6e9ed; --soft: #a3adb8; --line: #3a424b; --wash: #1f252b;
    --paper: #14181c; --blue: #79b2f2; --red: #f08a76; --green: #74c991; --amber: #e0b055; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; background: var(--paper); }
body { margin: 0 auto; padding: 32px 32px 48px; max-width: 1240px; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue",
  "Liberation Sans", Arial, sans-serif; overflow-wrap: anywhere; }
a { color: var(--blue); }
:focus-visible { outline: 3px solid var(--blue); outline-offset: 2px; }
header { border-bottom: 2px solid var(--ink); padding-bottom: 12px; margin-bottom: 20px; }
header p { margin: 4px 0 0; }
h1 { font-size: 26px; line-height: 1.2; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 30px 0 8px; break-after: avoid; }
nav a { margin-right: 16px; }
.soft, small { color: var(--soft); }
small { font-size: 12.5px; }
#lost { color: var(--red); font-weight: 600; }
#lost:empty { display: none; }
progress { display: block; width: 100%; height: 10px; border: 0; border-radius: 5px;
  overflow: hidden; margin: 0 0 16px; background: var(--line); }
progress::-webkit-progress-bar { background: var(--line); }
progress::-webkit-progress-value { background: var(--blue); }
progress::-moz-progress-bar { background: var(--blue); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px;
  margin: 0 0 16px; }
.figures div { background: var(--wash); border-radius: 6px; padding: 10px 14px;
  break-inside: avoid; }
.figures dt { color: var(--soft); font-size: 13px; }
.figures dd { margin: 1px 0 0; font-size: 20px; font-weight: 600; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.figures small { display: block; font-weight: 400; }
.remarks { list-style: none; margin: 0; padding: 0; display: grid; gap: 8px; }
.remarks li { background: var(--wash); border-left: 4px solid var(--amber); padding: 8px 14px;
  border-radius: 0 6px 6px 0; break-inside: avoid; }
.remarks .bad { border-color: var(--red); }
.remarks b { color: var(--amber); }
.remarks .bad b { color: var(--red); }
.remarks p { margin: 2px 0; max-width: 90ch; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr));
  gap: 12px 32px; }
figure { margin: 0; break-inside: avoid; }
figcaption { font-weight: 600; margin-bottom: 4px; }
figcaption span { font-weight: 400; margin-left: 12px; white-space: nowrap; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.grid { stroke: var(--line); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line-0, .line-2 { stroke: var(--blue); } .line-1, .line-3 { stroke: var(--amber);
  stroke-dasharray: 6 3; }
.dot-0, .dot-2 { fill: var(--blue); } .dot-1, .dot-3 { fill: var(--amber); }
.key-0, .key-2 { color: var(--blue); } .key-1, .key-3 { color: var(--amber); }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; line-height: 1.35; }
caption { text-align: left; color: var(--soft); padding: 0 0 6px; }
th { text-align: left; font-weight: 600; }
thead th { font-size: 12.5px; vertical-align: bottom; border-bottom: 1.5px solid var(--ink);
  padding: 5px 8px; }
thead { display: table-header-group; }
tbody th, td { padding: 6px 8px; border-bottom: 1px solid var(--line); vertical-align: top; }
tr { break-inside: avoid; }
tr > :first-child { padding-left: 0; } tr > :last-child { padding-right: 0; }
td small, th small { display: block; font-weight: 400; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
thead .number { white-space: normal; hyphens: manual; }
.members { table-layout: fixed; }
.members .who { width: 30%; } .members .number { width: 14%; }
.state { font-weight: 600; }
.refused, .failed, .revoked, .negative { color: var(--red); }
.away, .quarantined, .paused, .offline, .late { color: var(--amber); }
.training { color: var(--blue); } .answered { color: var(--green); }
.running { color: var(--blue); } .finished { color: var(--green); }
.stopped { color: var(--amber); }
details { margin: 10px 0; }
summary { cursor: pointer; color: var(--blue); }
.settings { width: auto; } .settings th { font-weight: 400; padding-right: 24px; }
.words { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 8px 0; }
.words dd { margin: 0; }
footer { margin-top: 32px; padding-top: 10px; border-top: 1px solid var(--line);
  color: var(--soft); font-size: 13px; }
@media screen and (max-width: 600px) {
  body { padding: 18px 16px 32px; }
  .figures { grid-template-columns: 1fr 1fr; gap: 8px; }
  .figures div { padding: 8px 10px; } .figures dd { font-size: 17px; }
  .score, .words dt, .seconds { display: none; }
  .words dt { display: block; } .words { grid-template-columns: 1fr; }
  .members .who { width: 36%; } .members .number { width: 19%; }
  thead th, tbody th, td { padding-left: 4px; padding-right: 4px; }
  svg text { font-size: 19px; }
}
@page { size: A4; margin: 15mm 14mm 16mm; }
@media print {
  body { padding: 0; max-width: none; font-size: 10pt; }
  table { font-size: 8.5pt; }
  .figures { grid-template-columns: repeat(3, 1fr); }
  .figures div { border: 1px solid var(--line); background: none; }
  .curves { grid-template-columns: 1fr 1fr; }
  nav, summary { display: none; }
}
"""

# Keeps what was opened, the place on the page and the focus; says what changed to screen readers.
SCRIPT = """
const every = 5000;
async function refresh() {
  const lost = document.getElementById("lost");
  try {
    const answer = await fetch(location.pathname, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    const focused = document.activeElement && document.activeElement.id;
    for (const open of document.querySelectorAll("main details[open]"))
      next.getElementById(open.id)?.setAttribute("open", "");
    document.querySelector("main").replaceWith(next.querySelector("main"));
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    const told = next.getElementById("status"), shown = document.getElementById("status");
    if (told.textContent !== shown.textContent) shown.innerHTML = told.innerHTML;
    document.title = next.title;
    lost.textContent = "";
  } catch (error) {
    lost.textContent = "No answer from the server: what is below may be old.";
  }
}
setInterval(() => { if (!document.hidden) refresh(); }, every);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
"""

TEMPLATE = """{% macro percent(value, decimals=1) -%}
{% if value is none %}\u2013{% else %}{{ "%.*f" % (decimals, 100 * value) }} %{% endif %}
{%- endmacro %}
{% macro rows(members) %}
{% for member in members %}
{% set totals = member.totals %}
<tr><th scope="row">{{ member.label }}\
<small>{{ totals.counts.accepted }} of {{ totals.asked }} replies counted\
{% if totals.malicious %}; marked as malicious{% endif %}</small></th>
<td><span class="state {{ member.state }}">{{ member.state }}</span>\
{% if member.state == "quarantined" %} until round {{ member.until }}{% endif %}
<small>{% if totals.answered %}last seen in round {{ totals.answered }}\
{% elif totals.asked %}never answered{% else %}asked for the first time{% endif %}\
{% if totals.rejected and totals.rejected == totals.last_round %}; {{ totals.rejection }}\
{% endif %}</small></td>
<td class="number">{{ percent(member.share) }}</td>
{% if attributed %}<td class="number">{% if totals.contribution is none %}\u2013{% else %}\
<span{% if totals.contribution < 0 %} class="negative"{% endif %}>\
{{ totals.contribution | nats(decimals) }}</span>{% endif %}</td>
{% endif %}
{% if scored %}<td class="number score">{% if totals.weight_score is none %}\u2013{% else %}\
{{ "%.3f" % totals.weight_score }}{% endif %}</td>
{% endif %}
</tr>
{% endfor %}
{% endmacro %}
{% macro table(members, caption) %}
<table class="members"><caption>{{ caption }}</caption>
<thead><tr><th scope="col" class="who">Member</th><th scope="col">State</th>
<th scope="col" class="number">Weight<small>of all so far</small></th>
{% if attributed %}<th scope="col" class="number">Contri&shy;bution<small>nats of loss</small></th>
{% endif %}
{% if scored %}<th scope="col" class="number score">\u03a9<small>weight score</small></th>
{% endif %}
</tr></thead>
<tbody>
{{ rows(members) }}
</tbody></table>
{% endmacro %}
{% macro listed(settings, caption) %}
<table class="settings"><caption>{{ caption }}</caption><tbody>
{% for key, value in settings.items() %}
<tr><th scope="row"><code>{{ key }}</code></th><td>{{ value }}</td></tr>
{% endfor %}
</tbody></table>
{% endmacro %}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{{ run.state }}{% if run.num_rounds %}, round {{ run.last_round }} of \
{{ run.num_rounds }}{% endif %}: {{ title }}</title>
<style>{{ style }}</style>
</head>
<body>
<header>
<h1>{{ title }}</h1>
<p id="status" role="status"><b class="{{ run.state }}">{{ run.state | capitalize }}</b>: \
{% if run.last_round %}round {{ run.last_round }} of {{ run.num_rounds }} is over\
{% else %}no round is over yet{% endif %}{% if run.figure %}, \
{{ run.figure }}{% endif %}.</p>
<p id="lost" role="alert"></p>
</header>
<main>
<progress max="{{ run.num_rounds or 1 }}" value="{{ run.last_round }}" \
aria-label="rounds that are over">{{ run.last_round }} of {{ run.num_rounds }}</progress>
<dl class="figures">
<div><dt>Rounds</dt><dd>{{ "{:,}".format(run.last_round) }}{% if run.num_rounds %} of \
{{ "{:,}".format(run.num_rounds) }}{% endif %}
<small>{% if run.seconds_per_round is none %}none is over yet{% else %}\
{{ run.seconds_per_round | lasting }} each, lately{% endif %}</small></dd></div>
{% if run.end is not none %}
<div><dt>Ends in about</dt><dd>{{ (run.end - run.now) | lasting if run.end > run.now else
"a moment" }}<small>{{ run.end | moment }}</small></dd></div>
{% elif not run.is_running %}
<div><dt>Last written</dt><dd>{{ (run.now - run.last_sign) | lasting }} ago\
<small>{{ run.last_sign | moment }}</small></dd></div>
{% endif %}
{% if live %}
<div><dt>Now</dt><dd>{{ live.phase }}<small>{% if live.phase == "training" %}round \
{{ live.round }}: {{ "{:,}".format(live.num_answered) }} of {{ "{:,}".format(live.num_asked) }} \
asked have answered{% elif live.round %}after round {{ live.round }}{% endif %}</small></dd></div>
{% endif %}
{% for name, _, shown in curves[:2] %}
{% for split, value in shown.items() %}
{% if loop.first %}
<div><dt>{{ name }}</dt><dd>{{ value }}<small>on the {{ split }} data, last</small></dd></div>
{% endif %}
{% endfor %}
{% endfor %}
<div><dt>Members</dt><dd>{{ "{:,}".format(run.members | length) }}<small>\
{% if live and live.num_online %}{{ "{:,}".format(live.num_online) }} connected; {% endif %}\
{{ "{:,}".format(attention) }} need{{ "s" if attention == 1 }} a look</small></dd></div>
</dl>
{% if links %}
<nav aria-label="results">
{% for name, path in links.items() %}<a href="{{ path }}">{{ name }}</a>
{% endfor %}
</nav>
{% endif %}
<h2>What to know</h2>
{% if remarks %}
<ul class="remarks">
{% for remark in remarks %}
<li class="{{ remark.level }}"><p><b>{{ "Wrong" if remark.level == "bad" else "Look" }}.</b> \
{{ remark.text }}</p><p><small>What to do: {{ remark.todo }}</small></p></li>
{% endfor %}
</ul>
{% else %}
<p>Nothing is wrong, as far as the records tell.</p>
{% endif %}
{% if curves %}
<h2>Over the rounds</h2>
<div class="curves">
{% for name, picture, shown in curves %}
<figure><figcaption>{{ name }}{% for split, value in shown.items() %}\
<span class="key-{{ loop.index0 }}">{{ split }}: {{ value }}</span>{% endfor %}</figcaption>
{{ picture }}</figure>
{% endfor %}
</div>
{% endif %}
{% if first %}
<h2>Members</h2>
{{ table(first, "Who needs a look comes first." if not others else
"Who needs a look comes first; the first %d of %d." % (first | length, run.members | length)) }}
{% if others %}
<details id="others"><summary id="others-more">{{ "{:,}".format(others | length) }} more members\
</summary>
{{ table(others, "The other members.") }}
</details>
{% endif %}
{% if left_out %}<p>{{ "{:,}".format(left_out) }} more are not on this page; clients.csv has \
them.</p>
{% endif %}
<details id="words"><summary id="words-more">What the words mean</summary>
<dl class="words">
{% for state, words in states.items() %}
<dt><span class="state {{ state }}">{{ state }}</span></dt><dd>{{ words }}</dd>
{% endfor %}
{% if attributed %}<dt>Contribution</dt><dd>by how much its updates lowered the validation loss \
so far</dd>
{% endif %}
{% if scored %}<dt>\u03a9</dt><dd>weight score, by which the strategy weighs its updates: no \
contribution, and nobody should be paid by it</dd>
{% endif %}
</dl>
</details>
{% endif %}
{% if latest %}
<h2>Last rounds</h2>
<table class="rounds"><caption>The newest first; all are in rounds.csv.</caption>
<thead><tr><th scope="col">Round</th>
{% for name in latest[0].figures if name.endswith(("_accuracy", "_loss")) %}
<th scope="col" class="number">{{ name.replace("_", " ") }}</th>
{% endfor %}
<th scope="col" class="number">Replies<small>counted, of asked</small></th>
<th scope="col" class="number seconds">Time</th></tr></thead>
<tbody>
{% for point in latest %}
<tr><th scope="row">{{ point.round }}{% if point.round_failed %} \
<small class="refused">failed: {{ point.reason }}</small>{% endif %}</th>
{% for name in latest[0].figures if name.endswith(("_accuracy", "_loss")) %}
<td class="number">{% if name not in point.figures %}\u2013{% elif name.endswith("_accuracy") %}\
{{ percent(point.figures[name]) }}{% else %}{{ "%.4g" % point.figures[name] }}{% endif %}</td>
{% endfor %}
<td class="number">{% if point.asked %}{{ point.accepted }} / {{ point.asked }}{% else %}\
\u2013{% endif %}</td>
<td class="number seconds">{{ "%.1f" % point.seconds }} s</td></tr>
{% endfor %}
</tbody></table>
{% endif %}
{% if settings[0] or settings[1] %}
<h2>Settings</h2>
{% if settings[0] %}{{ listed(settings[0], "Chosen for this run.") }}{% endif %}
<details id="settings"><summary id="settings-more">{{ settings[1] | length }} more are as they \
come</summary>
{{ listed(settings[1], "As they come.") }}
</details>
{% endif %}
<footer>As of {{ run.now | moment }}, from the folder <code>{{ run.records.name }}</code> \
alone.</footer>
</main>
{% if script %}
<script>{{ script }}</script>
{% endif %}
</body>
</html>
"""
