"""Named factories with checked parameters: how text in an experiment file becomes an object.

Graphs, weights, data sources, partitions, models, schedules, problems and algorithms are each one `Registry`. A
specification is a name (`"ring"`), or a table with a `kind` and parameters (`{kind = "shards", per_worker = 2}`);
`"package.module:factory"` in place of a name is the user's own. The factory's signature is the only schema.
"""

import dataclasses
import difflib
import functools
import importlib
import inspect
import os
import sys
import types
import typing
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from netfleet.errors import ConfigError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])
Spec = str | Mapping[str, object]


class Registry(Generic[T]):
    """Factories of one kind of thing by name; `what` names the kind in errors ("graph", "model")."""

    def __init__(self, what: str, returns: type | None = None) -> None:
        self.what, self.returns = what, returns
        self._factories: dict[str, Callable[..., T]] = {}
        #: Other names of factories; a resolved specification has the first name.
        self.aliases: dict[str, str] = {}

    def register(self, name: str, *aliases: str) -> Callable[[F], F]:
        """Decorator: make a factory known under `name`, and understand the aliases."""

        def add(factory: F) -> F:
            self._factories[name] = factory  # type: ignore[assignment]
            self.aliases |= dict.fromkeys(aliases, name)
            return factory

        return add

    def __iter__(self) -> Iterator[str]:
        return iter(self._factories)

    def name_of(self, factory: object) -> str | None:
        """The name of a registered factory; None if it has none."""
        return next((name for name, known in self._factories.items() if known is factory), None)

    def names(self, name: str) -> list[str]:
        """A factory's name and its aliases."""
        return [name, *(alias for alias, known in self.aliases.items() if known == name)]

    def __getitem__(self, name: str) -> Callable[..., T]:
        """The factory called `name`, or the object that `"package.module:factory"` points to."""
        if (known := self.aliases.get(name, name)) in self._factories:
            return self._factories[known]
        if ":" in name:
            factory: Callable[..., T] = load_object(name, self.what)
            return factory
        near, known = suggestion(name, [*self, *self.aliases]), ", ".join(sorted(self))
        raise ConfigError(
            f"unknown {self.what} {name!r}{near}; known: {known}, or 'package.module:factory' for your own"
        )

    def resolve(self, spec: Spec, given: Mapping[str, object] | None = None) -> dict[str, Any]:
        """The specification with every default written out; raises on an unknown, missing or ill-typed parameter."""
        kind, params = split(spec, self.what)
        hints = parameters(self[kind])
        for key, value in params.items():
            if key not in hints or (key in (given or {}) and key != "seed"):
                allowed = ", ".join(sorted(k for k in hints if k not in (given or {}))) or "none"
                near = suggestion(key, hints)
                raise ConfigError(f"{self.what} {kind!r} has no parameter {key!r}{near}; it takes: {allowed}")
            check_type(value, hints[key].annotation, f"{self.what} {kind!r}: {key}")
        missing = [k for k, p in hints.items() if p.default is p.empty and k not in params and k not in (given or {})]
        if missing:
            raise ConfigError(f"{self.what} {kind!r} needs {', '.join(missing)}; add {missing[0]} = …")
        defaults = {k: p.default for k, p in hints.items() if p.default is not p.empty and k not in (given or {})}
        return {"kind": self.aliases.get(kind, kind), **defaults, **params}

    def build(self, spec: Spec, **given: object) -> T:
        """Call the factory with the specification's parameters and those of `given` that it accepts."""
        kind, _ = split(spec, self.what)
        factory = self[kind]
        params = self.resolve(spec, given)
        del params["kind"]
        accepted = {k: v for k, v in given.items() if k in parameters(factory) and k not in params}
        made = factory(**accepted, **params)
        if self.returns is not None and not isinstance(made, self.returns):
            raise ConfigError(
                f"{self.what} {kind!r} made a {type(made).__name__}, expected {self.returns.__name__}; fix the "
                f"factory's return value"
            )
        return made


def split(spec: object, what: str) -> tuple[str, dict[str, object]]:
    """Separate a specification into its kind and its parameters."""
    if isinstance(spec, str):
        return spec, {}
    if not isinstance(spec, Mapping):
        raise ConfigError(f'{what}: expected a name or a table with a kind, got {shown(spec)}; write {what} = "…"')
    params = dict(spec)
    kind = params.pop("kind", None)
    if not isinstance(kind, str):
        raise ConfigError(f'{what}: the table has no kind; add kind = "…" to {shown(dict(spec))}')
    return kind, params


#: The parameters of factories that are still there; an experiment asks for them a hundred times.
_SEEN: weakref.WeakKeyDictionary[Callable[..., object], Mapping[str, inspect.Parameter]] = weakref.WeakKeyDictionary()


