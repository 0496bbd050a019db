"""Render the report of a simulation as one self-contained HTML file, for a screen, a phone and paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from html import escape
from math import ceil

from rqsched.cli.output import shown
from rqsched.simulate.report import Simulation, SimulationOutcome
from rqsched.simulate.text import (
    BEHIND,
    LIMIT,
    NIGHT,
    QUEUE,
    SCHEDULE,
    behind_rows,
    from_to,
    limit_row,
    makers,
    night_rows,
    outcome_in_words,
    queue_row,
    schedule_rows,
)

_WIDTH, _HEIGHT = 1_000, 180
_MOST_ROWS = 200
_FEW = 5
"""How many of the highest days the chart marks."""
_STYLE = """
:root { color-scheme: light dark; --bg: #f5f6f9; --surface: #fff; --border: #d7dce5; --text: #1a2130; --muted:
  #566072;
  --accent: #3546c4; --bad: #b3261e; --warn: #875400; }
@media (prefers-color-scheme: dark) { :root { --bg: #0f131a; --surface: #171c26; --border: #2d3646; --text: #e6eaf1;
  --muted: #a2acbc; --accent: #9eaaff; --bad: #ff8f86; --warn: #efb44f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--text);
  font: .9375rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1100px; margin-inline: auto; padding: 24px 16px 40px; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 4px; } h2 { font-size: 1.125rem; margin: 0 0 8px; }
section { background: var(--surface); border: 1px solid var(--border); border-radius: 8px; padding: 16px;
  margin-top: 16px; }
p { margin: 0 0 8px; max-width: 70ch; } .muted { color: var(--muted); } ul { margin: 0; padding-left: 20px; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin: 16px 0 0; }
dt { color: var(--muted); font-size: .8125rem; } dd { margin: 0; font-size: 1.25rem; font-variant-numeric:
  tabular-nums; }
.wide { overflow-x: auto; } .wide:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; } caption { text-align: left;
  color: var(--muted); padding: 8px 0 4px; }
th, td { text-align: left; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--border); vertical-align: top; }
th { font-size: .8125rem; color: var(--muted); font-weight: 600; } th, td { white-space: nowrap; }
td:last-child { white-space: normal; overflow-wrap: anywhere; min-width: 22ch; }
svg { display: block; width: 100%; height: auto; } svg rect { fill: var(--accent); } svg rect.high { fill:
  var(--warn); }
svg line { stroke: var(--border); } svg line.clocks { stroke: var(--bad); stroke-dasharray: 4 3; }
.ends { display: flex; justify-content: space-between; color: var(--muted); font-size: .8125rem; } .bad { color:
  var(--bad); font-weight: 600; }
@media print { th, td { white-space: normal; } :root { color-scheme: light; --bg: #fff; --surface: #fff;
  --border: #bbb; --text: #000; --muted: #444; --accent: #3546c4; --bad: #b3261e; --warn: #875400; } main {
  max-width: none; padding: 0; } section { break-inside: avoid-page; border-radius: 0; } section.long {
  break-inside: auto; } tr { break-inside: avoid; } .wide { overflow: visible; } * { print-color-adjust:
  exact; } }
