"""Runs the training in a thread of its own, and passes control between it and the user's loop.

The training asks (for a gradient, or whether to go on) and waits; the loop answers and waits for the next question.
Exactly one of the two runs at any moment, so neither needs a lock. `interruptible` is the same for a single wait.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from netfleet.errors import EngineError
from netfleet.exit_codes import waiting_for

T = TypeVar("T")
Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Ended(NamedTuple):
    """The training is over; `result` is what it returned."""

    result: Any


class _Stop(BaseException):
    """Ends a training that nobody waits for any more."""


class Handover(Generic[Question, Answer]):
    """One training and its loop."""

    def __init__(self) -> None:
        self._questions: SimpleQueue[Any] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._over = self.broken = False  # broken: by an error, or by an interrupt in the loop

    def start(self, train: Callable[[], Any], device: torch.device) -> None:
        """Let the training run, from the next `go` on."""
        stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

        def work() -> None:
            try:
                if self._answers.get() is _Stop:
                    return
                with torch.no_grad(), torch.cuda.stream(stream):
                    self._questions.put(Ended(train()))
            except _Stop:
                pass
            except BaseException as error:
                self._questions.put(error)

        self._thread = threading.Thread(target=work, name="netfleet-training", daemon=True)
        self._thread.start()

    @property
    def started(self) -> bool:
        return self._thread is not None

    def ask(self, question: Question) -> Answer:
        """In the training: give control to the loop, and wait for its answer."""
        self._questions.put(question)
        del question  # it may hold large tensors
        answer = self._answers.get()
        if answer is _Stop:
            raise _Stop
        result: Answer = answer
        return result

    def go(self, answer: Answer | None = None) -> Question | Ended:
        """In the loop: answer, and wait until the training asks again or has ended; raises the training's error."""
        if self._over:
            raise EngineError(
                "this training has ended or was interrupted; make a new optimizer, and load a saved state"
            )
        self._answers.put(answer)
        del answer
        self._over = self.broken = True  # unless the wait below ends as it should
        with waiting_for(self._busy):
            question = self._questions.get()
        if isinstance(question, BaseException):
            raise question
        self._over, self.broken = isinstance(question, Ended), False
        asked: Question | Ended = question
        return asked

    def _busy(self) -> bool:
        """Whether the training runs, or waits for other processes."""
        return self._thread is not None and self._thread.is_alive() and self._questions.empty()

    def close(self) -> None:
        """End a training that waits for an answer, and its thread: one that Python ends at exit would abort it."""
        if self._thread is not None and not self._over:
            self._over = True
            self._answers.put(_Stop)
            if self._thread is not threading.current_thread():
                self._thread.join()


def interruptible(wait: Callable[[], T]) -> T:
    """What `wait` returns. In the main thread Ctrl-C ends it, which torch's waits for other processes do not let in."""
    if threading.current_thread() is not threading.main_thread():
        return wait()
    ended: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def work() -> None:
        try:
            ended.put((wait(), None))
        except BaseException as error:
            ended.put((None, error))

    thread = threading.Thread(target=work, name="netfleet-waiting", daemon=True)
    thread.start()
    with waiting_for(lambda: thread.is_alive() and ended.empty()):
        result, error = ended.get()
    if error is not None:
        raise error
    thread.join()
    return result  # type: ignore[return-value]
