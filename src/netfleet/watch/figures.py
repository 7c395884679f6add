"""The page's figures: Bokeh's description of them without data, which the page's script fills."""

from collections.abc import Mapping
from typing import Any

from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, HoverTool, LinearColorMapper
from bokeh.models.annotations import ColorBar
from bokeh.palettes import Cividis256
from bokeh.plotting import figure

from netfleet.watch.news import COLUMNS, LOGARITHMIC

_TOOLS = "pan,wheel_zoom,box_zoom,reset"


def figures() -> Mapping[str, Any]:
    """The figures by name, as the script of the page embeds them."""
    return {"graph": json_item(_graph()), **{name: json_item(_curves(name)) for name in COLUMNS}}


def _curves(name: str) -> figure:
    """One line for each run or site."""
    scale = "log" if name in LOGARITHMIC else "linear"
    drawn = _figure(height=260, y_axis_type=scale, x_axis_label="round", name=f"figure {name}")
    source = ColumnDataSource({"xs": [], "ys": [], "color": [], "label": []}, name=f"data {name}")
    lines = drawn.multi_line("xs", "ys", color="color", line_width=2, source=source)
    ends = ColumnDataSource({"x": [], "y": [], "color": [], "label": []}, name=f"ends {name}")
    drawn.scatter("x", "y", color="color", size=6, source=ends)  # the newest point; a run with one has no line
    tips = [("", "@label"), ("x", "$snap_x{0,0.###}"), ("y", "$snap_y{0.000000}")]
    drawn.add_tools(HoverTool(tooltips=tips, line_policy="nearest", renderers=[lines]))
    marker = ColumnDataSource({"x": []}, name=f"marker {name}")
    drawn.vspan("x", source=marker, line_dash="dashed", line_width=1, line_color="#888888")
    return drawn


def _graph() -> figure:
    drawn = _figure(height=480, match_aspect=True, name="figure graph")
    drawn.axis.visible = drawn.grid.visible = False
    links = ColumnDataSource(
        {key: [] for key in ("x0", "y0", "x1", "y1", "color", "alpha", "width", "label")}, name="links"
    )
    lines = drawn.segment("x0", "y0", "x1", "y1", color="color", alpha="alpha", line_width="width", source=links)
    names = ("x", "y", "size", "value", "shown", "line", "label")
    nodes = ColumnDataSource({key: [] for key in names}, name="nodes")
    mapper = LinearColorMapper(palette=Cividis256, low=0, high=1, nan_color="#8a93a0", name="mapper")
    fill: Any = {"field": "value", "transform": mapper}
    dots = drawn.scatter("x", "y", size="size", fill_color=fill, line_color="line", line_width=2, source=nodes)
    drawn.add_layout(ColorBar(color_mapper=mapper, background_fill_alpha=0, name="bar"), "right")
    drawn.add_tools(HoverTool(tooltips=[("", "@label"), ("", "@shown")], renderers=[dots]))
    drawn.add_tools(HoverTool(tooltips=[("", "@label")], renderers=[lines]))
    return drawn


def _figure(**settings: Any) -> figure:
    drawn = figure(sizing_mode="stretch_width", tools=_TOOLS, active_scroll=None, toolbar_location="above", **settings)
    drawn.background_fill_alpha = drawn.border_fill_alpha = 0
    drawn.toolbar.logo, drawn.toolbar.autohide = None, True
    return drawn
