"""Tasks one after the other: what is done against forgetting, over orders and seeds."""

from collections.abc import Sequence

from memjax.lifelong.orders import MBPA_ORDERS
from tools.results.recipes.recipe import Recipe

RATE, ADAPTED = "--training.schedule.learning-rate", "--lifelong.method.learning-rate"
VALIDATED = "--evaluation.split validation"


def _order(names: Sequence[str]) -> str:
    """Of the tasks of a configuration, which stand in the first published order."""
    return f"--lifelong.order {' '.join(str(MBPA_ORDERS[0].index(name)) for name in names)}"


def _trials(option: str, values: Sequence[float], other: str, others: Sequence[float]) -> tuple[str, ...]:
    return tuple(f"{option} {value:g} {other} {beside:g}" for value in values for beside in others)


def _weights(*values: float) -> tuple[str, ...]:
    """Of a penalty, at two rates."""
    return _trials(RATE, (1e-3, 4e-3), "--lifelong.method.weight", values)


_RATES = tuple(f"{RATE} {rate:g}" for rate in (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2))
_REPLAYED = _trials(RATE, (1e-3, 2e-3, 4e-3, 8e-3), "--lifelong.method.rows", (32, 100))
_ADAPTED = _trials(RATE, (1e-3, 4e-3), ADAPTED, (0.02, 0.05, 0.1, 0.2))
_TEXT_TRIALS = {
    "single task": _RATES,
    "SEQ": _RATES,
    "multi-task": _RATES,
    "replay": _REPLAYED,
    "mixed 1:1": _RATES,
    "A-GEM": _REPLAYED,
    "random": _ADAPTED,
    "MbPA": _ADAPTED,
    "MbPA++": _ADAPTED,
    "EWC": _weights(1, 10, 100, 1000),
    "MAS": _weights(0.1, 1, 10, 100),
    "SI": _weights(0.1, 1, 10, 100),
    "LwF": _weights(0.3, 1, 3, 10),
    "Logit-KD": _weights(0.3, 1, 3, 10),
}
_TEXT_ROWS = {
    "single task": "single_task",
    "SEQ": "default",
    "multi-task": "multi_task",
    "mixed 1:1": "mixed",
    "replay": "replay",
    "A-GEM": "agem",
    "random": "mbpa_random",
    "MbPA": "mbpa",
    "MbPA++": "mbpa_pp",
    "EWC": "ewc",
    "MAS": "mas",
    "SI": "si",
    "LwF": "lwf",
    "Logit-KD": "logit_kd",
}
_TEXT_CONTROLS = {
    "multi-task": ("MbPA++",),
    "mixed 1:1": ("SEQ", "MbPA++"),
    "replay": ("SEQ",),
    "A-GEM": ("SEQ", "replay", "random"),
    "random": ("SEQ", "replay"),
    "MbPA": ("SEQ", "A-GEM"),
    "MbPA++": ("SEQ", "replay", "random", "MbPA"),
    **{row: ("SEQ",) for row in ("EWC", "MAS", "SI", "LwF", "Logit-KD")},
}


def _texts(size: int, every: int, seeds: Sequence[int]) -> Recipe:
    """The five tasks of MbPA++ on sentence vectors."""
    return Recipe(
        description=(
            f"The five tasks of MbPA++ in its four orders on sentence vectors of MiniLM, frozen: {size:,} texts a task "
            "for training, 400 to test, 25 of the 33 classes (of Yahoo's ten only two are at hand). A perceptron "
            "384-256-33, batches of 32, one pass, Adam; a replay or a projected update every "
            f"{every} texts, and 32 neighbours, 30 steps, of the head only. Every method has eight trials on "
            "validation texts of order 1, and is frozen for all orders and seeds. `tools.measurements.vectors five "
            f"--train {size}` makes MEMJAX_TEXT_VECTORS_{size}."
        ),
        config="lifelong_text",
        variants=_TEXT_ROWS,
        steps=0,
        trials=_TEXT_TRIALS,
        search_arguments=VALIDATED,
        orders={f"order {number}": _order(names) for number, names in enumerate(MBPA_ORDERS, 1)},
        seeds=tuple(seeds),
        arguments=f"--lifelong.folder $MEMJAX_TEXT_VECTORS_{size}",
        controls=_TEXT_CONTROLS,
    )


RECIPES = {
    "lifelong_vectors_500": _texts(500, 400, range(5)),
    "lifelong_vectors_2000": _texts(2000, 400, range(5)),
}
