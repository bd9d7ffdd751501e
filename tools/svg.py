"""A picture of boxes, arrows and bars as SVG, with a background of its own: readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Point = tuple[float, float]

_LINE, _TOP = 18, 36  # the height of a line of text, and of the title

_STYLE = """
  text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 14px; font-weight: 600 }
  .page { fill: #ffffff; stroke: #d1d9e0 }
  .exchange { fill: #ddf4ff; stroke: #0969da }
  .queue { fill: #fff8c5; stroke: #9a6700 }
  .other { fill: #f6f8fa; stroke: #59636e }
  .frame { fill: none; stroke: #59636e; stroke-dasharray: 4 3 }
  .line { fill: none; stroke: #59636e }
  .thin { stroke-opacity: 0.4 }
  .note, .head { fill: #59636e }
  .code { font-family: ui-monospace, monospace; font-size: 11px }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .page { fill: #0d1117; stroke: #3d444d }
    .exchange { fill: #0c2d6b; stroke: #4493f8 }
    .queue { fill: #4b2900; stroke: #d29922 }
    .other { fill: #212830; stroke: #9198a1 }
    .frame, .line { stroke: #9198a1 }
    .note, .head { fill: #9198a1 }
  }
"""


class Box:
    """A rectangle, to which arrows may go."""

    def __init__(self, x: float, y: float, width: float, height: float) -> None:
        self.x, self.y, self.width, self.height = x, y, width, height
        self.middle = x + width / 2, y + height / 2

    def way(self, other: Box) -> list[Point]:
        """Return the points of an arrow: straight where both are side by side, otherwise along, then up or down."""
        (x, y), (to_x, to_y) = self.middle, other.middle
        if abs(x - to_x) < (self.width + other.width) / 2:
            x = to_x if other.width < self.width else x
            return [(x, self.y + self.height), (x, other.y)] if y < to_y else [(x, self.y), (x, other.y + other.height)]
        start, end = (self.x + self.width, other.x) if x < to_x else (self.x, other.x + other.width)
        if abs(y - to_y) < (self.height + other.height) / 2:
            y = to_y if other.height < self.height else y
            return [(start, y), (end, y)]
        return [(start, y), (to_x, y), (to_x, other.y if y < to_y else other.y + other.height)]


class Picture:
    """Elements in the order in which they are drawn."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._boxes: list[str] = []

    def rect(self, kind: str, x: float, y: float, width: float, height: float, radius: float = 2) -> None:
        shape = f'x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:g}" rx="{radius:g}"'
        self._boxes.append(f'<rect class="{kind}" {shape}/>')

    def box(self, kind: str, text: str, x: float, y: float, width: float) -> Box:
        """Add an `exchange` (round), a `queue` or something `other`, as high as the lines of its text, or a `frame`."""
        lines = text.split("\n")
        box = Box(x, y, width, _LINE * len(lines) + 12)
        self.rect(kind, x, y, width, box.height, box.height / 2 if kind == "exchange" else 4)
        for number, line in enumerate(lines):
            where = box.middle[0], y + _LINE * (number + 1) + 1
            self.note(*where, line, anchor="middle", kind="note" if number else "name")
        return box

    def arrow(self, points: Sequence[Point], kind: str = 'line" marker-end="url(#head)') -> None:
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        self._lines.append(f'<path d="{path}" class="{kind}"/>')

    def note(self, x: float, y: float, text: str, kind: str = "note", anchor: str = "start") -> None:
        attributes = f'class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
        self._boxes.append(f"<text {attributes}>{escape(text)}</text>")

    def svg(self, title: str, width: float, height: float) -> str:
        """Return all of it below its title."""
        height += _TOP
        marker = 'id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:g} {height:g}"'
            f' width="{width:g}" height="{height:g}">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<defs><marker {marker}><path class="head" d="M0 0 8 4 0 8z"/></marker></defs>',
            f'<rect class="page" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="6"/>',
            f'<text class="title" x="20" y="26">{escape(title)}</text>',
            f'<g transform="translate(0 {_TOP})">',
        ]
        return "\n".join([*lines, *self._lines, *self._boxes, "</g>", "</svg>", ""])
