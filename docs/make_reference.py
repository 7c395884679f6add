"""Write docs/experiments.md from the registries: python docs/make_reference.py (a test checks that it is current)."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import netfleet.topology  # noqa: F401 (registers the weights that are read from files)
from netfleet.algorithms import ALGORITHMS
from netfleet.algorithms.compression import CODECS
from netfleet.algorithms.local.optimizers import OPTIMIZERS, WITHHELD
from netfleet.algorithms.outer import OUTER
from netfleet.algorithms.schedules import SCHEDULES
from netfleet.data import PARTITIONS, SOURCES
from netfleet.data.columns import FEATURES
from netfleet.privacy.settings import Privacy
from netfleet.problems import LOSSES, PROBLEMS
from netfleet.problems.models import MODELS
from netfleet.problems.scoring import METRICS
from netfleet.problems.site_weights import SITE_WEIGHTS
from netfleet.registry import Registry, parameters
from netfleet.runs.config import GIVEN, EngineConfig, Evaluation
from netfleet.runs.contract import Contract
from netfleet.runs.time_box import TimeBox
from netfleet.topology.faults import Faults
from netfleet.topology.graphs import GRAPHS
from netfleet.topology.weights import WEIGHTS
from netfleet.track import TRACKERS

COLUMNS = {
    "round": "rounds done; 0 is the initial model",
    "accuracy, loss": "of x̄ on the test data; a task without right answers has no accuracy; a synthetic loss is f",
    "worker_accuracy_mean/min/max, worker_loss_…": "over the workers' own models xᵢ, on `worker_test_samples` rows",
    "own_accuracy_mean/min/max, own_loss_…": "the same on each worker's own test rows, where workers have some",
    "auroc, worker_auroc_mean, own_auroc_mean, …": "likewise for each of `evaluation.metrics`; null if undefined",
    "train_loss, grad_norm2": "f(x̄) and ‖∇f(x̄)‖² over the workers' training data",
    "accuracy_se, train_loss_se, …": "standard error of a value that was estimated from a part of the samples",
    "consensus_error": "(1/m) Σᵢ ‖xᵢ − x̄‖²",
    "stationarity": "grad_norm2 + consensus_error, eq. (4) of the paper",
    "tracking_error": "‖Σᵢ (yᵢ − gᵢ)‖ of tracking methods, ‖Σᵢ cᵢ‖ of methods with a correction: 0 up to rounding",
    "distance2": "‖x̄ − x*‖² where the optimum is known",
    "eta": "step size of the last round",
    "bytes, samples": "payload sent and training samples used by all workers so far",
    "epsilon": "of `[privacy]`: the largest ε that a worker has spent so far; `samples` then counts expected sizes",
    "seconds": "spent in rounds so far, without evaluation; the only column that differs between equal runs",
}

WEIGHTS_NOTE = """How much each worker counts: f = Σᵢ pᵢ fᵢ, exactly, for every method in every engine. A list has a
number for each worker. Worker i computes m pᵢ fᵢ in place of fᵢ, so one with a large share needs a smaller step size,
by up to the factor m pᵢ; `cap` bounds it. f, ∇f and the means over workers count by the weights; x̄ is the plain
average, which the workers agree on.

"""
EVALUATION_NOTE = """
A value from a part of the samples is an unbiased estimate and has a standard error. The part is drawn at random, once,
from the run's seed: for each worker's model its own test samples, from each worker's data its own training samples. The
estimate of ‖∇f‖² may be below 0 where ∇f almost vanishes, and the lowest and the highest of the workers' estimated
scores lie a little too far apart. Under BatchNorm f itself depends on which samples are normalised together.

With `metrics`, a run ends with `scores.csv`: x̄ on all test rows and on those of each site, with 95 % bootstrap
intervals, and precision, recall, F1 and AUROC of each label with its number of rows. The report shows it.

| metric | for outputs that are | |
|---|---|---|
"""

HEAD = """# Experiment files

Made by `python docs/make_reference.py` from the code; do not edit by hand.

