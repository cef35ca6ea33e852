"""Parts of a store or index made by an Apache Beam pipeline, on as many machines as its runner has.

Beam only hands out the numbers of the parts. The workers read the data and write the store themselves. So all of them,
and the process that starts the pipeline, must see the same disk under the same path. The disk must support locks and
appending, as local disks and NFS do. Object stores do not.

A part may be tried again, and a pipeline may be started again, whatever ended it. Each part continues where its last
try stopped.
"""

import contextlib
import errno
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from memjax.durable_files import DiskFull

MARK = "memjax-error:"
"""Prefix of an error's line. Runners pass on the text of an exception, not the exception itself."""
WATCH_SECONDS = 1.0


def run_pipeline(
    load: Callable[[], Callable[[int], object]],
    parts: Sequence[int],
    *,
    runner: str,
    options: Sequence[str] = (),
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Runs work in an Apache Beam pipeline and waits for its end. `load()` returns, in each worker, the function that
    is called with each number in `parts`. `watch()` is called about once a second.

    Args:
      load: Function that returns the function that makes a part. It is called once in each worker process and is sent
        there, so it must be a function of a module, or a `functools.partial` of one.
      parts: Numbers of the parts. The work on a part must continue where an earlier try has stopped.
      runner: Runner of Beam, such as DirectRunner (this machine), DataflowRunner, FlinkRunner or SparkRunner.
      options: Options of the pipeline, `name=value` or `name`, such as `direct_num_workers=4`.
      watch: Function called about once a second while the pipeline runs.

    Raises:
      ValueError: Beam does not know the runner or an option, or `load` or a part has raised an error.
      DiskFull: No space is left where a part is written.
    """
    import apache_beam as beam  # type: ignore[import-not-found]
    from apache_beam.options.pipeline_options import PipelineOptions  # type: ignore[import-not-found]
    from apache_beam.utils.shared import Shared  # type: ignore[import-not-found]

    class MakePart(beam.DoFn):
        def __init__(self):
            self._loaded = Shared()

        def setup(self):
            with _encode_errors():
                self._make = self._loaded.acquire(load)

        def process(self, part: int) -> Iterator[int]:
            with _encode_errors():
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
    # Without the reshuffle a runner would keep all parts on the worker that creates them.
    _ = pipeline | "Parts" >> beam.Create(list(parts)) | beam.Reshuffle() | "Make" >> beam.ParDo(MakePart())
    try:
        with _call_periodically(watch):
            pipeline.run().wait_until_finish()
    except Exception as error:
        raise _decode_error(error) or error from None


@contextlib.contextmanager
def _encode_errors() -> Iterator[None]:
    """Rewrites a `ValueError` or `OSError` in a form that `_decode_error` finds in a longer text."""
    try:
        yield
    except (ValueError, OSError) as error:
        line, file = " ".join(str(error).split()), None
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            line, file = error.strerror, str(error.filename)
        raise RuntimeError(f"{MARK}{json.dumps([line, file])}") from error


def _decode_error(error: Exception) -> Exception | None:
    """Recovers the error that `_encode_errors` has written into the text of another exception."""
    _, mark, rest = str(error).rpartition(MARK)
    if not mark:
        return None
    line, file = json.JSONDecoder().raw_decode(rest)[0]
    return ValueError(line) if file is None else DiskFull(errno.ENOSPC, line, file)


@contextlib.contextmanager
def _call_periodically(watch: Callable[[], Any]) -> Iterator[None]:
    """Calls `watch` about once a second in a thread while the block runs."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(WATCH_SECONDS):
            with contextlib.suppress(ValueError, OSError):  # the pipeline itself reports errors
                watch()

    thread = threading.Thread(target=run, name="memjax-pipeline", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
