"""What a reader gets: figures, the table of results and the HTML report."""

from netfleet.report.html import write_report
from netfleet.report.plots import draw_curves, draw_labels, draw_overview
from netfleet.report.table import print_summary, summary

__all__ = ["draw_curves", "draw_labels", "draw_overview", "print_summary", "summary", "write_report"]
