"""A process that trains the toy model and gets a signal: `train_toy.py WORKDIR STEP SECONDS SIGNAL`.

SECONDS after step STEP has been computed it sends itself SIGNAL, wherever the loop is then.
"""

import os
import sys
import threading

from memjax.training.loop import StoppedBySignal
from memjax.training.run_start import train
from tests.training.loop_test import make_experiment


def main(workdir: str, step: str, seconds: str, number: str) -> None:
    def hook(info):
        if info.step == int(step):
            threading.Timer(float(seconds), os.kill, (os.getpid(), int(number))).start()

    experiment = make_experiment(workdir)
    try:
        train(experiment.config, experiment=experiment, hooks=[hook])
    except StoppedBySignal as stopped:
        sys.exit(stopped.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
