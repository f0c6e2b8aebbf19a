"""How the pages look, on a screen and on A4 paper."""

from __future__ import annotations

STYLE = """
:root { --ink: #1b1f24; --soft: #57606a; --line: #d8dde3; --wash: #f5f7f9; --blue: #1f5fa8;
  --red: #b3341f; --green: #1d6b3a; --amber: #8a5a00; }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 40px 32px 56px; max-width: 1180px; color: var(--ink);
  background: #fff; font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue",
  "Liberation Sans", Arial, sans-serif; }
header { border-bottom: 2px solid var(--ink); padding-bottom: 14px; margin-bottom: 26px; }
header p { margin: 4px 0 0; color: var(--soft); }
h1 { font-size: 27px; line-height: 1.2; margin: 0; letter-spacing: -0.01em; overflow-wrap:
  anywhere; }
h2 { font-size: 18px; margin: 34px 0 10px; break-after: avoid; }
p, li { max-width: 74ch; }
ul, ol { padding-left: 20px; margin: 8px 0; }
li { margin: 3px 0; }
.soft { color: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 0 0 20px; }
.figures div { background: var(--wash); border-radius: 6px; padding: 10px 14px 11px;
  break-inside: avoid; }
.figures dt { color: var(--soft); font-size: 13px; }
.figures dd { margin: 1px 0 0; font-size: 21px; font-weight: 600; font-variant-numeric:
  tabular-nums;
  overflow-wrap: anywhere; line-height: 1.25; }
.figures dd small { display: block; font-size: 12.5px; font-weight: 400; color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; line-height: 1.35; }
th { text-align: left; font-weight: 600; font-size: 12.5px; vertical-align: bottom;
  border-bottom: 1.5px solid var(--ink); padding: 5px 8px; }
td { padding: 6px 8px; border-bottom: 1px solid var(--line); vertical-align: top; }
thead { display: table-header-group; }
tr { break-inside: avoid; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
tfoot { display: table-row-group; }
tfoot td { border-bottom: 0; border-top: 1.5px solid var(--ink); font-weight: 600; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th .between, .wraps { white-space: normal; }
.between { display: block; color: var(--soft); font-size: 11.5px; }
.summary { background: var(--wash); border-left: 4px solid var(--blue); border-radius: 0 6px 6px 0;
  padding: 8px 16px 9px; margin: 0 0 18px; break-inside: avoid; }
.summary p { margin: 4px 0; max-width: 96ch; }
table.members { table-layout: fixed; }
@media screen { .wide { overflow-x: auto; } table.members { min-width: 980px; } }
.name { overflow-wrap: anywhere; font-weight: 600; hyphens: auto; }
.reason { display: block; color: var(--soft); font-size: 12px; }
.picture { padding-top: 8px; }
table.narrow { width: auto; min-width: 50%; }
.accept, .review, .quarantine { font-weight: 600; }
.accept { color: var(--green); } .review { color: var(--amber); } .quarantine { color: var(--red); }
.negative { color: var(--red); }
svg { display: block; max-width: 100%; height: auto; }
svg text { font: 11px system-ui, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif;
  fill: var(--soft); font-variant-numeric: tabular-nums; }
.hashes td { border: 0; padding: 2px 14px 2px 0; }
.hashes td:last-child { font: 12px/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas,
  monospace;
  overflow-wrap: anywhere; }
.hashes td:first-child { white-space: nowrap; color: var(--soft); }
code { font: 0.92em ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  background: var(--wash); padding: 1px 4px; border-radius: 3px; overflow-wrap: anywhere; }
figure { margin: 10px 0 0; break-inside: avoid; }
figcaption { color: var(--soft); font-size: 13px; margin-top: 4px; max-width: 74ch; }
section.keep { break-inside: avoid; }
@media screen and (max-width: 1040px) {
  table.members { display: block; min-width: 0; }
  .members tbody, .members tfoot { display: grid; gap: 10px; margin-bottom: 10px;
    grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr)); }
  .members thead, .members colgroup, .members td:empty { display: none; }
  .members tr { display: grid; grid-template-columns: 1fr auto; gap: 0 12px; padding: 10px 14px;
    border: 1px solid var(--line); border-radius: 6px; }
  .members td, .members tfoot td { display: block; border: 0; padding: 2px 0; font-weight: 400;
    text-align: right; }
  .members td[data-label] { grid-column: 1 / -1; display: flex; gap: 0 16px; order: 3;
    justify-content: space-between; flex-wrap: wrap; }
  .members td[data-label]::before { content: attr(data-label); color: var(--soft); }
  .members td .between { flex-basis: 100%; font-size: 12.5px; }
  .members td .between:empty { display: none; }
  .members td.name { text-align: left; font-size: 16px; font-weight: 600; order: 0; }
  .members td.amount { font-size: 19px; font-weight: 600; order: 1; }
  .members td.verdict { grid-column: 1 / -1; text-align: left; order: 2; padding-bottom: 6px; }
  .members .picture { grid-column: 1 / -1; order: 3; }
  .members .picture svg { width: 100%; height: auto; }
}
@media screen and (max-width: 600px) {
  body { padding: 22px 16px 40px; }
  .figures { grid-template-columns: 1fr 1fr; gap: 8px; }
  .figures dd { font-size: 18px; }
  svg { overflow: visible; }
  figure svg text { font-size: 22px; }
  .hashes tr, .hashes td { display: block; }
}
@page { size: A4; margin: 15mm 14mm 16mm; }
@media print {
  body { padding: 0; max-width: none; font-size: 10.5pt; }
  table { font-size: 8.5pt; }
  th { font-size: 8pt; }
  h1 { font-size: 19pt; } h2 { font-size: 13pt; margin-top: 20pt; }
  .between, .reason { font-size: 7.5pt; }
  td, th { padding-left: 4px; padding-right: 4px; }
  .figures { grid-template-columns: repeat(3, 1fr); }
  .figures dd { font-size: 15pt; }
  .figures div { border: 1px solid var(--line); background: none; }
  .hashes td:last-child { font-size: 7.5pt; }
}
"""
