"""The job of one `memjax sweep`, done with Avalanche 0.6.0: six methods, three seeds, two orders, a matrix with errors.

    ENVIRONMENT/bin/python tools/bench/avalanche_job.py STREAM.npz

It is as short as its library lets it be, because `tools.bench.same_job` counts its lines. STREAM.npz has the images and
labels of every task (`tools.bench.split_mnist.write_stream`).
"""

import itertools
import sys

import numpy as np
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training import supervised
from avalanche.training.plugins import EvaluationPlugin
from scipy import stats

METHODS = {
    "SEQ": (supervised.Naive, {}),
    "replay": (supervised.Replay, {"mem_size": 500}),
    "GEM": (supervised.GEM, {"patterns_per_exp": 100, "memory_strength": 0.5}),
    "EWC": (supervised.EWC, {"ewc_lambda": 100.0}),
    "LwF": (supervised.LwF, {"alpha": 4.0, "temperature": 2.0}),  # memjax multiplies by the square of the temperature
    "cumulative": (supervised.Cumulative, {}),
}
ORDERS, SEEDS = (tuple(range(10)), tuple(reversed(range(10)))), (0, 1, 2)


class Labelled(torch.utils.data.TensorDataset):
    @property
    def targets(self):
        return self.tensors[1].tolist()


def load(file, split):
    arrays = np.load(file)
    parts = [[arrays[f"{split}_{part}{task}"] for task in range(5)] for part in "xy"]
    return Labelled(*(torch.tensor(np.concatenate(part)) for part in parts))


def train(method, options, order, seed, datasets):
    torch.manual_seed(seed)
    benchmark = nc_benchmark(*datasets, n_experiences=5, task_labels=False, fixed_class_order=list(order))
    model = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    strategy = method(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=32,
        eval_mb_size=256,
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[]),
        **options,
    )
    matrix = []
    for experience in benchmark.train_stream:
        strategy.train(experience)
        scores = strategy.eval(benchmark.test_stream)
        matrix.append([next(v for k, v in scores.items() if k.endswith(f"Exp00{task}")) for task in range(5)])
    return matrix


def interval(units):
    error = stats.sem(units) * stats.t.ppf(0.975, len(units) - 1)
    return [f"{mean:.4f} ± {width:.4f}" for mean, width in zip(np.mean(units, axis=0), error, strict=True)]


def main():
    datasets = [load(sys.argv[1], split) for split in ("train", "test")]
    for name, (method, options) in METHODS.items():
        runs = {
            (order, seed): train(method, options, order, seed, datasets)
            for order, seed in itertools.product(ORDERS, SEEDS)
        }
        units = np.array([np.mean([runs[order, seed] for seed in SEEDS], axis=0) for order in ORDERS])
        print(f"{name}: average", *interval(units[:, -1].mean(axis=1, keepdims=True)), f"over {len(runs)} runs")
        for task in range(5):
            print(*interval(units[:, task, : task + 1]), sep="  ")


if __name__ == "__main__":
    main()
