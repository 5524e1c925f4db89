"""One self-contained HTML page of sections with text, tables and pictures; it needs no script and no network."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, LIGHT_TEXT, DARK_TEXT = "#0b0c0d", "#1d2228", "#e4e7eb"
"""Color of text in figures while they are drawn, and what it becomes on a light and on a dark background."""
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "tikas",  # the same ids in the file every time
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 72,  # a point of text is a pixel of the picture
    "savefig.dpi": 200,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}
POINTS_PER_INCH = 72


@dataclass(frozen=True)
class Text:
    """A paragraph; `code` is shown as it was typed."""

    kind: ClassVar[str] = "text"
    text: str
    code: bool = False


@dataclass(frozen=True)
class Listing:
    """A list of lines."""

    kind: ClassVar[str] = "listing"
    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table. The first column names the rows; columns after the first `text_columns` are aligned to the right."""

    kind: ClassVar[str] = "table"
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1


@dataclass(frozen=True)
class Facts:
    """Values by their names."""

    kind: ClassVar[str] = "facts"
    values: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Picture:
    """An image as a data URL, `width` and `height` in pixels; `pixels` enlarges it without smoothing."""

    source: str
    alt: str
    caption: str
    width: int
    height: int
    pixels: bool = False


@dataclass(frozen=True)
class Pictures:
    """Pictures beside each other, as many as fit; small ones are thumbnails."""

    kind: ClassVar[str] = "pictures"
    pictures: Sequence[Picture]
    small: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    title: str
    blocks: Sequence[Text | Listing | Table | Facts | Pictures]

    @property
    def anchor(self) -> str:
        """The title as the name of a link."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Page:
    """A page: a title, the verdict in one or two sentences, a few facts, and sections."""

    title: str
    verdict: Sequence[str]
    facts: Facts
    sections: Sequence[Section]
    footer: str = field(default="")


def render(page: Page) -> str:
    """Return a page as HTML; all text is escaped.

    Examples
    --------
    >>> html = render(Page("A < B", ["Right."], Facts([]), [Section("Why", [Text("Because.")])]))
    >>> "<h1>A &lt; B</h1>" in html, '<section aria-labelledby="why">' in html
    (True, True)
    """
    return _templates().get_template("page.html").render(page=page)


def write(path: str | Path, page: Page) -> Path:
    """Write a page into a file."""
    path = Path(path)
    path.write_text(render(page), encoding="utf-8")
    return path


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("tikas.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def template(name: str, **values: Any) -> str:
    """Return a template of this package, filled in."""
    return _templates().get_template(name).render(**values)


# Pictures


def draw(
    draw_on: Callable[[Axes], None], alt: str, caption: str = "", size: tuple[float, float] = (4.8, 3.4)
) -> Picture:
    """Return a picture that a function draws on axes; `size` in inches."""
    return draw_figure(lambda figure: draw_on(figure.subplots()), alt, caption, size)


def draw_figure(
    draw_on: Callable[[Figure], None], alt: str, caption: str = "", size: tuple[float, float] = (4.8, 3.4)
) -> Picture:
    """Return a picture that a function draws on a figure, without pyplot's global figures."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("A report needs matplotlib: pip install 'tikas[plots]'.") from error
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw_on(figure)
        text = StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    width, height = (round(POINTS_PER_INCH * side) for side in size)
    return Picture(_data_url("image/svg+xml", _themed(text.getvalue()).encode()), alt, caption, width, height)


def _themed(svg: str) -> str:
    """Return a figure whose text and lines follow the color scheme of the page that shows it."""
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    style = f"<style>svg{{color:{LIGHT_TEXT}}}@media (prefers-color-scheme:dark){{svg{{color:{DARK_TEXT}}}}}</style>"
    end = svg.index(">") + 1
    return svg[:end] + style + svg[end:]


def image(pixels: NDArray[Any], alt: str, caption: str, width: int = 96) -> Picture:
    """Return a picture of pixels ``(height, width)`` or ``(height, width, 3)`` in [0, 1], shown `width` pixels wide."""
    from PIL import Image  # matplotlib needs it

    payload = BytesIO()
    Image.fromarray(np.rint(255 * pixels).astype(np.uint8)).save(payload, "PNG", optimize=True)
    height = round(width * pixels.shape[0] / pixels.shape[1])
    return Picture(_data_url("image/png", payload.getvalue()), alt, caption, width, height, pixels=True)


def _data_url(media_type: str, payload: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(payload).decode()}"
