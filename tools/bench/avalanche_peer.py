"""Avalanche's side of `tools.bench.split_mnist`: one method and seed, run by the Python of an environment of its own.

    ENVIRONMENT/bin/python tools/bench/avalanche_peer.py METHOD SEED STREAM.npz

Prints one JSON object: the accuracy of each task at the end, and the seconds of training. STREAM.npz has the images
and labels of every task, the same that memjax reads. Standard library and Avalanche's own packages only.
"""

import json
import sys
import time

RATE, ROWS, HIDDEN = 0.1, 32, 256


def strategy(method, model):
    """The method at the settings of the comparison."""
    import torch
    from avalanche.training import supervised
    from avalanche.training.plugins import EvaluationPlugin

    made = {
        "SEQ": lambda **how: supervised.Naive(**how),
        "replay": lambda **how: supervised.Replay(mem_size=500, **how),
        "GEM": lambda **how: supervised.GEM(patterns_per_exp=100, memory_strength=0.5, **how),
        "EWC": lambda **how: supervised.EWC(ewc_lambda=100.0, **how),
        "LwF": lambda **how: supervised.LwF(alpha=1.0, temperature=2.0, **how),
        "cumulative": lambda **how: supervised.Cumulative(**how),
    }[method]
    return made(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=ROWS,
        train_epochs=1,
        eval_mb_size=500,
        device="cpu",
        evaluator=EvaluationPlugin(),
    )


def main():
    """Trains on the stream and prints what came out."""
    import numpy as np
    import torch
    from avalanche.benchmarks import nc_benchmark

    class Labelled(torch.utils.data.TensorDataset):
        @property
        def targets(self):
            return self.tensors[1].tolist()

    method, seed, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    given = np.load(file)
    number = len([name for name in given.files if name.startswith("train_x")])
    tensors = lambda split: [[torch.tensor(given[f"{split}_{part}{i}"]) for part in "xy"] for i in range(number)]
    tests, whole = tensors("test"), {}
    for split, parts in (("train", tensors("train")), ("test", tests)):
        whole[split] = Labelled(*(torch.cat(column) for column in zip(*parts, strict=True)))
    benchmark = nc_benchmark(
        whole["train"], whole["test"], n_experiences=number, task_labels=False, fixed_class_order=list(range(10))
    )
    dim = tests[0][0].shape[1]
    model = torch.nn.Sequential(torch.nn.Linear(dim, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10))
    learner, seconds = strategy(method, model), 0.0
    for experience in benchmark.train_stream:
        start = time.perf_counter()
        learner.train(experience)
        seconds += time.perf_counter() - start
    model.eval()
    with torch.no_grad():
        right = [float((model(x).argmax(1) == y).float().mean()) for x, y in tests]
    print(json.dumps({"accuracies": right, "seconds": seconds}))


if __name__ == "__main__":
    main()
