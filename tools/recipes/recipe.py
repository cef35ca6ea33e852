"""What a recipe is, and what several families of them say alike."""

from __future__ import annotations

import dataclasses


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
      search_steps: updates of a run of the learning-rate search.
      learning_rates: the search's grid, the same for every contender; a single one is not searched, none = that of the
        configuration.
      trials: row -> further arguments of each run of its search, instead of `learning_rates`.
      search_arguments: further arguments of all runs of the search.
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
      controls: row -> the rows that it is compared with, seed by seed: everything but the memory.
      findings: what the numbers say, in words.
    """

    description: str
    config: str
    variants: dict[str, str]
    steps: int
    search_steps: int = 0
    learning_rates: tuple[float, ...] = ()
    trials: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    search_arguments: str = ""
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
    controls: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    findings: str = ""

    def contenders(self) -> dict[str, tuple[str, str]]:
        """Row of a run in the ledger -> the row and the order ('' of no stream)."""
        if not self.orders:
            return {row: (row, "") for row in self.variants}
        return {f"{row}, {order}": (row, order) for row in self.variants for order in self.orders}

    def searches(self, row: str) -> dict[str, str]:
        """What a search tries for a row: its name -> further arguments; a single one needs no search."""
        if self.trials:
            return {trial: trial for trial in self.trials.get(row, ())}
        return {f"{rate:g}": f"--training.schedule.learning-rate {rate:g}" for rate in self.learning_rates}


def signal(num_basis: int, num_samples: int = 128) -> str:
    return f"--model.attention.num-basis {num_basis} --model.attention.num-samples {num_samples}"


SIGNAL_BEFORE = "--model.attention.density-init published --model.attention.kl-over-layers mean"
TOKENS_BEFORE = "--model.memory-tokens.init-stddev 0.02"
"""what recorded runs were trained with where the default is another one today"""
HIGHER_RATE = "--training.schedule.learning-rate 0.006"
BOTH_SPLITS = {split: f"--evaluation.split {split}" for split in ("validation", "test")}
