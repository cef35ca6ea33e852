"""The class of recipes, and arguments that several families of recipes share."""

from __future__ import annotations

import dataclasses

from tools.recipes.search import Search


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A comparison of contenders that differ in one thing, each at its own best learning rate.

    Attributes:
      description: Description of what is compared, for the page.
      config: Configuration of all contenders.
      variants: Row of the table -> variant of the configuration, with further arguments of its runs where there are
        any, such as `'spalm --model.output.num-neighbors 2'`. `$NAME` is an environment variable with a path.
        `@RECIPE/ROW` (`_` for spaces) is the directory of another run, which is trained first. These arguments come
        after `arguments`, which they override.
      steps: Number of updates of a recorded run. 0 for that of the configuration.
      learning_rate: Learning rate of all runs where it is not searched. 0 for that of the configuration.
      search: Search of the settings of every row. None where they are not searched.
      settings_from: Row -> `RECIPE/ROW`, whose search has found the settings of its runs, for a recipe without a
        search.
      texts: Name of the measurement of a stream's texts (`tools.measurements.vectors`). Tasks that are hardly above
        their largest class where they are learned alone are marked, and left out of every mean. '' to keep all tasks.
      page: Page of its tables. '' for the page of its configuration.
      orders: Name of an order of tasks -> further arguments. Each seed of a row is run in every order, as `ROW, ORDER`.
        Empty for a recipe that is no stream of tasks.
      seeds: Seeds of the recorded runs of each contender.
      own_seeds: Whether orders have seeds of their own: those of the first order are `seeds`, those of the next one are
        larger by one, and so on. Runs of different orders then differ in their initial parameters and draws too.
      one_seed: Rows whose runs have the seeds of the first order in all orders, where other rows have `own_seeds`.
      arguments: Further arguments of all runs.
      data_path: Environment variable with the path of the data. '' where none is needed.
      evaluations: Label -> arguments of `memjax eval`, for each evaluation of a finished run. Empty for bits per byte
        of the evaluation at the end of training.
      own_evaluations: Row -> label -> arguments of `memjax eval`, for evaluations of the runs of this row alone.
      usage: Whether to read `memjax usage` off each finished run too.
      measures: Measures of an evaluation that a table shows. Empty for accuracy, else perplexity or bits per byte.
      final: Label of the evaluation at the end of training in a table with other evaluations. '' to leave it out of
        such a table.
      curve: Measure of the evaluations during training that has a table. '' for none.
      rows_by_size: Method -> size -> `RECIPE/ROW`, whose average over orders a table of methods by sizes shows.
      controls: Row -> its controls, the rows that it is compared with seed by seed. A control has everything but the
        memory, or is another method.
      candidates_grow: Whether a test compares more classes after every task, so that scores fall without forgetting
        and no table has a column for it.
      findings: Description of what the numbers say, for the page. A comparison in braces, `{ROW | CONTROL}` or, where
        the recipe is no stream, `{ROW | CONTROL | NUMBER}`, stands for its difference, units and verdict.
    """

    description: str
    config: str
    variants: dict[str, str]
    steps: int
    learning_rate: float = 0.0
    search: Search | None = None
    settings_from: dict[str, str] = dataclasses.field(default_factory=dict)
    texts: str = ""
    page: str = ""
    orders: dict[str, str] = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    own_seeds: bool = False
    one_seed: tuple[str, ...] = ()
    arguments: str = ""
    data_path: str = ""
    evaluations: dict[str, str] = dataclasses.field(default_factory=dict)
    own_evaluations: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    usage: bool = False
    measures: tuple[str, ...] = ()
    final: str = ""
    curve: str = ""
    rows_by_size: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    controls: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    candidates_grow: bool = False
    findings: str = ""

    def contenders(self) -> dict[str, tuple[str, str]]:
        """Returns row and order of each contender: row of its runs in the ledger -> row of the recipe, and the name of
        the order, '' for a recipe that is no stream of tasks.
        """
        if not self.orders:
            return {row: (row, "") for row in self.variants}
        return {f"{row}, {order}": (row, order) for row in self.variants for order in self.orders}

    def seeds_of(self, row: str, order: str) -> tuple[int, ...]:
        """Returns the seeds of the recorded runs of a contender: of a row in an order, '' without orders."""
        has_own = order and self.own_seeds and row not in self.one_seed
        place = [*self.orders].index(order) if has_own else 0
        return tuple(seed + place for seed in self.seeds)


def signal(num_basis: int, num_samples: int = 128) -> str:
    """Returns the arguments that set the sizes of infinity-former's signal."""
    return f"--model.attention.num-basis {num_basis} --model.attention.num-samples {num_samples}"


SIGNAL_BEFORE = "--model.attention.density-init published --model.attention.kl-over-layers mean"
"""Arguments that recorded runs of infinity-former were trained with. Other values are the defaults today"""
TOKENS_BEFORE = "--model.memory-tokens.init-stddev 0.02"
"""Arguments that recorded runs were trained with. Other values are the defaults today"""
HIGHER_RATE = "--training.schedule.learning-rate 0.006"
BOTH_SPLITS = {split: f"--evaluation.split {split}" for split in ("validation", "test")}
