"""Progressive networks: one model (column) for each task, which reads the layers of all columns before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from memjax.axes import named
from memjax.memory.layer_parts import matrix_init
from memjax.models.heads import INIT_STDDEV, ChoiceScorer, VocabularyScorer
from memjax.models.interface import Model
from memjax.typing import Aux, Batch


class Laterals(nn.Module):
    """The lateral connections into one column of a progressive network: a matrix from every layer of every column
    before it.

    Attributes:
      dtype: Dtype of the computation.
    """

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, before: list[Mapping[str, Any]]) -> dict[str, Any]:
        """Sums the lateral inputs of each layer over the columns `before`, given by their layers' outputs."""
        init = named(matrix_init(INIT_STDDEV), None, "embed")

        def project(column: int, layer: str, output: Any) -> Any:
            name = f"from_{column}_{layer.partition('/')[0]}"
            return nn.Dense(output.shape[-1], use_bias=False, kernel_init=init, dtype=self.dtype, name=name)(output)

        parts = [
            {name: project(j, name, output) for name, output in outputs.items()} for j, outputs in enumerate(before)
        ]
        return {name: sum(part[name] for part in parts) for name in parts[0]}


class Columns(Model):
    """A progressive network (Rusu et al. 2016, https://arxiv.org/abs/1606.04671): two or more models, its columns, one
    for each task. A column also reads the layers of the columns before it.

    Column k is a whole model with embeddings and head. Its layer l reads `h_{l-1}^k + sum_{j<k} U_l^{j->k} h_{l-1}^j`,
    and its head reads such a sum of the last layers. Columns before the one that answers run without dropout, and no
    gradient reaches them.

    Differs from the paper: its adapters (a learned scale, a projection to fewer units, a rectifier) are one matrix.

    Attributes:
      columns: Models, each with the feature `layer_<index>/output` of all its layers.
      active: Number of the column that answers. -1 = the last. Columns after it are not run.
      dtype: Dtype of the computation.
    """

    columns: tuple[Model, ...]
    active: int = -1
    dtype: Any = jnp.float32

    @property
    def vocabulary(self) -> Any:
        """The vocabulary of the first column. Those of the other columns have the same size."""
        return self.columns[0].vocabulary

    def setup(self) -> None:
        self.laterals = [Laterals(self.dtype) for _ in self.columns[1:]]

    @property
    def needs_task_id(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the column that answers is still to be chosen by `of_task`. Until then it is the last one."""
        return self.active < 0

    @property
    def head_path(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The names of the modules on the way down to the head of the newest column, outermost first."""
        return (f"columns_{len(self.columns) - 1}", *self.columns[-1].head_path)

    @property
    def last(self) -> int:
        """The number of the column that answers, the last one that runs."""
        return self.active % len(self.columns)

    @nn.nowrap
    def of_task(self, index: int) -> Model:
        """Returns a copy of the network that answers with the column of the task number `index`, or with the last
        column where that task has none yet.
        """
        return self.clone(active=min(index, len(self.columns) - 1))

    @nn.nowrap
    def scorer(self) -> VocabularyScorer | ChoiceScorer:
        """Returns the object that scores targets given the output of the column that answers."""
        return self.columns[self.last].scorer()

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = None) -> Any:
        """Returns a tuple with the state of every column that runs, up to the one that answers."""
        return tuple(column.init_state(batch_size, dtype) for column in self.columns[: self.last + 1])

    @nn.nowrap
    def padding(self) -> int:
        """Returns the number of parameters that only pad the vocabularies of all columns."""
        return sum(column.padding() for column in self.columns)

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """Returns the number of targets of a row, as for one column."""
        return self.columns[0].num_targets(length)

    @nn.nowrap
    def example(self, batch_size: int, length: int) -> Batch:
        """Returns a `Batch` of one segment with shapes and dtypes instead of arrays, as for one column."""
        return self.columns[0].example(batch_size, length)

    @nn.nowrap
    def select_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the entries of a batch's extras that a column reads."""
        return self.columns[0].select_extras(extras)

    def __call__(
        self, inputs: Any, state: Any, *, deterministic: bool = True, **named_arguments: Any
    ) -> tuple[Any, Any, Aux]:
        """Reads one segment with all columns up to the one that answers."""
        last = len(self.columns) - 1 if self.is_initializing() else self.last
        before, states, answer, aux = list[Any](), list[Any](), None, Aux()
        for number, column in enumerate(self.columns[: last + 1]):
            added = self.laterals[number - 1](before) if number else None
            side = (lambda layer, added=added: added[f"layer_{layer:02d}/output"]) if added else None
            still = deterministic or number < last
            answer, new, aux = column(inputs, state[number], deterministic=still, side=side, **named_arguments)
            states.append(new)
            if number < last:
                before.append(jax.lax.stop_gradient(dict(aux.arrays)))
        return answer, tuple(states), Aux(aux.losses, aux.metrics)
