"""A picture of exchanges, queues and arrows as SVG, with a background of its own: readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

Point = tuple[float, float]

HEIGHT = 30  # of a box

_STYLE = """
  text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #1f2328 }
  .page { fill: #ffffff; stroke: #d1d9e0 }
  .exchange { fill: #ddf4ff; stroke: #0969da }
  .queue { fill: #fff8c5; stroke: #9a6700 }
  .other { fill: #f6f8fa; stroke: #59636e }
  .line { fill: none; stroke: #59636e }
  .note { fill: #59636e }
  .code { font-family: ui-monospace, monospace; font-size: 11px }
  .head { fill: #59636e }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .page { fill: #0d1117; stroke: #3d444d }
    .exchange { fill: #0c2d6b; stroke: #4493f8 }
    .queue { fill: #4b2900; stroke: #d29922 }
    .other { fill: #212830; stroke: #9198a1 }
    .line { stroke: #9198a1 }
    .note, .head { fill: #9198a1 }
  }
"""


class Box:
    """A named box, to which arrows may go."""

    def __init__(self, x: float, y: float, width: float) -> None:
        self.x, self.y, self.width = x, y, width

    @property
    def left(self) -> Point:
        return self.x, self.y + HEIGHT / 2

    @property
    def right(self) -> Point:
        return self.x + self.width, self.y + HEIGHT / 2

    @property
    def top(self) -> Point:
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> Point:
        return self.x + self.width / 2, self.y + HEIGHT


class Picture:
    """Elements in the order in which they are drawn."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._boxes: list[str] = []

    def box(self, kind: str, name: str, x: float, y: float, width: float) -> Box:
        """Add an `exchange` (round), a `queue` (with a bar at its end) or something `other`."""
        radius = HEIGHT / 2 if kind == "exchange" else 4
        shape = f'class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{HEIGHT}" rx="{radius:g}"'
        self._boxes.append(f"<rect {shape}/>")
        if kind == "queue":
            self._boxes.append(f'<path class="queue" d="M{x + width - 8:g} {y:g}v{HEIGHT}"/>')
        middle = x + width / 2, y + HEIGHT / 2 + 4
        self._boxes.append(self._text(*middle, name, anchor="middle"))
        return Box(x, y, width)

    def bar(self, kind: str, x: float, y: float, width: float, height: float = 20) -> None:
        """Add a bar whose length is a figure."""
        self._boxes.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:g}" rx="2"/>')

    def arrow(self, points: Sequence[Point], dashed: bool = False) -> None:
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._lines.append(f'<path class="line" d="{path}"{dash} marker-end="url(#head)"/>')

    def note(self, x: float, y: float, text: str, code: bool = False, anchor: str = "start") -> None:
        self._boxes.append(self._text(x, y, text, "note code" if code else "note", anchor))

    def _text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
        attributes = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"' + (f' class="{kind}"' if kind else "")
        return f"<text {attributes}>{escape(text)}</text>"

    def svg(self, title: str, width: float, height: float) -> str:
        return "\n".join([*self._head(title, width, height), *self._lines, *self._boxes, "</svg>", ""])

    def _head(self, title: str, width: float, height: float) -> Iterator[str]:
        size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
        yield f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>'
        yield f"<title>{escape(title)}</title>"
        yield f"<style>{_STYLE}</style>"
        marker = 'id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"'
        yield f'<defs><marker {marker}><path class="head" d="M0 0 8 4 0 8z"/></marker></defs>'
        yield f'<rect class="page" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="6"/>'
