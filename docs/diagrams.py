"""Draw the state machines of docs/architecture.md: `python docs/diagrams.py` writes docs/img/*.svg.

The pictures are plain SVG without scripts, fonts or anything of another host. The same input gives the same bytes, and
`tests/contract/test_docs.py` compares both the files and the names of the states with the code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent / "img"

_COLUMN, _ROW = 132, 74
_MARGIN = 40
_HALF_WIDTH, _HALF_HEIGHT = 50, 17
_TEXT = 'font-family="system-ui, sans-serif" text-anchor="middle"'
_ARROW = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z" fill="#556"/></marker></defs>'
)
_FILLS = {"start": "#334", "open": "#e8f0fe", "end": "#eceff1"}


@dataclass(frozen=True)
class State:
    """A state, at a place on a grid of columns and rows."""

    column: float
    row: float
    kind: str = "open"
    """`start` is a dot, `open` may still change, `end` does not."""


@dataclass(frozen=True)
class Arrow:
    """A transition; `source` and `target` are names of states, or `frame`."""

    source: str
    target: str
    label: str = ""
    """What causes it; `|` begins a new line."""
    shift: float = 0
    """Pixels to the right of the way, for two arrows between the same states."""
    at: float = 0.5
    """Where on the way the label stands, from 0 to 1."""


@dataclass(frozen=True)
class Diagram:
    """One state machine."""

    title: str
    states: Mapping[str, State]
    arrows: Sequence[Arrow]
    framed: Sequence[str] = field(default=())
    """States that share a frame: an arrow of the frame is one of each of them."""


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    @property
    def center(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def edge_towards(self, x: float, y: float) -> tuple[float, float]:
        """Return where the line from the center to a point leaves the box."""
        center_x, center_y = self.center
        across, down = x - center_x, y - center_y
        scale_x = (self.right - center_x) / abs(across) if across else math.inf
        scale_y = (self.bottom - center_y) / abs(down) if down else math.inf
        scale = min(scale_x, scale_y)
        return center_x + across * scale, center_y + down * scale


DIAGRAMS = {
    "schedule": Diagram(
        "The states of a schedule",
        {
            "start": State(0, 0, "start"),
            "active": State(1.2, 0),
            "paused": State(1.2, 2.4),
            "done": State(4, 0, "end"),
            "dead": State(4, 2.4, "end"),
            "deleted": State(6.2, 1.2, "end"),
        },
        (
            Arrow("start", "active", "create", at=0.4),
            Arrow("active", "paused", "pause", shift=30, at=0.4),
            Arrow("paused", "active", "resume", shift=30, at=0.4),
            Arrow("frame", "done", "nothing more to start:|spec over, max_runs", shift=-14),
            Arrow("done", "active", "restart", shift=-16),
            Arrow("frame", "dead", "a run failed for good,|and retry.then says so"),
            Arrow("dead", "active", "restart", at=0.36),
            Arrow("frame", "deleted", "delete", at=0.55),
            Arrow("done", "deleted", "delete"),
            Arrow("dead", "deleted", "delete"),
        ),
        framed=("active", "paused"),
    ),
    "run": Diagram(
        "The states of a run",
        {
            "start": State(0, 1.2, "start"),
            "buffered": State(1.4, 0),
            "pending": State(1.4, 2.4),
            "running": State(3.6, 2.4),
            "retrying": State(2.5, 4),
            "succeeded": State(6.6, -0.2, "end"),
            "failed": State(6.6, 1, "end"),
            "lost": State(6.6, 2.2, "end"),
            "cancelled": State(6.6, 3.4, "end"),
            "terminated": State(6.6, 4.4, "end"),
        },
        (
            Arrow("start", "buffered", "must wait"),
            Arrow("start", "pending", "may start"),
            Arrow("buffered", "pending", "drained"),
            Arrow("pending", "running", "claimed"),
            Arrow("running", "retrying", "failed or lost,|attempts left"),
            Arrow("retrying", "pending", "its retry link|fires"),
            Arrow("running", "succeeded", "the workflow returned", at=0.62),
            Arrow("running", "failed", "failed, no attempt left", at=0.66),
            Arrow("running", "lost", "vanished, no attempt left", at=0.62),
            Arrow("frame", "cancelled", "cancel, cancel_other,|the schedule ended", at=0.45),
            Arrow("frame", "terminated", "terminate,|terminate_other", at=0.45),
        ),
        framed=("buffered", "pending", "running", "retrying"),
    ),
    "target": Diagram(
        "The states of a target",
        {
            "start": State(0, 1, "start"),
            "waiting": State(1.2, 1),
            "pending": State(2.9, 1),
            "running": State(4.6, 1),
            "retrying": State(4.6, 2.6),
            "blocked": State(2.9, 2.6),
            "succeeded": State(6.8, 0, "end"),
            "ignored": State(6.8, 1, "end"),
            "failed": State(6.8, 2, "end"),
            "lost": State(6.8, 3, "end"),
            "cancelled": State(1.2, 3.8, "end"),
        },
        (
            Arrow("start", "waiting"),
            Arrow("waiting", "pending", "its chunk|is queued"),
            Arrow("pending", "running", "claimed"),
            Arrow("running", "succeeded", "handled"),
            Arrow("running", "ignored", "nothing to do", at=0.5),
            Arrow("running", "failed", "no attempt left", at=0.6),
            Arrow("running", "lost", "vanished, no attempt left", at=0.75),
            Arrow("running", "retrying", "failed or|vanished", at=0.5),
            Arrow("retrying", "pending", "due", at=0.4),
            Arrow("running", "blocked", "no worker's|code", at=0.7),
            Arrow("blocked", "pending", "offered", at=0.5),
            Arrow("waiting", "cancelled", "its run ended|without success", at=0.5),
        ),
    ),
    "link": Diagram(
        "The states of a link",
        {
            "start": State(0, 1.3, "start"),
            "in the set": State(1.7, 0),
            "on the list": State(1.7, 2.6),
            "leased": State(4.4, 0),
            "started": State(4.4, 2.6),
            "gone": State(6.8, 1.3, "end"),
        },
        (
            Arrow("start", "in the set", "armed,|due later"),
            Arrow("start", "on the list", "armed,|late"),
            Arrow("in the set", "leased", "due: a dispatcher takes it", shift=-16),
            Arrow("leased", "in the set", "early, locked, lease over", shift=-16),
            Arrow("in the set", "on the list", "RQ's scheduler|promotes it"),
            Arrow("on the list", "leased", "a dispatcher takes it", at=0.26),
            Arrow("on the list", "started", "rq worker takes it"),
            Arrow("started", "in the set", "early, locked", at=0.26),
            Arrow("leased", "gone", "fired or stale"),
            Arrow("started", "gone", "fired or stale"),
        ),
    ),
}


def draw(diagram: Diagram) -> str:
    """Return the diagram as SVG text."""
    boxes = {name: _box_of(state) for name, state in diagram.states.items()}
    if diagram.framed:
        boxes["frame"] = _around([boxes[name] for name in diagram.framed])
    width = max(box.right for box in boxes.values()) + _MARGIN
    height = max(box.bottom for box in boxes.values()) + _MARGIN
    top = min(box.top for box in boxes.values()) - _MARGIN
    view = f"0 {top:.0f} {width:.0f} {height - top:.0f}"
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view}" width="{width:.0f}" role="img">',
            f"<title>{escape(diagram.title)}</title>",
            _ARROW,
            f'<rect x="0" y="{top:.0f}" width="100%" height="100%" fill="#fff"/>',
            *_frame(boxes.get("frame")),
            *(line for arrow in diagram.arrows for line in _arrow(arrow, boxes)),
            *(line for name, state in diagram.states.items() for line in _state(name, state.kind, boxes[name])),
            *(line for arrow in diagram.arrows for line in _label(arrow, boxes)),
            "</svg>",
            "",
        )
    )


def _box_of(state: State) -> _Box:
    x, y = _MARGIN + state.column * _COLUMN, _MARGIN + state.row * _ROW
    wide, high = (6, 6) if state.kind == "start" else (_HALF_WIDTH, _HALF_HEIGHT)
    return _Box(x - wide, y - high, x + wide, y + high)


def _around(boxes: Sequence[_Box]) -> _Box:
    return _Box(
        min(box.left for box in boxes) - 16,
        min(box.top for box in boxes) - 16,
        max(box.right for box in boxes) + 16,
        max(box.bottom for box in boxes) + 16,
    )


def _ends(arrow: Arrow, boxes: Mapping[str, _Box]) -> tuple[float, float, float, float]:
    """Return both ends: level or upright where the boxes face each other, else along the line of their centers."""
    source, target = boxes[arrow.source], boxes[arrow.target]
    from_x, from_y = source.center
    to_x, to_y = target.center
    if arrow.source == "frame":
        from_y = min(max(to_y, source.top), source.bottom)
        start = source.right, from_y
    else:
        start = source.edge_towards(to_x, to_y)
    end = target.edge_towards(from_x if arrow.source != "frame" else start[0], from_y)
    across, down = end[0] - start[0], end[1] - start[1]
    length = math.hypot(across, down)
    off_x, off_y = -down / length * arrow.shift, across / length * arrow.shift
    return start[0] + off_x, start[1] + off_y, end[0] + off_x, end[1] + off_y


def _arrow(arrow: Arrow, boxes: Mapping[str, _Box]) -> Iterator[str]:
    x1, y1, x2, y2 = _ends(arrow, boxes)
    line = f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    yield f'{line} stroke="#556" stroke-width="1.3" marker-end="url(#head)"/>'


def _label(arrow: Arrow, boxes: Mapping[str, _Box]) -> Iterator[str]:
    if not arrow.label:
        return
    x1, y1, x2, y2 = _ends(arrow, boxes)
    lines = arrow.label.split("|")
    x, y = x1 + (x2 - x1) * arrow.at, y1 + (y2 - y1) * arrow.at - (len(lines) - 1) * 6.5
    for index, text in enumerate(lines):
        style = 'font-size="11.5" fill="#223" stroke="#fff" stroke-width="6" paint-order="stroke"'
        yield f'<text x="{x:.1f}" y="{y + 4 + index * 13:.1f}" {_TEXT} {style}>{escape(text)}</text>'


def _frame(box: _Box | None) -> Iterator[str]:
    if box is not None:
        place = f'x="{box.left:.1f}" y="{box.top:.1f}" width="{box.right - box.left:.1f}"'
        yield f'<rect {place} height="{box.bottom - box.top:.1f}" rx="12" fill="none" stroke="#99a" {_DASHES}/>'


_DASHES = 'stroke-dasharray="5 4"'


def _state(name: str, kind: str, box: _Box) -> Iterator[str]:
    x, y = box.center
    if kind == "start":
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{_FILLS[kind]}"/>'
        return
    place = f'x="{box.left:.1f}" y="{box.top:.1f}" width="{2 * _HALF_WIDTH}" height="{2 * _HALF_HEIGHT}"'
    yield f'<rect {place} rx="8" fill="{_FILLS[kind]}" stroke="#334"/>'
    yield f'<text x="{x:.1f}" y="{y + 4.5:.1f}" {_TEXT} font-size="13" fill="#112">{escape(name)}</text>'


def main() -> None:
    """Write every picture."""
    IMAGES.mkdir(exist_ok=True)
    for name, diagram in DIAGRAMS.items():
        (IMAGES / f"{name}.svg").write_text(draw(diagram), encoding="utf-8")


if __name__ == "__main__":
    main()
