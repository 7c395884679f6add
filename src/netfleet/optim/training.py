"""One training as its loop sees it: the round, what the method waits for, and what it is given."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor

from netfleet.algorithms.base import AnyState
from netfleet.engines.job import LoopState, Snapshot
from netfleet.errors import ConfigError
from netfleet.gradients.paths import Sample
from netfleet.optim.handover import Ended
from netfleet.optim.loop_problem import GradientAt, LoopProblem
from netfleet.optim.method_state import MethodState
from netfleet.optim.parts import Parts
from netfleet.problems.base import ParameterGroup


class Training:
    """A training that begins in round t with the parameters and the state as they are then.

    The thread in which the method runs does not refer to it, so it ends with its optimizer.
    """

    def __init__(self, parts: Parts, state: MethodState, t: int) -> None:
        self._parts, self._state = parts, state
        worker, workers, kept = parts.connection.worker, parts.connection.workers, weakref.ref(parts.kept)
        self.problem = LoopProblem(parts.flat, parts.buffers, worker, workers, parts.seed, kept)
        self._handover = self.problem.handover
        weakref.finalize(self, self._handover.close)
        self.round, self.finished = t, False
        self.wanted: Sample | None = None  # the mini-batch whose gradient the method waits for
        parts.hook.watch(True)

    def close(self) -> None:
        self._handover.close()
        self._parts.hook.watch(False)

    @property
    def started(self) -> bool:
        return self._handover.started

    def check_ended(self) -> None:
        """Raise unless the state is that after a whole round."""
        if self._handover.broken:
            raise ConfigError(
                "the training has ended with an error, and its last state is gone; make a new optimizer, and load a "
                "saved state"
            )
        if self.wanted is not None:
            raise ConfigError(
                f"a round is under way (step {self.wanted.k} of round {self.round}), and its state cannot be saved; "
                f"save when optimizer.round_ended is True, which it is after every "
                f"{getattr(self._parts.method, 'K', 1)} steps"
            )

    def snapshot(self) -> Snapshot:
        """The state after a round, and what the loop keeps."""
        state = self._state.state(self._parts.method)
        return Snapshot(self.round, state, self.problem.read_buffers(), loop=self._parts.kept.state())

    def begin(self, rate: float, groups: tuple[ParameterGroup, ...]) -> None:
        """Let the method go on until it wants a gradient; a round in which this worker is away ends before that."""
        self.problem.use_groups(groups)
        t, saved, kept = self.round, self._state.take(), self._parts.kept
        if not self.started:
            self._start(saved)
        self._parts.rates.begin(t, rate)
        del saved
        self.go_on(kept.state)
        if self.wanted is None and self.round == t and not self.finished:  # the state that the training begins with
            self._state.take()
            self.go_on(kept.state)

    def _start(self, saved: Mapping[str, Any]) -> None:
        """Start the training, from a saved state if there is one."""
        connection, problem, method, t = self._parts.connection, self.problem, self._parts.method, self.round
        start = None
        if saved:
            self._parts.rates.resume(t, saved["eta"])
            fields = [self._parts.flat.x[None], *(saved[name] for name in method.State._fields[1:])]
            first = [Snapshot(t, cast(AnyState, method.State._make(fields)), problem.read_buffers())]
            start = lambda *_: first.pop()  # noqa: E731
        self._handover.start(lambda: connection.train(problem, method, start, t), problem.device)

    def go_on(self, answer: Callable[[], Tensor | LoopState]) -> None:
        """Give the method what it waits for, and take up what it wants next.

        The answer is made here and not kept: with its memory the next gradients can be offered.
        """
        flat, made = self._parts.flat, [answer()]
        self.wanted = None
        self._parts.hook.watch(False)
        question = self._handover.go(made.pop())
        if isinstance(question, GradientAt):
            flat.show(question.x)
            flat.offer_gradients()
            self.wanted = question.sample
        else:
            self.finished = isinstance(question, Ended)
            self._end_round(question.result if isinstance(question, Ended) else question.snapshot)

    def _end_round(self, snapshot: Snapshot) -> None:
        parts, self.round = self._parts, snapshot.t
        parts.flat.show(snapshot.state.x[0])
        self.problem.write_buffers(snapshot.buffers)
        fields = dict(zip(snapshot.state._fields, snapshot.state, strict=True))
        self._state.keep(self.round, parts.rates.now, parts.comparison.origin(), fields)
        if not self.finished and snapshot.loop is not None:  # a site resumes
            parts.kept.restore(snapshot.loop)
        if not self.finished and self.round == parts.connection.rounds:  # nothing follows: save, and end
            del snapshot, fields
            self._state.take()
            self.go_on(parts.kept.state)
        else:
            parts.hook.watch(not self.finished)
