"""A process that trains the toy model and is killed at a random moment: `train_toy.py WORKDIR STEP SECONDS`.

SECONDS after step STEP has been computed it ends itself with SIGKILL, wherever the loop is then; with STEP 0 never.
"""

import os
import signal
import sys
import threading

from memjax.training.loop import train
from tests.training.loop_test import make_experiment


def main(workdir: str, step: str, seconds: str) -> None:
    def hook(info):
        if info.step == int(step):
            threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL)).start()

    experiment = make_experiment(workdir)
    train(experiment.config, experiment=experiment, hooks=[hook])


if __name__ == "__main__":
    main(*sys.argv[1:])
