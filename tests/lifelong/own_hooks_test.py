"""Hooks of a component of one's own that return something wrong: one line names the hook, or the array."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import pytest

from memjax.config import Blobs, Classification, Config, Data, Evaluation, Lifelong, Method, Perceptron, TaskData
from memjax.lifelong import Component, chain_components, train

CLOUDS = Blobs(classes=(0, 1), num_train=8, num_test=8)
RESULTS = {
    "nothing": lambda state: None,
    "parameters": lambda state: state.params,
    "another shape": lambda state: replace(state, method={**state.method, "hooked": jnp.zeros(3)}),
    "a new state": lambda state: replace(state, method={**state.method, "sum": jnp.zeros(3)}),
}


@dataclass(slots=True, kw_only=True)
class Hooked(Method):
    """A method whose hook returns one of `RESULTS`."""

    result: str = "nothing"
    """name of the result"""

    def make(self):
        before = lambda state, context, task: RESULTS[self.result](state)
        return chain_components(Component("hooked", lambda params: jnp.zeros(()), before_task=before))


@pytest.mark.parametrize(
    "result, line",
    [
        ("nothing", "before_task of hooked: given None, allowed: a TrainState, such as replace"),
        ("parameters", "before_task of hooked: given dict, allowed: a TrainState, such as replace"),
        ("another shape", r"state.method\['hooked'\]: given float32 \[3\], allowed: float32 \[\], as before the phase"),
        ("a new state", r"state.method\['sum'\]: given float32 \[3\], allowed: none, as before the phase"),
    ],
)
def test_a_hook_that_returns_something_else(result, line, tmp_path):
    config = Config(
        name="run",
        workdir=str(tmp_path),
        task=Classification(num_classes=2),
        model=Perceptron(widths=(2,)),
        data=Data(source=CLOUDS, batch_size=4, segment_length=16),
        evaluation=Evaluation(batch_size=8),
        lifelong=Lifelong(tasks=(TaskData(name="clouds", source=CLOUDS),)),
    )
    with pytest.raises(ValueError, match=line):
        train(config, method=Hooked(result=result), on_event=lambda event: None)
