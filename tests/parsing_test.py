"""Files are parsed in the readers that are listed here, and what a parser raises is turned into a line in one place."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "memjax"

PARSERS = (
    *("json.load", "json.loads", "csv.reader", "csv.DictReader", "pickle.load", "pickle.loads"),
    *("np.load", "np.fromfile", "np.memmap", "np.loadtxt", "np.genfromtxt", "np.lib.format.open_memmap"),
    *("gzip.open", "gzip.GzipFile", "gzip.decompress", "bz2.open", "bz2.BZ2File", "bz2.decompress"),
    *("lzma.open", "lzma.LZMAFile", "lzma.decompress", "zlib.decompress", "zlib.decompressobj"),
    *("zipfile.ZipFile", "tarfile.open", "tarfile.TarFile"),
)
"""Calls that parse a file or its content"""
BYTES = "bytes of a file"
"""Reading of bytes by `open(..., "rb")` or `read_bytes`"""

READERS: dict[str, set[str]] = {
    # Files that memjax has written, with a checksum.
    "durable_files.py": {"json.loads", BYTES},
    "data/checked_files.py": {"np.memmap", BYTES},
    "data/token_files.py": {"json.loads", "np.load", "np.fromfile", BYTES},
    "datastore/store.py": {"np.memmap", BYTES},
    "training/metrics.py": {"json.loads", BYTES},
    # Files of others.
    "data/array_files.py": {"np.load", "np.lib.format.open_memmap", BYTES},
    "data/added_tokens.py": {BYTES},
    "data/file_contents.py": {"gzip.open", "bz2.open", "lzma.open", "zipfile.ZipFile", "tarfile.open", BYTES},
    "data/python_sources.py": {BYTES},
    "data/record_files.py": {BYTES},
    "data/records.py": {"json.loads", "csv.reader", BYTES},
    "data/tokenizers.py": {BYTES},
    "interop/gguf_files.py": {BYTES},
    # Checksums of whole files, of which nothing is parsed.
    "data/content.py": {BYTES},
    # An array that is made, not read.
    "data/encoder_states.py": {"np.lib.format.open_memmap", BYTES},
    # Messages between processes of one run, and the parts of a compiled program.
    "planning/compile_ahead.py": {"json.loads"},
    "planning/plan_cases.py": {"json.loads"},
    "training/processes.py": {"json.loads"},
    "typing.py": {"json.loads"},
}
"""File of the product -> parsers that stand in it. Everything else reads through its functions."""

PARSE_ERRORS = {
    *("JSONDecodeError", "Error", "zlib.error", "BadGzipFile", "EOFError", "LZMAError", "BadZipFile", "TarError"),
    *("UnicodeDecodeError", "UnicodeError", "RecursionError", "ValueError", "KeyError", "TypeError", "AttributeError"),
    *("IndexError", "LookupError", "Exception", "BaseException", ""),
}
"""Names of the errors that `memjax.data.reader_errors.reading` turns into a line. '' is an `except` without a name."""
TRIALS: dict[str, set[str]] = {
    # Another form is tried, or the form is detected: the error is an answer.
    "data/file_contents.py": {"_is_decoded", "decode_bytes"},
    "data/records.py": {
        "_json_array",
        "_object_of_lines",
        "_is_open",
        "_has_table_quotes",
        "record_text",
        "first_field",
    },
    "data/tokenizers.py": {"write_then_rename"},  # a writer
}
"""Reader -> its functions that may catch an error of a parser themselves"""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def parsers_in(tree: ast.AST) -> set[str]:
    """Returns the parsers that a file names. `json.loads(json.dumps(value))` reads nothing."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    copies = [call.func for call in calls if call.args and ast.unparse(call.args[0]).startswith("json.dumps(")]
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node not in copies]
    names = {ast.unparse(node) for node in attributes} & {*PARSERS}
    reads_bytes = any(node.attr == "read_bytes" for node in attributes) or any(map(_opens_bytes, calls))
    return names | ({BYTES} if reads_bytes else set())


def _opens_bytes(call: ast.Call) -> bool:
    """Returns whether a call opens a file for reading bytes, whatever opens it."""
    name = ast.unparse(call.func)
    if name.rpartition(".")[2] not in ("open", "fdopen") or name in PARSERS:
        return False
    texts = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    texts += [word.value.value for word in call.keywords if isinstance(word.value, ast.Constant)]
    modes = [text for text in texts if isinstance(text, str) and 0 < len(text) <= 3 and set(text) <= set("rwxab+t")]
    return any("b" in mode and "r" in mode for mode in modes)


def caught_errors(function: ast.AST) -> Iterator[str]:
    """Yields the names of the errors that a function catches or suppresses, without their modules."""
    caught = [node.type for node in ast.walk(function) if isinstance(node, ast.ExceptHandler)]
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            caught += node.args
    for kind in caught:
        for part in kind.elts if isinstance(kind, ast.Tuple) else [kind]:
            name = ast.unparse(part) if part is not None else ""
            yield name if name == "zlib.error" else name.rpartition(".")[2]


def calls_reading(node: ast.AST) -> bool:
    return any(isinstance(call, ast.Call) and ast.unparse(call.func) == "reading" for call in ast.walk(node))


def catching_functions(tree: ast.AST) -> set[str]:
    """Returns the functions of a file that catch an error of a parser."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {function.name for function in functions if PARSE_ERRORS & set(caught_errors(function))}


def test_files_are_parsed_in_the_listed_readers_alone():
    parsers = {str(path.relative_to(PACKAGE)): parsers_in(ast.parse(path.read_text())) for path in modules()}
    assert {file: names for file, names in parsers.items() if names} == READERS


def test_no_reader_catches_what_the_wrapper_turns_into_a_line():
    catching = {}
    for path in modules():
        tree, name = ast.parse(path.read_text()), str(path.relative_to(PACKAGE))
        if name != "data/reader_errors.py" and calls_reading(tree):
            catching[name] = catching_functions(tree)
    assert len(catching) > 15
    assert {name: functions for name, functions in catching.items() if functions} == TRIALS


@pytest.mark.parametrize(
    "code, parsers",
    [
        ("json.loads(text)", {"json.loads"}),
        ("json.loads(json.dumps(value))", set()),
        ("with gzip.open(path, 'rb') as file: pass", {"gzip.open"}),
        ("open(path, 'rb')", {BYTES}),
        ("path.open('r+b')", {BYTES}),
        ("open(path, mode='rb')", {BYTES}),
        ("path.read_bytes()", {BYTES}),
        ("open(path, 'wb'); open(path, 'ab'); open(path); open('rb')", {BYTES}),
        ("open(path, 'wb'); path.open(); np.save(path, array)", set()),
        ("np.load(path)", {"np.load"}),
        ("opener = {'.gz': gzip.open}[ending]", {"gzip.open"}),
    ],
)
def test_the_rule_of_parsers_itself(code, parsers):
    assert parsers_in(ast.parse(code)) == parsers


@pytest.mark.parametrize(
    "handler, is_caught",
    [
        ("except ValueError: pass", True),
        ("except (OSError, json.JSONDecodeError): pass", True),
        ("except: pass", True),
        ("except zlib.error: pass", True),
        ("except UnreadableError: pass", False),
        ("except ImportError: pass", False),
        ("finally: pass", False),
    ],
)
def test_the_rule_of_handlers_itself(handler, is_caught):
    code = f"def read(path):\n  try:\n    with reading(path, 'a list'): return parse(path)\n  {handler}\n"
    assert calls_reading(ast.parse(code)) and catching_functions(ast.parse(code)) == ({"read"} if is_caught else set())
