"""Runs the slow tests file by file, each in a process of its own, and goes on where it was stopped.

    python -m tools.slow_suite [PATH...] [--results FILE] [--again] [-- OPTIONS OF PYTEST]

A file of tests that passed on the same sources is not run again; those that failed last time come first. Every file
ends with a line on the terminal and a JSON line in the results, and its whole output lies in a folder beside them. The
exit code is 0 where every file passed.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
PYTEST = [sys.executable, "-m", "pytest", "--jaxtyping", "--optimized", "-m", "slow and not gpu"]
NO_TESTS = 5  # Exit code of pytest where no test is left.
SECONDS_OF_A_FILE = 5400


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is not yet passed and returns 0 where everything passed, 1 where something failed."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="python -m tools.slow_suite", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", default=["tests"], help="files or folders, in the order in which they run")
    parser.add_argument("--results", type=Path, default=ROOT / ".cache" / "slow" / "results.jsonl", metavar="FILE")
    parser.add_argument("--again", action="store_true", help="also run files that have passed on these sources")
    options, more = parser.parse_args(arguments[:cut]), arguments[cut + 1 :]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # Ends the tests that run, too.
    counts = collect_files(options.paths, more)
    key = {"sources": hash_sources(ROOT), "python": platform.python_version(), "options": more}
    results = read_results(options.results)
    files = order_files(counts, results, {} if options.again else key)
    print(f"{sum(counts.values())} slow tests in {len(counts)} files, {len(files)} files to run", flush=True)
    for number, file in enumerate(files, 1):
        result = {**key, **run_file(file, more, options.results.parent)}
        with options.results.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(result) + "\n")
        print(f"{number}/{len(files)} {describe_result(result)}", flush=True)
    latest = {line["file"]: line for line in read_results(options.results) if is_of(line, key)}
    failed = [latest[file] for file in counts if not latest[file]["passed"]]
    seconds = sum(latest[file]["seconds"] for file in counts)
    print(
        f"{len(counts) - len(failed)} of {len(counts)} files passed, {seconds / 60:.0f} minutes in all; "
        f"results: {options.results}"
    )
    for result in failed:
        print(describe_result(result))
    return 1 if failed else 0


def collect_files(paths: Sequence[str], more: Sequence[str]) -> dict[str, int]:
    """Finds the slow tests.

    Args:
      paths: Files and folders to search.
      more: Further options of pytest.

    Returns:
      Number of slow tests by file, in the order of `paths`.

    Raises:
      SystemExit: The tests cannot be collected. The message holds the output of pytest.
    """
    command = [*PYTEST, "--collect-only", "-q", *more, *paths]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode not in (0, NO_TESTS):
        raise SystemExit(run.stdout + run.stderr)
    counts = Counter(line.split("::")[0] for line in run.stdout.splitlines() if "::" in line)
    # Where one path holds another, pytest has an order of its own.
    place = lambda file: next((i for i, path in enumerate(paths) if Path(file).is_relative_to(path)), len(paths))
    return {file: counts[file] for file in sorted(counts, key=place)}


def hash_sources(root: Path) -> str:
    """Commit of a checkout, with a hash of what differs from it. Files that git does not know are not looked at."""
    git = lambda *words: subprocess.run(["git", *words], cwd=root, capture_output=True, check=True).stdout
    commit, difference = git("rev-parse", "HEAD").decode().strip(), git("diff", "HEAD")
    return commit + (f"+{hashlib.sha256(difference).hexdigest()[:12]}" if difference else "")


def read_results(path: Path) -> list[dict[str, Any]]:
    """Lines of a results file, without those that were cut off. Empty where there is no file."""
    results = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            results.append(json.loads(line))
    return results


def is_of(result: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
    """Whether a result belongs to these sources, this Python and these options."""
    return all(result[name] == value for name, value in key.items())


def order_files(files: Iterable[str], results: Iterable[Mapping[str, Any]], key: Mapping[str, Any]) -> list[str]:
    """Chooses the files to run and puts those first that failed when they ran last.

    Args:
      files: Files with slow tests.
      results: Earlier results, oldest first.
      key: Sources and options on which a passed file need not run again. Empty to run all files.

    Example:
      >>> passed, failed = {"file": "a", "passed": True, "sources": "1"}, {"file": "c", "passed": False, "sources": "1"}
      >>> order_files("abc", [passed, failed], {"sources": "1"})
      ['c', 'b']
    """
    latest = {result["file"]: result for result in results}
    has_passed = lambda file: file in latest and latest[file]["passed"] and bool(key) and is_of(latest[file], key)
    has_failed = lambda file: file in latest and not latest[file]["passed"]
    return sorted((file for file in files if not has_passed(file)), key=lambda file: not has_failed(file))


def run_file(file: str, more: Sequence[str], folder: Path, seconds: float = SECONDS_OF_A_FILE) -> dict[str, Any]:
    """Runs the slow tests of one file.

    Args:
      file: Path of the file in the repository.
      more: Further options of pytest.
      folder: Folder for the output, which goes to a file with the name of the test file.
      seconds: Time after which the process is ended.

    Returns:
      `file`, `passed`, `seconds`, `counts` (outcome -> number of tests), `failures` (names of tests) and `end` (what
      ended the process, if it was not its last test).
    """
    output, report = (folder / (file.replace("/", "-") + ending) for ending in (".txt", ".xml"))
    report.unlink(missing_ok=True)
    command, begin = [*PYTEST, f"--junitxml={report}", "-v", *more, file], time.monotonic()
    with output.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )  # fmt: skip
        try:
            code, end = process.wait(seconds), ""
        except subprocess.TimeoutExpired:
            code, end = None, f"ended after {seconds:.0f} s"
        finally:  # With the processes that its tests have started, also where this one is interrupted.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code is not None and code < 0:
        end = f"died of {signal.Signals(-code).name}"
    elif code not in (None, 0, 1):
        end = f"pytest ended with code {code}"
    counts, failures = read_report(report)
    result = {"file": file, "passed": code == 0, "seconds": round(time.monotonic() - begin, 1)}
    return {**result, "counts": counts, "failures": failures, "end": end, "output": str(output)}


def read_report(path: Path) -> tuple[dict[str, int], list[str]]:
    """Counts outcomes in a JUnit report of pytest and names the tests that failed. Empty where there is no report."""
    counts, failures = Counter[str](), list[str]()
    for test in ElementTree.parse(path).iter("testcase") if path.exists() else ():
        outcomes = {child.tag for child in test} & {"failure", "error", "skipped"}
        outcome = "failed" if outcomes - {"skipped"} else "skipped" if outcomes else "passed"
        counts[outcome] += 1
        if outcome == "failed":
            failures.append(test.get("name", ""))
    return dict(counts), failures


def describe_result(result: Mapping[str, Any]) -> str:
    """One line about a file.

    Example:
      >>> result = {"file": "a_test.py", "seconds": 7.2, "counts": {"passed": 2, "failed": 1}, "failures": ["test_x"]}
      >>> describe_result({**result, "end": "", "output": "a.txt", "passed": False})
      'a_test.py: 2 passed, 1 failed, 7 s; FAILED test_x (a.txt)'
    """
    words = [f"{number} {outcome}" for outcome, number in result["counts"].items()] + [f"{result['seconds']:.0f} s"]
    line = f"{result['file']}: {', '.join(words)}"
    if result["passed"]:
        return line
    return f"{line}; FAILED {', '.join(filter(None, [*result['failures'], result['end']]))} ({result['output']})"


if __name__ == "__main__":
    sys.exit(main())
