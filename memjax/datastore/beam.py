"""The parts of a store made by an Apache Beam pipeline, on as many machines as its runner has.

Beam hands out the numbers of parts, and nothing else passes through it: the workers read the data and write the store
themselves. So all of them, and whoever starts the pipeline, see the same disk under the same path. It must know locks
and appending, as local disks and NFS do and object stores do not.

A part may be tried again, and a pipeline may be started again, whatever ended it: what makes the parts goes on where
it stood.
"""

import contextlib
import errno
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from memjax.datastore.files import DiskFull

MARK = "memjax-error:"
"""Before the line of an error: runners pass on the text of an exception, not the exception."""
WATCH_SECONDS = 1.0


def run_pipeline(
    load: Callable[[], Callable[[int], object]],
    parts: Sequence[int],
    *,
    runner: str,
    options: Sequence[str] = (),
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Makes every part, each as one element of a pipeline, and returns when all are made.

    Args:
      load: gives the function that makes a part. It is called once in each process of a worker, and sent there: a
        function of a module, or a `functools.partial` of one.
      parts: their numbers; the work on a part must go on where an earlier try has stopped.
      runner: of Beam, such as DirectRunner (this machine), DataflowRunner, FlinkRunner, SparkRunner.
      options: of the pipeline, `name=value` or `name`, such as `direct_num_workers=4`.
      watch: called about once a second while the pipeline runs.

    Raises:
      ValueError: a runner or option that Beam does not know, or what `load` or a part has raised.
      DiskFull: no space is left where a part is written.
    """
    import apache_beam as beam  # type: ignore[import-not-found]
    from apache_beam.options.pipeline_options import PipelineOptions  # type: ignore[import-not-found]
    from apache_beam.utils.shared import Shared  # type: ignore[import-not-found]

    class MakePart(beam.DoFn):
        def __init__(self):
            self._loaded = Shared()

        def setup(self):
            with _marked():
                self._make = self._loaded.acquire(load)

        def process(self, part: int) -> Iterator[int]:
            with _marked():
                self._make(part)
            yield part

    flags = [f"--runner={runner}", *(f"--{option}" for option in options)]
    chosen = PipelineOptions(flags)
    unknown = chosen.get_all_options(retain_unknown_options=True).keys() - chosen.get_all_options().keys()
    if unknown:
        raise ValueError(
            f"runner_options: given {', '.join(sorted(unknown))}, allowed: the options of Beam's pipelines"
        )
    try:
        pipeline = beam.Pipeline(options=chosen)
    except (ValueError, ImportError, AttributeError) as error:
        raise ValueError(f"runner: given {runner!r}: {' '.join(str(error).split())}") from error
    # Without the reshuffle a runner would keep all parts in the one place where they are created.
    _ = pipeline | "Parts" >> beam.Create(list(parts)) | beam.Reshuffle() | "Make" >> beam.ParDo(MakePart())
    try:
        with _watching(watch):
            pipeline.run().wait_until_finish()
    except Exception as error:
        raise _unmarked(error) or error from None


@contextlib.contextmanager
def _marked() -> Iterator[None]:
    """Writes what a `ValueError` or `OSError` says in a form that `_unmarked` finds in a longer text."""
    try:
        yield
    except (ValueError, OSError) as error:
        line, file = " ".join(str(error).split()), None
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            line, file = error.strerror, str(error.filename)
        raise RuntimeError(f"{MARK}{json.dumps([line, file])}") from error


def _unmarked(error: Exception) -> Exception | None:
    """The error that `_marked` has written into the text of another one."""
    _, mark, rest = str(error).rpartition(MARK)
    if not mark:
        return None
    line, file = json.JSONDecoder().raw_decode(rest)[0]
    return ValueError(line) if file is None else DiskFull(errno.ENOSPC, line, file)


@contextlib.contextmanager
def _watching(watch: Callable[[], Any]) -> Iterator[None]:
    done = threading.Event()

    def run() -> None:
        while not done.wait(WATCH_SECONDS):
            with contextlib.suppress(ValueError, OSError):  # the pipeline itself says what is wrong
                watch()

    thread = threading.Thread(target=run, name="memjax-pipeline", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
