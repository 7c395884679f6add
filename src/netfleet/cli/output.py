"""Standard output whose reader may leave: `netfleet run … | head -2` goes on quietly and keeps its results."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class Output:
    """A stream that drops what it is given once nobody reads it any more; in all else it is the given stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            _drop(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            _drop(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def outliving_readers() -> Iterator[None]:
    """Within the context, a reader of standard output that leaves is no error; at the end everything is written."""
    before = sys.stdout
    sys.stdout = output = Output(before)
    try:
        yield
    finally:
        output.flush()
        sys.stdout = before


def _drop(stream: TextIO) -> None:
    """Let the stream write to nowhere, also what it still holds."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