def parameters(factory: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """The keyword parameters of a factory, with annotations as types."""
    try:
        if factory not in _SEEN:
            _SEEN[factory] = _parameters(factory)
        return _SEEN[factory]
    except TypeError:  # a callable object that cannot be a key
        return _parameters(factory)


def _parameters(factory: Callable[..., object]) -> dict[str, inspect.Parameter]:
    try:
        signature = inspect.signature(factory)
    except ValueError:
        advice = "write a function around it that names them"
        raise ConfigError(f"{path_of(factory)} does not say which parameters it takes; {advice}") from None
    factory = factory.func if isinstance(factory, functools.partial) else factory
    fields_are_parameters = dataclasses.is_dataclass(factory) or not inspect.isclass(factory)
    target = factory if fields_are_parameters else factory.__init__
    try:
        hints = typing.get_type_hints(target)
    except NameError:  # annotations that exist for type checkers only: nothing to check against
        hints = {}
    return {
        name: p.replace(annotation=hints.get(name, Any))
        for name, p in signature.parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }


def suggestion(word: object, known: Iterator[str] | typing.Iterable[str]) -> str:
    """` (did you mean 'x'?)` where a known word is near, else nothing."""
    near = difflib.get_close_matches(str(word), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def check_fields(settings: object, where: str) -> None:
    """Raise unless every field of a dataclass fits its annotation."""
    for name, hint in parameters(type(settings)).items():
        check_type(getattr(settings, name), hint.annotation, f"{where}.{name}")


def check_type(value: object, hint: Any, where: str) -> None:
    """Raise unless a value read from TOML fits the annotation; the factory checks what TOML cannot express."""
    if not fits(value, hint):
        raise ConfigError(f"{where} must be {describe(hint)}, got {shown(value)}")


def check_range(given: typing.Sequence[float] | None, key: str) -> None:
    """Raise unless these are the lowest and the highest number that are allowed."""
    if given is not None and (len(given) != 2 or not given[0] <= given[1]):
        raise ConfigError(f"{key} must be the lowest and the highest number, got {list(given)!r}; for example [0, 120]")


def shown(value: object) -> str:
    """A value as an error shows it: on one line, and short."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}…"


def fits(value: object, hint: Any) -> bool:
    """Whether a plain value fits an annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, a) for a in args)
    if origin is typing.Literal:
        return any(type(value) is type(arg) and value == arg for arg in args)
    if hint in (float, int):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    if origin in (list, tuple) or (inspect.isclass(origin) and issubclass(origin, typing.Sequence)):
        inner = args[0] if args else Any
        return isinstance(value, list | tuple) and all(fits(v, inner) for v in value)
    kind = origin or hint
    return isinstance(value, kind) if inspect.isclass(kind) and kind is not Any else True


def describe(hint: Any) -> str:
    """An annotation as plain text for an error."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(a) for a in args if a is not type(None))
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(a) for a in args)
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    if origin in (Mapping, Callable):
        return "a table" if origin is Mapping else "a function"
    if origin is not None:
        return f"a list of {describe(args[0])}" if args else "a list"
    return words.get(hint, getattr(hint, "__name__", str(hint)).lower())


def load_object(path: str, what: str) -> Any:
    """The object at `package.module:attribute`."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{what} {path!r}: expected 'package.module:factory'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, but something that it imports is not
        raise ConfigError(
            f"{what} {path!r}: no module {module_name!r}; it must be importable from the folder of the "
            f"experiment file, the current folder or the installed packages"
        ) from None
    if not hasattr(module, attribute):
        raise ConfigError(f"{what} {path!r}: module {module_name!r} has no {attribute!r}")
    found = getattr(module, attribute)
    if not callable(found):
        raise ConfigError(f"{what} {path!r} is {type(found).__name__}, expected a class or a function")
    return found


def path_of(thing: object) -> str:
    """`package.module:name` of a function, a class or an object's class."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


def is_importable(thing: object) -> bool:
    """Whether another process finds a function or a class by its path: it is in a module, and not in the main one."""
    module, _, name = path_of(thing).partition(":")
    return module != "__main__" and getattr(sys.modules.get(module), name, None) is thing


def make_importable(file: str | None, *last: Path) -> None:
    """Let `package.module:factory` find modules beside the experiment file, in the current folder, then in `last`."""
    for folder in [os.getcwd(), *([str(Path(file).resolve().parent)] if file else [])]:
        if folder not in sys.path:
            sys.path.insert(0, folder)
    sys.path += [folder for folder in map(str, last) if folder not in sys.path]
