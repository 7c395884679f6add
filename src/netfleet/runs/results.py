"""The runs of an experiment as Python gets them: a list of histories that shows its table, and makes figures of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, overload

from netfleet.runs.build import Settings
from netfleet.runs.config import Experiment
from netfleet.runs.history import At, History, save_figure, to_dataframe

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from netfleet.report.comparison import Comparison


class Results(Sequence[History]):
    """The histories of an experiment, for each seed one per method; in a terminal or a notebook it shows their table.

    A run that diverged is among them and marked: `history.diverged` says why.
    """

    def __init__(self, histories: Sequence[History], experiment: Experiment, settings: Settings) -> None:
        self.histories, self.experiment, self.settings = list(histories), experiment, settings

    def __len__(self) -> int:
        return len(self.histories)

    def __iter__(self) -> Iterator[History]:
        return iter(self.histories)

    @overload
    def __getitem__(self, place: int) -> History: ...
    @overload
    def __getitem__(self, place: slice) -> list[History]: ...
    def __getitem__(self, place: int | slice) -> History | list[History]:
        return self.histories[place]

    def table(self) -> str:
        """The table that `netfleet run` prints: a row per method, means over seeds."""
        from netfleet.report.export import as_text
        from netfleet.report.table import print_summary

        return as_text(partial(print_summary, self.histories))

    __repr__ = table

    def _repr_html_(self) -> str:
        from netfleet.report.table import summary_html

        return summary_html(self.histories)

    def to_dataframe(self) -> pandas.DataFrame:
        """A tidy frame with a row per evaluation of every run (needs `pip install netfleet[pandas]`)."""
        return to_dataframe(self.histories)

    def plot(self, path: str | Path | None = None) -> Figure:
        """The curves of all methods, means and ranges over seeds; saved where a path is given."""
        from netfleet.report import draw_overview

        return save_figure(draw_overview(self.histories), path)

    def compare(
        self, column: str | None = None, *, at: At = "last", to: str | None = None, target: float | None = None
    ) -> Comparison:
        """Paired differences over seeds to the best method (or the one called `to`), as `netfleet compare` has them.

        They are of the accuracy, or the loss where there is none, unless a `column` is given; of the "last" evaluation,
        the "best", or that after round `at`. With a `target` it also counts the rounds until that is reached.
        """
        from netfleet.report.comparison import Question, compare

        return compare(self.histories, Question(column, at, to, target))

    def report(self, path: str | Path) -> Path:
        """Write the report as one HTML file, and return its path."""
        from netfleet.runs.run import write_page

        write_page(Path(path), self.experiment, self.histories, self.settings)
        return Path(path)
