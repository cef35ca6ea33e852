"""What a recipe is, and what several families of them say alike."""

from __future__ import annotations

import dataclasses

from tools.recipes.search import Search


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Contenders that differ in one thing, each at its own best learning rate.

    Attributes:
      description: what is compared, for the table.
      config: configuration of all contenders.
      variants: row of the table -> variant of the configuration, and further arguments of its runs where there are
        any: `'spalm --model.output.num-neighbors 2'`; `$NAME` is an environment variable with a path, `@RECIPE/ROW`
        (`_` for spaces) the directory of another run, which is trained first. They come after `arguments`, which they
        override.
      steps: updates of a recorded run; 0 = as the configuration says.
      learning_rate: learning rate of all runs where it is not searched, 0 = that of the configuration.
      search: how the settings of every row are searched, None = they are not.
      settings_from: row -> `RECIPE/ROW`, whose search has found the settings of its runs, for a recipe without a
        search.
      texts: of streams, name of the measurement of their texts (`tools.measurements.vectors`): tasks that are hardly
        above their largest class where they are learned alone are marked, and left out of every mean.
      page: of its tables, '' = the page of its configuration.
      orders: name -> further arguments, for streams of tasks: each seed of a row is run in every order, `ROW, ORDER`.
      seeds: recorded runs of each contender.
      arguments: further arguments of all runs.
      data_path: environment variable with the path of the data, '' = none is needed.
      evaluations: what is read off each finished run -> arguments of `memjax eval`; none = bits per byte of the
        evaluation at the end of training.
      own_evaluations: row -> further ones of its runs alone.
      usage: whether `memjax usage` is read off each finished run too.
      measures: what of an evaluation a table shows; none = accuracy, else perplexity or bits per byte.
      final: what the evaluation at the end of training is called beside others, '' = it is not shown beside them.
      curve: measure of the evaluations on the way that has a table, '' = none.
      rows_by_size: method -> size -> `RECIPE/ROW`, whose average over orders a table of methods by sizes shows.
      controls: row -> the rows that it is compared with, seed by seed: everything but the memory.
      candidates_grow: whether a test compares more classes after every task, so that scores fall without forgetting
        and no table has a column for it.
      findings: what the numbers say, in words that describe. A comparison in braces, `{ROW | CONTROL}`, or with the
        number where the recipe is no stream, stands for its difference, units and verdict.
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
        """Row of a run in the ledger -> the row and the order ('' of no stream)."""
        if not self.orders:
            return {row: (row, "") for row in self.variants}
        return {f"{row}, {order}": (row, order) for row in self.variants for order in self.orders}


def signal(num_basis: int, num_samples: int = 128) -> str:
    return f"--model.attention.num-basis {num_basis} --model.attention.num-samples {num_samples}"


SIGNAL_BEFORE = "--model.attention.density-init published --model.attention.kl-over-layers mean"
TOKENS_BEFORE = "--model.memory-tokens.init-stddev 0.02"
"""what recorded runs were trained with where the default is another one today"""
HIGHER_RATE = "--training.schedule.learning-rate 0.006"
BOTH_SPLITS = {split: f"--evaluation.split {split}" for split in ("validation", "test")}
