"""Whether training together helped, in one plain sentence."""

from netfleet.sites.evaluation.results import Comparison, Interval, Verdict

#: Test rows, and rows of the rarest class among them, below which an interval of the bootstrap decides nothing.
FEW, FEW_OF_CLASS = 10, 5
NAMES = {"auroc": "AUROC", "rmse": "RMSE", "mae": "MAE", "r2": "R²", "f1": "F1"}

_STARTS: dict[Verdict, str] = {
    "it helped": "It helped",
    "too close to call": "Too close to call",
    "it did not help": "It did not help",
}


def title(metric: str) -> str:
    """A metric as people write it."""
    return NAMES.get(metric, metric.replace("_", " "))


def compare(metric: str, better: Interval, rows: int, rarest: int | None = None) -> Comparison:
    """The verdict on how much better the joint model is than the one trained alone, on so many test rows.

    `rarest` is how many of them have the rarest class, where there are classes.
    """
    few = rows < FEW or (rarest is not None and rarest < FEW_OF_CLASS)
    verdict, value = _verdict(better, few), better.value
    assert value is not None
    start = _STARTS[verdict]
    found = f"the joint model's {title(metric)} is {abs(value):.3f} {'better' if value >= 0 else 'worse'}"
    spread = "" if better.low is None else f" (95 % interval of the difference: {better.low:.3f} to {better.high:.3f})"
    least = f"; fewer than {FEW} test rows, or {FEW_OF_CLASS} of a class, decide nothing" if few else ""
    words = f"{start}: on this site's {rows} test rows {found} than that of the model trained alone{spread}{least}."
    return Comparison(metric, better, verdict, words)


def _verdict(better: Interval, few: bool) -> Verdict:
    if better.low is None or better.high is None or few:
        return "too close to call"
    if better.low > 0:
        return "it helped"
    return "it did not help" if better.high < 0 else "too close to call"
