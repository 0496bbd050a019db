"""Draw what policies do over time: `python docs/lanes.py` writes docs/img/lanes-*.svg.

One lane a policy: ticks are occurrences, bars are runs. `tests/contract/test_docs.py` compares the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent / "img"
_LABEL, _UNIT, _LANE, _TOP = 130, 44, 54, 34
_FILLS = {
    "run": ("#c9e4d0", "#2c6e49"),
    "beside": ("#c9e4d0", "#2c6e49"),
    "failed": ("#f6d0d0", "#a4262c"),
    "wait": ("#fff2cc", "#8a6d1a"),
    "cancelled": ("#e3e3ea", "#667"),
}
_FONT = 'font-family="system-ui, sans-serif"'


@dataclass(frozen=True)
class Bar:
    """Something that takes time, in units of the axis."""

    start: float
    end: float
    kind: str = "run"
    text: str = ""


@dataclass(frozen=True)
class Lane:
    """What happens under one policy."""

    name: str
    bars: Sequence[Bar]
    ticks: Sequence[float] = (0, 2, 4, 6, 8)
    """Where occurrences are."""
    crossed: Sequence[float] = ()
    """Occurrences for which nothing starts."""


@dataclass(frozen=True)
class Picture:
    """Lanes over one axis."""

    title: str
    lanes: Sequence[Lane]
    length: float = 10
    shaded: tuple[float, float, str] | None = None
    """A time in which something is otherwise, and what."""


PICTURES: Mapping[str, Picture] = {
    "lanes-overlap": Picture(
        "A fire every two minutes, and a first run that takes five",
        [
            Lane("skip", [Bar(0, 5, text="1"), Bar(6, 7, text="4"), Bar(8, 9, text="5")], crossed=[2, 4]),
            Lane(
                "buffer_one",
                [
                    Bar(0, 5, text="1"),
                    Bar(2, 5, "wait", "2 waits"),
                    Bar(5, 6, text="2"),
                    Bar(6, 7, text="4"),
                    Bar(8, 9, text="5"),
                ],
                crossed=[4],
            ),
            Lane(
                "buffer_all",
                [
                    Bar(0, 5, text="1"),
                    Bar(2, 5, "wait", "2 and 3 wait"),
                    Bar(5, 6, text="2"),
                    Bar(6, 7, text="3"),
                    Bar(7, 8, text="4"),
                    Bar(8, 9, text="5"),
                ],
            ),
            Lane(
                "allow_all",
                [
                    Bar(0, 5, text="1"),
                    Bar(2, 3, "beside", "2"),
                    Bar(4, 5, "beside", "3"),
                    Bar(6, 7, text="4"),
                    Bar(8, 9, text="5"),
                ],
            ),
            Lane(
                "cancel_other",
                [
                    Bar(0, 2.3, "cancelled", "1"),
                    Bar(2.3, 3.3, text="2"),
                    Bar(4, 5, text="3"),
                    Bar(6, 7, text="4"),
                    Bar(8, 9, text="5"),
                ],
            ),
        ],
    ),
    "lanes-missed": Picture(
        "No worker lives from minute 3 to minute 9; a fire every two minutes",
        [
            Lane(
                "fire_once",
                [Bar(0, 0.7), Bar(2, 2.7), Bar(9, 9.7, text="4"), Bar(10, 10.7)],
                (0, 2, 4, 6, 8, 10),
                [6, 8],
            ),
            Lane("skip", [Bar(0, 0.7), Bar(2, 2.7), Bar(9, 9.7, text="8"), Bar(10, 10.7)], (0, 2, 4, 6, 8, 10), [4, 6]),
            Lane(
                "all",
                [
                    Bar(0, 0.7),
                    Bar(2, 2.7),
                    Bar(9, 9.7, text="4"),
                    Bar(9.75, 10.45, text="6"),
                    Bar(10.5, 11.2, text="8"),
                    Bar(11.25, 11.95, text="10"),
                ],
                (0, 2, 4, 6, 8, 10),
            ),
        ],
        12,
        (3, 9, "nothing lives"),
    ),
    "lanes-retry": Picture(
        "retry={'max_retries': 3, 'base': '1m', 'factor': 2}: delays of 1, 2 and 4 minutes",
        [
            Lane(
                "one run",
                [
                    Bar(0, 0.7, "failed", "1"),
                    Bar(0.7, 1.7, "wait"),
                    Bar(1.7, 2.4, "failed", "2"),
                    Bar(2.4, 4.4, "wait"),
                    Bar(4.4, 5.1, "failed", "3"),
                    Bar(5.1, 9.1, "wait"),
                    Bar(9.1, 9.8, text="4"),
                ],
                (0,),
            ),
        ],
    ),
    "lanes-on-resume": Picture(
        "Paused at minute 3, resumed at minute 7; a fire every two minutes",
        [
            Lane("next", [Bar(0, 0.7), Bar(2, 2.7), Bar(8, 8.7), Bar(10, 10.7)], (0, 2, 4, 6, 8, 10), [4, 6]),
            Lane(
                "once",
                [Bar(0, 0.7), Bar(2, 2.7), Bar(7, 7.7, text="4"), Bar(8, 8.7), Bar(10, 10.7)],
                (0, 2, 4, 6, 8, 10),
                [6],
            ),
            Lane("from_now", [Bar(0, 0.7), Bar(2, 2.7), Bar(9, 9.7), Bar(11, 11.7)], (0, 2, 4, 6, 9, 11), [4, 6]),
        ],
        12,
        (3, 7, "paused"),
    ),
}


def draw(picture: Picture) -> str:
    """Return a picture as SVG."""
    width = _LABEL + picture.length * _UNIT + 20
    height = _TOP + len(picture.lanes) * _LANE + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
        f"<title>{escape(picture.title)}</title>",
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#fff"/>',
        f'<text x="12" y="20" {_FONT} font-size="13" fill="#334">{escape(picture.title)}</text>',
        *_shade(picture, height),
    ]
    for number, lane in enumerate(picture.lanes):
        lines += _lane(lane, _TOP + number * _LANE, picture.length)
    return "\n".join([*lines, "</svg>", ""])


def _shade(picture: Picture, height: int) -> Iterator[str]:
    if picture.shaded is not None:
        start, end, text = picture.shaded
        x, across = _LABEL + start * _UNIT, (end - start) * _UNIT
        yield f'<rect x="{x:.1f}" y="{_TOP - 6}" width="{across:.1f}" height="{height - _TOP}" fill="#f3f4f6"/>'
        style = f'text-anchor="middle" {_FONT} font-size="11"'
        yield f'<text x="{x + across / 2:.1f}" y="{_TOP + 5}" {style} fill="#667">{escape(text)}</text>'


def _lane(lane: Lane, top: float, length: float) -> Iterator[str]:
    axis = top + 42
    yield f'<text x="12" y="{top + 30:.1f}" {_FONT} font-size="13" fill="#112">{escape(lane.name)}</text>'
    right = _LABEL + length * _UNIT
    yield f'<line x1="{_LABEL}" y1="{axis:.1f}" x2="{right:.1f}" y2="{axis:.1f}" stroke="#99a"/>'
    for bar in lane.bars:
        yield from _bar(bar, top)
    for tick in lane.ticks:
        x = _LABEL + tick * _UNIT
        colour = "#a4262c" if tick in lane.crossed else "#334"
        ends = f'x1="{x:.1f}" y1="{axis - 5:.1f}" x2="{x:.1f}" y2="{axis + 5:.1f}"'
        yield f'<line {ends} stroke="{colour}" stroke-width="2"/>'
        if tick in lane.crossed:
            cross = f"M{x - 4:.1f} {axis - 4:.1f} l8 8 m0 -8 l-8 8"
            yield f'<path d="{cross}" stroke="{colour}" stroke-width="2" fill="none"/>'


def _bar(bar: Bar, top: float) -> Iterator[str]:
    fill, edge = _FILLS[bar.kind]
    is_waiting = bar.kind == "wait"
    y, height = {"wait": (top + 12, 9), "beside": (top + 5, 15)}.get(bar.kind, (top + 22, 16))
    x, width = _LABEL + bar.start * _UNIT, (bar.end - bar.start) * _UNIT
    yield (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="3" fill="{fill}" stroke="{edge}"/>'
    )
    if bar.text:
        size = 8 if is_waiting else 11
        place = f'x="{x + width / 2:.1f}" y="{y + height / 2 + size * 0.36:.1f}"'
        yield f'<text {place} text-anchor="middle" {_FONT} font-size="{size}" fill="#112">{escape(bar.text)}</text>'


def main() -> None:
    """Write every picture."""
    for name, picture in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(draw(picture), encoding="utf-8")


if __name__ == "__main__":
    main()
