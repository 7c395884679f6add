"""CSV files as columns of text; whatever is wrong in one is said with its file, line and column."""

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from netfleet.data.sites import shown_value
from netfleet.errors import ConfigError, DataError
from netfleet.registry import suggestion

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class Format(NamedTuple):
    """How the files are written: the character between columns, the decimal point, and the spellings of no value."""

    delimiter: str = ","
    decimal: Literal[".", ","] = "."
    missing: tuple[str, ...] = ("", "?", "NA")


def make_format(delimiter: str, decimal: Literal[".", ","], missing: Sequence[str]) -> Format:
    """The format of an experiment file; raises if no table can be written so."""
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ConfigError(f'delimiter must be one character, such as "," or ";", got {delimiter!r}')
    if delimiter == decimal:
        raise ConfigError(f'delimiter and decimal are both {delimiter!r}; with decimal = "," use delimiter = ";"')
    return Format(delimiter, decimal, tuple(missing))


@dataclass(frozen=True)
class Column:
    """One column of a file: the text of each row, without spaces around it."""

    file: Path
    name: str
    texts: Sequence[str]
    lines: Sequence[int]
    format: Format
    unit: str = "line"  # what `lines` counts

    def also_missing(self, spellings: Iterable[str]) -> "Column":
        """The column with further spellings of a missing value."""
        return replace(self, format=self.format._replace(missing=(*self.format.missing, *spellings)))

    def is_missing(self, row: int) -> bool:
        return self.texts[row] in self.format.missing

    def wrong(self, row: int, words: str) -> DataError:
        """The error of a row: where it is, what came, and the words."""
        came = shown_value(repr(self.texts[row]))
        return DataError(f"{self.file}, {self.unit} {self.lines[row]}, column {self.name!r}: {came} {words}")

    def number(self, row: int) -> float:
        text = self.texts[row]
        if self.format.decimal == ",":
            text = text.replace(",", ".") if "." not in text else ""  # a point would group thousands
        if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
            raise self.wrong(row, f"is not a number; {self.cure('correct it')}")
        return float(text)

    def cure(self, first: str) -> str:
        """What to do about a text that has no meaning here."""
        return f"{first}, or add it to missing if it means that there is no value"


@dataclass(frozen=True)
class Table:
    """A file that was read: its header and the fields of each row, with the line on which the row ends."""

    file: Path
    header: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]
    format: Format
    unit: str = "line"  # what `lines` counts

    def column(self, name: str) -> Column:
        if name not in self.header:
            near = suggestion(name, self.header)
            raise DataError(
                f"{self.file}: there is no column {name!r}{near}; the first line has {', '.join(self.header)}; correct "
                f"the experiment or the file's first line"
            )
        place = self.header.index(name)
        return Column(self.file, name, [row[place] for row in self.rows], self.lines, self.format, self.unit)

    def part(self, rows: Sequence[int]) -> "Table":
        return replace(self, rows=[self.rows[i] for i in rows], lines=[self.lines[i] for i in rows])


def read_table(file: Path, format: Format) -> Table:
    """Read a CSV file whose first line names the columns; empty lines are skipped."""
    try:
        with open(file, encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, delimiter=format.delimiter, strict=True)
            found = [([field.strip() for field in row], reader.line_num) for row in reader if row]
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); check its permissions") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: byte {error.start} is not UTF-8; save the file as CSV in UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{file}, line {reader.line_num}: not valid CSV ({error}); correct the line") from None
    if len(found) < 2:
        came = "is empty" if not found else "has no rows after its first line"
        raise DataError(f"{file} {came}; expected a line with the names of the columns and a line for each row")
    (header, _), *rows = found
    return _checked(Table(file, tuple(header), [row for row, _ in rows], [line for _, line in rows], format))


def _checked(table: Table) -> Table:
    if twice := [name for name in table.header if table.header.count(name) > 1]:
        raise DataError(f"{table.file}: two columns are called {twice[0]!r}; give each a name of its own")
    for row, line in zip(table.rows, table.lines, strict=True):
        if len(row) != len(table.header):
            raise DataError(
                f"{table.file}, line {line}: {len(row)} fields, but the first line names {len(table.header)} columns; "
                f'correct the line, or set delimiter (now "{table.format.delimiter}")'
            )
    return table