"""


def page(found: Simulation, name: str) -> str:
    """Return a simulation as the text of an HTML file. `name` says what was simulated."""
    most = max((day.peak_fires for day in found.days), default=0)
    title = f"{name}, {from_to(found)}"
    figures = {
        "Fires": f"{found.fires:,}",
        "Schedules": f"{len(found.schedules):,}",
        "Highest minute": f"{most:,}",
        "Fires a day": f"{found.fires / ((found.end - found.start) / timedelta(days=1)):,.1f}",
    }
    behind = sorted(one.queue for one in found.outcome.queues if not one.keeps_up)
    full = sorted(one.limit for one in found.outcome.limits if not one.keeps_up)
    figures["Schedules that overlap"] = str(sum(one.overlapped > 0 for one in found.outcome.schedules))
    parts = [
        f"<h1>Simulation: {escape(name)}</h1>",
        f'<p class="muted">{from_to(found)}; seed {found.seed}.</p>',
        f"<dl>{''.join(f'<div><dt>{key}</dt><dd>{value}</dd></div>' for key, value in figures.items())}</dl>",
    ]
    if behind:
        parts.append(f'<p class="bad">Queues that do not keep up: {escape(", ".join(behind))}.</p>')
    if full:
        parts.append(f'<p class="bad">Limits that do not keep up: {escape(", ".join(full))}.</p>')
    parts.append(_section("Fires by day", _chart(found)))
    if found.peaks:
        peaks = ((one.at, one.fires, makers(one)) for one in found.peaks)
        parts.append(_section("Highest minutes", _table("Minutes that stand out", ("At", "Fires", "Schedules"), peaks)))
    queues = ((one.queue, one.fires, one.peak_fires, one.peak_at) for one in found.queues)
    columns = ("Queue", "Fires", "Most a minute", "At")
    parts.append(_section("Queues", _table("Fires by queue", columns, queues)))
    parts.append(_outcome(found.outcome))
    if found.nights:
        parts.append(_section("Clocks", _table("Where clocks change", NIGHT, night_rows(found)), is_long=True))
    if found.not_simulated:
        left_out = ((one.name, one.what) for one in found.not_simulated)
        parts.append(
            _section("Not simulated", _table("Parts that are left out", ("Schedule", "Part"), left_out), is_long=True)
        )
    texts = "".join(f"<li>{escape(text)}</li>" for text in found.assumed)
    parts.append(_section("Assumptions", f"<ul>{texts}</ul>"))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def _section(title: str, inner: str, *, is_long: bool = False) -> str:
    return f"<section{' class=long' if is_long else ''}><h2>{escape(title)}</h2>{inner}</section>"


def _outcome(one: SimulationOutcome) -> str:
    inner = f"<p>{escape(outcome_in_words(one.total))}.</p>"
    inner += _table("Waits for workers", QUEUE, map(queue_row, one.queues))
    if one.limits:
        inner += _table("Waits for places", LIMIT, map(limit_row, one.limits[:_MOST_ROWS]))
        if len(one.limits) > _MOST_ROWS:
            inner += f"<p>and {len(one.limits) - _MOST_ROWS} more.</p>"
    if rows := behind_rows(one):
        inner += _table("The longest periods during which the line was never empty", BEHIND, rows)
    if told := schedule_rows(one):
        inner += _table("Schedules with more than successful runs", SCHEDULE, told[:_MOST_ROWS])
        if len(told) > _MOST_ROWS:
            inner += f"<p>and {len(told) - _MOST_ROWS} more.</p>"
    return _section("Outcome", inner, is_long=True)


def _table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(shown(one))}</td>' for one in row)}</tr>" for row in rows)
    named = escape(caption, quote=True)
    return (
        f'<div class="wide" role="region" aria-label="{named}" tabindex="0"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _chart(found: Simulation) -> str:
    """Return a chart with a bar for the fires of each day. The highest days and clock changes are marked."""
    days = found.days
    most = max(day.fires for day in days) or 1
    are_marked = sum(day.fires == most for day in days) <= _FEW
    step = _WIDTH / len(days)
    bars = []
    for number, day in enumerate(days):
        height = ceil(day.fires * _HEIGHT / most)
        high = ' class="high"' if day.fires == most and are_marked else ""
        label = f"{day.start:%a %d %b %Y}: {day.fires:,} fires, at most {day.peak_fires:,} a minute"
        width = max(step * 0.85, 0.6)
        bars.append(
            f'<rect{high} x="{number * step:.2f}" y="{_HEIGHT - height}" width="{width:.2f}" height="{height}">'
            f"<title>{label}</title></rect>"
        )
    span = (found.end - found.start).total_seconds()
    for night in found.nights:
        x = (night.at - found.start).total_seconds() / span * _WIDTH
        bars.append(
            f'<line class="clocks" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{_HEIGHT}"><title>clocks change</title></line>'
        )
    told = f"Fires of each of {len(days)} days, at most {most:,}, at least {min(day.fires for day in days):,}"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{told}">{"".join(bars)}'
        f'<line x1="0" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/></svg>'
        f'<div class="ends"><span>{found.start:%d %b %Y}</span><span>at most {most:,} a day</span>'
        f"<span>{found.end:%d %b %Y}</span></div>"
    )