An experiment is a TOML file; `netfleet init` writes one with comments, to start from. A *kind* is a name
(`model = "mlp"`), a table with parameters (`model = {kind = "mlp", hidden = [128]}`), or `"package.module:factory"` for
a part of your own. `path`s are relative to the current folder. Unknown keys are errors. `netfleet run FILE --set
a.b=value` changes any value: `algorithms.eta=0.1` for every algorithm, and for one by its label, kind or index
`'algorithms[NET-FLEET].K=5'`, `algorithms.net-fleet.K=5` or `algorithms.0.K=5`. Brackets take labels with dots and
spaces.

| top-level key | default | |
|---|---|---|
| `rounds` | required | communication rounds |
| `name` | `"experiment"` | names the output folder and the report |
| `seeds` | `[0]` | one run per algorithm and seed; a seed determines graph, split, initial model and mini-batches |
| `checkpoint_every` | `50` | rounds between checkpoints |
| `[topology]` | erdos-renyi | a graph, its `workers` and its `weights` |
| `[problem]` | classification | data, partition, model, batch, … |
| `[[algorithms]]` | net-fleet | one or more; `label` names the curve |
| `[network]` | no failures | lost and late messages, absent workers |
| `[privacy]` | not private | [counted noise in gradients](privacy.md), [noise on links](link_noise.md) |
| `[time_box]` | K local steps in every round | as many local steps as fit into some seconds |
| `[contract]` | none | what the data of every site must be, checked before round 0 |
| `[track]` | none | [TensorBoard, MLflow, Weights & Biases](#trackers-track), or a tracker of your own |
| `[evaluation]`, `[engine]` | | below |

## Runs: resume, lengthen, sweep, compare

- `netfleet run FILE --out DIR --resume` resumes the unfinished runs in DIR. With a larger `rounds` it lengthens
  finished ones: `--set rounds=500` gives bit for bit what 500 rounds from the start give. Nothing else may differ,
  step sizes included; a `cosine` schedule therefore keeps its own `rounds`. Otherwise the error names the keys that
  differ.
- `netfleet sweep FILE --over KEY=A,B --over KEY2=C,D` runs every combination, each in its own folder of `--out`. Keys
  and values are written as for `--set`. `algorithms.K` is set where a method has a K; a run that several points share
  is made once. The same command resumes. What is refused or diverges is marked, and the others run. `sweep.csv` and
  `sweep.png` show `--metric`: lines over one key, a heat map per method over two.
- `netfleet compare DIR…` reads the runs below one or more folders. It shows the mean over seeds of `--metric`, and
  the difference to the best method (or `--to LABEL`) with a 95 % Student-t interval. Differences are taken seed by
  seed, because runs of one seed share graph, split and mini-batches. `--at best` or `--at ROUND` takes other values
  than the last, `--target 0.9` counts rounds. `--write FILE.csv`, `.md` or `.tex` and `--figure FILE.png` write
  files; `--format csv` prints the table for a program. A label in two folders gets the folder's name in front, and
  one with two settings in a folder (`netfleet tune`) what differs behind.

## Parts of your own

netfleet looks for the module beside the file, in the current folder and among the installed packages. It
calls the factory with the parameters in the file, and with those of the following that the factory names:

| part | is also given | returns |
|---|---|---|
| `problem.model` | `inputs` (shape of one sample), `outputs` or `classes` (how many) | any `nn.Module` |
| `problem.data` | | `netfleet.Dataset`: inputs and targets of any type, training and test |
| `problem.partition` | `labels`, `groups`, `workers`, `seed` | one int64 array of training rows per worker |
| `problem.loss` | | a function of (outputs, targets) with one value per sample (`reduction="none"`), or a `Task` |
| `problem.kind` | `workers`, `seed`, `dtype`, `device`, `threads` | a `netfleet.Problem` |
| `algorithms.kind` | | a `netfleet.Algorithm`: see `examples/my_algorithm.py` |
| `topology.kind` | `seed` | a networkx graph on 0, …, m − 1 |
| `track.kind` | | an object with `begin(run)`, `record(round, values)` and `end(status)`: `netfleet.track.Tracker` |

In Python a part can be the object itself: `nf.simulate(MyMethod(), topology=nx.petersen_graph(), problem=…)`.
"""


ALGORITHMS_NOTE = """All take `eta`, by default {eta}. [methods.md](methods.md) compares the methods; `netfleet
algorithms KIND` prints equations and citation. Methods with a server average exactly whatever the topology,
with one message up and one down per participating worker.

"""
#: What the parameters of the methods mean.
PARAMETERS = {
    "eta": "step size",
    "K": "local steps per round (`proxskip`, `scaffnew`: on average; `dsgt`: with the tracking step)",
    "beta": "momentum (`led`: step of the correction, by default 1/K)",
    "mu": "factor with which the quasi-global momentum is averaged",
    "rho": "radius of the sharpness-aware step",
    "gossip": "averagings per round",
    "eta_s": "step size of the exchange",
    "eta_g": "step size of the server",
    "option": "how control variates are computed: I or II",
    "participation": "share of the workers that take part in a round",
    "period": "rounds between two passes over all data",
}
CSV_NOTE = """The experiment declares what the columns are, so all sites read the same things in the same way:

```toml
[problem]
partition = "sites"                 # one worker for each site, in their order
loss = "bce"

[problem.data]
kind = "csv"
path = "heart/{site}.csv"           # a file for each site
sites = ["cleveland", "hungarian", "switzerland", "va"]
target = "num"
positive_above = 0                  # learn whether num > 0
missing = ["?", ""]                 # spellings of "no value"
scale = "sites"                     # numbers by mean and deviation over all sites

[problem.data.features]
age = "number"
sex = "yes/no"
cp = { kind = "category", values = [1, 2, 3, 4] }
chol = { kind = "number", missing = ["0"], fill = "mean", indicator = true }
oldpeak = { kind = "number", fill = 0, scale = { mean = 1, deviation = 1.1 } }
thal = { kind = "category", values = [3, 6, 7], indicator = true }
```

The first line of a file names its columns. Columns that are not declared are not looked at. The inputs of the model
are in alphabetical order. Whatever does not fit is an error that names file, line and column.

| key | |
|---|---|
| `path` | a CSV file in UTF-8, in the current folder or in NETFLEET_DATA; `{site}` stands for the name of a site |
| `sites` | the names of the sites; with `{site}`, the simulator needs them. A real site reads its own file only |
| `group` | in one file for all: the column that names a row's site |
| `target` | the column to learn. Alone it is a number; other targets need one of the next three keys |
| `classes` | the values of the target, each a label: 0, 1, … |
| `positive_above` | the label is 1 if the target is above this number, else 0 |
| `event` | survival: the column that says whether (1, yes) the event happened at the time `target` |
| `features` | the columns that are inputs, by kind (below); a list of names declares numbers |
| `missing` | texts that mean "no value"; a column may have more of its own |
| `scale` | of number columns: "none", "sites"; a column may have its own, also `{mean = …, deviation = …}` |
| `statistics` | the sums of all sites, which [real sites](sites.md#scaling) need; the simulator adds them up itself |
| `test` | share of each site's rows for testing, always the same rows, balanced by label |
| `delimiter`, `decimal` | `";"` and `","` for files of many spreadsheets |

"""
CSV_END = """
`range = [0, 120]` of a number and `most_missing = 0.1` (a share of a site's rows) are a contract between the sites:
what breaks it is an error before round 0, at a real site without the value itself.

`fill` is what a missing value becomes (`"mean"`: the mean over all sites). `indicator = true` adds an input that is 1
where the value was missing; a category or a yes/no then needs no `fill`. Otherwise a missing value is an error, and so
is a category that is not listed. A constant column that is scaled by `"sites"` becomes 0.
"""
COMPRESS_NOTE = """Any method over a graph can compress its messages:

```toml
[[algorithms]]
kind = "net-fleet"
compress = { kind = "quantize", bits = 8 }
```

Workers send differences to what their neighbours already know, as in CHOCO-SGD, so errors fade. With `memory
= false` they send the vectors themselves, which a time-varying graph needs. `gamma` is the step towards the
neighbours: by default 1, for top-k 4 · `share`, for random-k `share`; lower it if the run oscillates or
diverges. D², LED and ProxSkip reject top-k and random-k, with which they can diverge.

"""
LOCAL_NOTE = """A class of `torch.optim` can make the local steps of a method:

```toml
[[algorithms]]
kind = "k-gt"
eta = 0.001
local = { kind = "adamw", betas = [0.9, 0.95], weight_decay = 0.0 }
```

`eta` is its learning rate. `"torch.optim:RAdam"` or `"package.module:class"` names any other class. Its state is kept
for each worker and is in checkpoints. [methods.md](methods.md#local-optimizers) says which methods stay exact with
which.

"""
OUTER_NOTE = """What an exchange does with the change since the last one, in place of averaging:

```toml
[[algorithms]]
kind = "fedavg"
local = "adamw"
outer = { kind = "nesterov", momentum = 0.9, rate = 0.7 }      # DiLoCo
```

"""
NETWORK_NOTE = """
```toml
[network]
loss = 0.1
rule = "drop"
```

| `rule` | a message is missing | a message is late |
|---|---|---|
| `"drop"` | both ends leave the link out and keep its weight | both ends use their values of when it was sent, damped |
| `"fold"` | the reader keeps the weight, the sender does not know | the reader uses it as if it were new |
| `"ignore"` | the reader leaves it out | the reader uses it as if it were new |
| `"counters"` | workers send sums, so the next message makes up for it | (cannot be combined) |

With `"drop"` and `"counters"` gradient tracking stays exact, with `"fold"` and `"ignore"` it does not
([failures.md](failures.md)). An absent worker computes nothing, and returns with its old state.
"""
CONTRACT_NOTE = """
A contract is for data of any source; columns of [CSV files](#csv-files) have their own keys too. The simulator checks
it as real sites do. What breaks it is an error that names row and column, without the value.
"""
TRACK_NOTE = """`track = "tensorboard"` (or a table, or a list of several) gives every number of every record to a
tracker too, under its name in [the history](#what-a-history-records), with the round as its step. A run is called by
its label and seed. It has the resolved config as parameters, with its hash, and how it ended: finished, diverged,
interrupted or failed. Nothing is sent anywhere: all three write to this machine's disk. `pip install 'netfleet[KIND]'`
installs what a tracker needs. `--set track=mlflow` tracks an experiment as it is.

"""
TRACK_END = """
- Tracking changes neither results nor the hash of a run. `netfleet run`, `sweep`, `nf.run` and `nf.simulate` track;
  `netfleet tune` does not.
- With `--resume`, a tracker gets the whole history again in place of what it had, so no point is missing or there
  twice, also after a crash and in a run that grew. A finished run that was not tracked is tracked then. `--overwrite`
  makes a new run: MLflow and Weights & Biases keep the old one.
- A tracker that fails does not stop a run: it gets nothing more of that run, and a warning says so. `--resume` sends
  it all again.
- On a cluster, rank 0 tracks. A plan for sites must not have `[track]`: a site decides itself, by `netfleet node SITE
  --track tensorboard`.
- TensorBoard: `tensorboard --logdir runs`. Parameters and status are on its HParams page.
- MLflow: the extra has no web page. With `pip install mlflow`, run `MLFLOW_ALLOW_FILE_STORE=true mlflow ui
  --backend-store-uri mlruns`; newer versions want this variable for stores in files.
- Weights & Biases is offline only, whatever WANDB_MODE says. If you want to upload, run `wandb sync
  wandb/offline-run-*` after the last `--resume`, which makes a new folder of the same run.
"""
#: What the keys of [network], [evaluation] and [engine] mean.
TIME_BOX_NOTE = """
A worker takes between `least` and the method's `K` local steps in a round: as many as fit. It then keeps its model, and
its last gradient stands for the steps that it does not take. Methods with an exact correction (net-fleet, k-gt, led, …)
have the same optimum for any numbers of steps; ld-sgd and others without one move towards the workers that take
more. Rejected: methods with one local step, a momentum of their own or a random number of steps.
"""
KEYS: dict[type, dict[str, str]] = {
    Faults: {
        "loss": "share of the messages that are lost; with `drop`, of the links",
        "rule": "what workers do about lost and late messages",
        "delay": "rounds that a message is late at most",
        "absent": "share of the workers that are away",
        "spell": "rounds until the absent workers are drawn again",
    },
    Privacy: {
        "clip": "the longest that a row's gradient may be",
        "noise": "standard deviation of the noise, in clipping lengths; left out: solved for `epsilon`",
        "epsilon": "the budget for all rounds; with `noise` too, training stops before it is exceeded",
        "delta": "the δ that `epsilon` is for; well below 1 / (rows of the smallest worker)",
        "link_noise": "standard deviation of noise that cancels between neighbours; with or without `clip`",
        "exact_rounds": "rounds at the end without `link_noise`",
    },
    TimeBox: {
        "seconds": "for the local steps of a round; the exchange comes on top",
        "least": "local steps that a worker takes in any case",
        "step_seconds": "seconds of a local step, for all workers or a list, where there is no clock: all but sites",
    },
    Evaluation: {
        "every": "rounds between evaluations",
        "full_every": "rounds between full evaluations, 0: all are; others skip workers' models, f and ∇f",
        "test_samples": "for x̄",
        "worker_test_samples": "for each worker's model",
        "gradient": "whether to measure `train_loss`, `grad_norm2` and `stationarity`",
        "gradient_samples": "for these, of all workers together",
        "metrics": "further columns, by the names below or `package.module:function` of (outputs, targets)",
    },
    Contract: {
        "columns": "names of the columns of x in their order, where data comes from a frame (`nf.make_dataset`)",
        "inputs": 'of a row: `{shape = [1, 28, 28], dtype = "float32", range = [0, 1]}`, any of them',
        "targets": "likewise",
        "least_rows": "training rows of each site",
        "least_classes": "classes among them",
    },
    EngineConfig: {
        "kind": "all workers at once, a thread for each, or [torchrun](cluster.md)",
        "device": "a torch device, such as `cuda:1`",
        "dtype": "type of the numbers",
        "threads": "number of cores; 0: all",
        "gradients": "how gradients are computed; auto chooses by the model",
    },
}


def sentence(thing: Any) -> str:
    """The first paragraph of a docstring on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()).replace("|", "\\|")


def rows(items: Iterable[tuple[str, str, str]], heads: tuple[str, str, str]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|"]
    return "\n".join(lines + [f"| {' | '.join(item)} |" for item in items]) + "\n"


def value(default: Any) -> str:
    """A default as TOML would write it."""
    if default is dataclasses.MISSING:
        return "required"
    if isinstance(default, float):
        return f"{default:.4g}"
    return "none" if default is None else json.dumps(list(default) if isinstance(default, tuple) else default)


def signature(factory: Any, without: Iterable[str] = GIVEN) -> str:
    shown = {k: p for k, p in parameters(factory).items() if k not in without}
    return ", ".join(f"`{k}`" + ("" if p.default is p.empty else f" = {value(p.default)}") for k, p in shown.items())


def registry(title: str, things: Registry[Any], note: str = "", given: Iterable[str] = GIVEN) -> str:
    plain = [name for name in sorted(things) if not isinstance(things[name], partial)]
    variants: dict[Any, list[str]] = {}  # of one factory, which differ in a default
    for name in things:
        if isinstance(factory := things[name], partial):
            variants.setdefault(factory.func, []).append(name)
    items = [(f"`{name}`", signature(things[name], given), sentence(things[name])) for name in plain]
    for factory, names in variants.items():
        choice = ", ".join(f"{name}: {json.dumps(things[name].keywords)[1:-1].replace(': ', ' = ')}" for name in names)
        kinds = ", ".join(f"`{name}`" for name in names)
        items.append((kinds, signature(things[names[0]], given), f"{sentence(factory)} By default {choice}."))
    return f"\n## {title}\n\n{note}{rows(sorted(items), ('kind', 'parameters', ''))}"


def algorithms() -> str:
    """Every method with its parameters, and what each parameter means."""
    known = {name: ALGORITHMS[name] for name in sorted(ALGORITHMS)}
    (eta,) = {parameters(method)["eta"].default for method in known.values()}
    items = (
        (
            ", ".join(f"`{n}`" for n in ALGORITHMS.names(name)),
            "server" if getattr(method, "server", False) else "graph",
            signature(method, (*GIVEN, "eta")),
        )
        for name, method in known.items()
    )
    used = {name for method in known.values() for name in parameters(method)}
    meanings = "".join(f"| `{name}` | {PARAMETERS[name]} |\n" for name in sorted(used, key=list(PARAMETERS).index))
    note = ALGORITHMS_NOTE.format(eta=value(eta))
    table = rows(items, ("kind", "over", "parameters"))
    return f"\n## Algorithms: `[[algorithms]]`\n\n{note}{table}\n| parameter | |\n|---|---|\n{meanings}"


def fields(title: str, cls: Any) -> str:
    hints = parameters(cls)
    items = (
        (f"`{f.name}`", f"`{value(f.default)}`", choices(hints[f.name].annotation) + KEYS[cls][f.name])
        for f in dataclasses.fields(cls)
    )
    return f"\n## {title}\n\n{sentence(cls)}\n\n" + rows(items, ("key", "default", ""))


def choices(hint: Any) -> str:
    """The values that a key can have, if they are a few."""
    return f"{', '.join(get_args(hint))}: " if get_origin(hint) is Literal else ""


def reference() -> str:
    """The whole page."""
    parts = [
        HEAD,
        registry("Graphs: `[topology]`", GRAPHS, "All take `workers`; a random graph is a function of the seed.\n\n"),
        registry("Weights: `topology.weights`", WEIGHTS, "[weights.md](weights.md) says which to take.\n\n"),
        registry("Problems: `[problem]`", PROBLEMS)
        + registry("Site weights: `problem.weights`", SITE_WEIGHTS, WEIGHTS_NOTE),
        registry("Data: `problem.data`", SOURCES, given=()),
        registry("CSV files", FEATURES, CSV_NOTE).replace("## CSV", "### CSV") + CSV_END,
        registry("Partitions: `problem.partition`", PARTITIONS),
        registry("Models: `problem.model`", MODELS),
        registry("Losses: `problem.loss`", LOSSES),
        algorithms(),
        registry("Local optimizers: `local` in an algorithm's table", OPTIMIZERS, LOCAL_NOTE, WITHHELD),
        registry("Outer step: `outer` in an algorithm's table", OUTER, OUTER_NOTE),
        registry("Compression: `compress` in an algorithm's table", CODECS, COMPRESS_NOTE),
        registry("Step sizes: `eta`", SCHEDULES, "A number, or one of these tables. t counts rounds.\n\n"),
        fields("`[network]`", Faults) + NETWORK_NOTE,
        fields("`[privacy]`", Privacy),
        fields("`[time_box]`", TimeBox) + TIME_BOX_NOTE,
        fields("`[evaluation]`", Evaluation) + EVALUATION_NOTE,
        "".join(f"| `{m.name}` | {', '.join(m.needs)} | {sentence(m.measure)} |\n" for m in METRICS.values()),
        registry("Trackers: `[track]`", TRACKERS, TRACK_NOTE) + TRACK_END,
        fields("`[contract]`", Contract) + CONTRACT_NOTE,
        fields("`[engine]`", EngineConfig),
        "\n## What a history records\n\n| column | |\n|---|---|\n",
        "".join(f"| {name} | {text} |\n" for name, text in COLUMNS.items()),
    ]
    return "".join(parts)


if __name__ == "__main__":
    Path(__file__).with_name("experiments.md").write_text(reference(), encoding="utf-8")
