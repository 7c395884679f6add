"""What all sites agree that their data is, for data of any source: `[contract]` in an experiment.

    [contract]
    columns = ["age", "pressure"]            # names of x's columns, in their order
    inputs = { shape = [2], dtype = "float32", range = [0, 250] }
    targets = { range = [0, 9] }
    least_rows = 20                          # training rows of each site
    least_classes = 2                        # classes among them

What is wrong is said with its row and column, and without the value: the rows are patients, and logs travel.
"""

from dataclasses import dataclass

from netfleet.errors import ConfigError
from netfleet.registry import check_fields, check_range


@dataclass(frozen=True)
class TensorContract:
    """What a row's inputs or its target must be; what is left out may be anything."""

    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    range: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self, "contract")
        check_range(self.range, "contract: range")


@dataclass(frozen=True)
class Contract:
    """What a site's data must be."""

    columns: tuple[str, ...] | None = None
    inputs: TensorContract | None = None
    targets: TensorContract | None = None
    least_rows: int = 0
    least_classes: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "contract")
        for name in ("least_rows", "least_classes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"contract.{name} must be 0 or more, got {getattr(self, name)}")
