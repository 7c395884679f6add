"""What a model's file says of the model: how it is built, what its inputs and outputs mean, and where it comes from.

All of it is plain data: reading it imports and runs nothing.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import netfleet
from netfleet.data.csv_files import declare, scaling
from netfleet.data.declaration import Declaration
from netfleet.errors import CheckpointError, ConfigError
from netfleet.problems.module import ModuleProblem
from netfleet.problems.supervised import DEFAULT_LOSSES
from netfleet.registry import split
from netfleet.runs.config import Experiment, make

Kind = Literal["joint", "alone"]
#: Of the text that a file has; another number is refused.
FORMAT = 1
#: Keys of a CSV declaration that say where the rows are, which a model does not need, and their values without it.
_ELSEWHERE: dict[str, Any] = {"path": "", "sites": None, "group": None}


@dataclass(frozen=True)
class Origin:
    """Where a model comes from: the run's hash, the site, the round, and whether it was trained jointly or alone.

    `best`: of all rounds that were evaluated, this one has the least loss on the site's validation rows. `stays`: the
    model is outside of what the plan's privacy covers, so it must not leave its site.
    """

    run: str
    site: str
    round: int
    kind: Kind = "joint"
    best: bool = False
    stays: bool = False


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a model; without `model` its architecture is known to the program that trained it only.

    `outputs` says what the outputs mean (`problems/tasks.py`). `data` is the declaration of the CSV columns with the
    constants that scale them; other data has at most the names of its `columns`.
    """

    origin: Origin
    model: Mapping[str, Any] | None = None
    inputs: tuple[int, ...] = ()
    width: int = 0
    dtype: str = "float32"
    loss: str = ""
    outputs: str | None = None
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    data: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    netfleet: str = netfleet.__version__
    format: int = FORMAT

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @property
    def declaration(self) -> Declaration | None:
        """The columns of the CSV files that the model was trained on."""
        return None if self.data is None else Declaration(**self.data, **_ELSEWHERE)

    @property
    def code(self) -> list[str]:
        """Every "package.module:factory" that has to be imported to use the model."""
        return sorted({kind for kind in self._kinds() if ":" in kind})

    @property
    def built_in(self) -> bool:
        """Whether the architecture is one of netfleet's own."""
        return self.model is not None and ":" not in split(self.model, "model")[0]

    def _kinds(self) -> Iterator[str]:
        if self.model is not None:
            yield split(self.model, "model")[0]
        features = {} if self.data is None else self.data.get("features", {})
        for spec in features.values() if isinstance(features, Mapping) else ():
            yield split(spec, "column")[0]


def parse_info(text: str, where: str) -> ModelInfo:
    """What a file says of its model; raises if it is not what this version of netfleet writes."""
    try:
        table = json.loads(text)
        if table["format"] != FORMAT:
            advice = f"this version reads format {FORMAT}; install netfleet {table.get('netfleet', '')}"
            raise CheckpointError(f"{where} describes its model in format {table['format']!r}; {advice}")
        origin = make(Origin, table.pop("origin"), "origin")
        info = make(ModelInfo, {**table, "origin": origin}, "the description")
        info.code  # noqa: B018 (raises if a kind is no text)
        return info
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{where} does not describe its model ({reason}); use a file as a site wrote it"
        ) from None


def model_info(
    problem: ModuleProblem, experiment: Experiment, origin: Origin, metrics: Mapping[str, float | None]
) -> ModelInfo:
    """What there is to say of the models of a problem that an experiment's [problem] table describes."""
    table, data = experiment.problem, problem.data
    known = table["kind"] in DEFAULT_LOSSES  # a kind of one's own may mean something else by these keys
    declared = _declared(table["data"]) if known else None
    kind, options = split(table["model"], "model") if known else ("", {})
    return ModelInfo(
        origin,
        {"kind": kind, **options} if known else None,
        tuple(data.inputs),
        problem.task.width(data),
        experiment.engine.dtype,
        split(table["loss"], "loss")[0] if "loss" in table else "",
        problem.task.outputs,
        _classes(problem, declared),
        tuple(declared["features"]) if declared else data.columns or (),
        declared,
        {name: value for name, value in metrics.items() if value is not None},
    )


def _declared(spec: Any) -> dict[str, Any] | None:
    """The declaration of CSV columns, without where the files are."""
    if split(spec, "data source")[0] != "csv":
        return None
    declared = declare(spec)
    found = {key.name: getattr(declared, key.name) for key in fields(Declaration) if key.name not in _ELSEWHERE}
    return found | {"statistics": scaling(declared)}


def _classes(problem: ModuleProblem, declared: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names of the classes in the order of their numbers: as declared, or else the numbers."""
    if problem.task.outputs not in ("classes", "labels"):
        return ()
    if declared and declared["classes"] is not None:
        return tuple(map(str, declared["classes"]))
    if declared and declared["positive_above"] is not None:
        named = f"{declared['target']} {{}} {declared['positive_above']:g}"
        return named.format("<="), named.format(">")
    count = problem.task.width(problem.data)
    return tuple(map(str, range(max(count, 2)))) if problem.task.outputs == "classes" or count == 1 else ()
