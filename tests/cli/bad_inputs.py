"""Bad files, each with what its line has to name: configs, data and damaged runs. `mistakes_test` tries them all."""

import shutil
from collections.abc import Callable
from pathlib import Path

from memjax.durable_files import read_json, write_json

RETURN = "from memjax.config import *\ndef get_config():\n    return "
CHANGED = "from memjax.config import *\n\ndef get_config():\n    config = Config()\n    {}\n    return config\n"
OWN = {
    "no_function": ("x = 1\n", "has no function get_config(variant)"),
    "syntax": ("def get_config(:\n    pass\n", "line 1: SyntaxError: invalid syntax"),
    "missing_import": (
        "from memjax.config import *\nimport numpi\ndef get_config(): return Config()\n",
        "line 2: ModuleNotFoundError: No",
    ),
    "no_name": (
        "from memjax.config import *\nfrom memjax.config import Memorising\ndef get_config(): return Config()\n",
        "line 2: ImportError: cannot import name",
    ),
    "wrong_field": (
        "from memjax.config import *\n\ndef get_config():\n    return Config(model=Model(dimm=8))\n",
        "line 4: ModelSettings has no field",
    ),
    "wrong_attribute": (
        CHANGED.format("config.model.dimm = 8"),
        "line 5: ModelSettings has no",
    ),
    "wrong_section": (
        CHANGED.format("config.modell.dim = 8"),
        "line 5: Config has no field",
    ),
    "wrong_name": (
        "from memjax.config import *\n\ndef get_config():\n    return Config(model=Modle())\n",
        "line 4: NameError: name 'Modle' is",
    ),
    "raises": ("def get_config():\n    raise KeyError('nothing')\n", "line 2: KeyError: 'nothing'"),
    "zero": ("def get_config():\n    return 1 / 0\n", "line 2: ZeroDivisionError: division by zero"),
    "returns_none": (
        "from memjax.config import *\ndef get_config():\n    Config()\n",
        "line 2: get_config gave NoneType",
    ),
    "returns_dict": ("def get_config():\n    return {'model': 8}\n", "line 1: get_config gave dict"),
    "two_arguments": (
        "from memjax.config import *\ndef get_config(variant, other):\n    return Config()\n",
        "line 2: given get_config(variant",
    ),
    "not_callable": ("get_config = 8\n", "has no function get_config(variant)"),
    "str_for_int": (RETURN + "Config(model=Model(dim='8'))\n", "line 2: model.dim: given '8'"),
    "float_for_int": (RETURN + "Config(model=Model(dim=8.5))\n", "line 2: model.dim: given 8.5"),
    "bool_for_int": (RETURN + "Config(model=Model(dim=True))\n", "line 2: model.dim: given True"),
    "int_for_str": (RETURN + "Config(name=8)\n", "line 2: name: given 8, allowed"),
    "str_for_part": (RETURN + "Config(model='large')\n", "line 2: model: given 'large'"),
    "class_for_part": (RETURN + "Config(model=Model)\n", "line 2: model: given 'the class"),
    "part_elsewhere": (RETURN + "Config(model=Model(attention=Bytes()))\n", "line 2: model.attention: given"),
    "int_for_tuple": (
        RETURN + "Config(model=Model(attention=Memorizing(layers_with_memory=-1)))\n",
        "line 2: model.attention.layers_with_memory",
    ),
    "none_for_int": (RETURN + "Config(model=Model(dim=None))\n", "line 2: model.dim: given None"),
    "str_for_tuple": (
        RETURN + "Config(training=Training(frozen_parameters='head'))\n",
        "line 2: training.frozen_parameters: given",
    ),
    "exits": ("import sys\ndef get_config():\n    sys.exit('nothing to do')\n", "line 3: SystemExit: nothing to do"),
    "exits_at_import": ("raise SystemExit(3)\n", "line 1: SystemExit: 3"),
    "recursion": ("def get_config():\n    return get_config()\n", "line 2: RecursionError: maximum"),
    "asserts": ("def get_config():\n    assert 1 == 2\n", "line 2: AssertionError"),
    "long": (
        "from memjax.config import *\ndef get_config():\n    raise ValueError('one\\ntwo\\nthree')\n",
        "line 3: ValueError: one two three",
    ),
    "nan": (
        RETURN + "Config(training=Training(schedule=Schedule(learning_rate=float('nan'))))\n",
        "line 2: training.schedule.learning_rate",
    ),
    "dict_for_part": (RETURN + "Config(data={'rows': 8})\n", "line 2: data: given {'rows': 8}"),
    "list_of_parts": (RETURN + "Config(evaluations=(8,))\n", "line 2: evaluations: given (8,)"),
}
"""config files: text, and what is said of it after its name"""

SOURCES = (
    ('JsonLines(path="bad.jsonl")', "Bytes()", "path: bad.jsonl, row 2 is not JSON (Expecting property name"),
    ('JsonLines(path="nofield.jsonl")', "Bytes()", "field: nofield.jsonl, row 1 has no text under 'text'"),
    ('JsonLines(path="numbers.jsonl")', "Bytes()", "field: numbers.jsonl, row 1 has no text under 'text'"),
    ('JsonLines(path="list.jsonl")', "Bytes()", "field: list.jsonl, row 1 has no text under 'text'"),
    ('JsonLines(path="nowhere.jsonl")', "Bytes()", "path: nowhere.jsonl does not exist and matches no file"),
    ('JsonLines(path="bin.txt")', "Bytes()", "path: bin.txt is not text; give files with text"),
    ('Enwik8(path="nowhere")', "Bytes()", "path: nowhere is not a file; check the path"),
    ('Enwik8(path="empty.txt")', "Bytes()", "path: empty.txt is empty"),
    ('WikiText(path="nowhere")', "Words()", "path: nowhere has none of train.txt, train.txt.xz"),
    ('Novels(path="nowhere")', "Bytes()", "path: nowhere does not exist"),
    ('Novels(path="x.txt.gz")', "Bytes()", "path: x.txt.gz cannot be unpacked (its content is not that of a .gz"),
    ('TextFiles(path="x.txt.gz")', "Bytes()", "path: x.txt.gz cannot be unpacked (its content is not that of a .gz"),
    ('TextFiles(path="bin.txt")', "Bytes()", "path: bin.txt is not text; give files with text"),
    ('Directories(path="nowhere")', "Bytes()", "path: nowhere is not a folder"),
    ('Mnist(path="nowhere")', "Bytes()", "data.source.path: given 'nowhere', allowed"),
    ('Mnist(path="img")', "Bytes()", "img/train-images-idx3-ubyte: not an idx file of images"),
    ('CmuDog(path="nowhere")', "Bytes()", "data.source.path: nowhere has neither WikiData nor"),
    ('Glue(path="nowhere")', "Bytes()", "data.source: given 'Glue', allowed"),
    ('ParallelText(path="nowhere")', "Bytes()", "data.source: given 'ParallelText', allowed"),
    ('TextFiles(path="texts")', 'SentencePiece(model="nowhere.model")', "tokenizer: nowhere.model is not a file"),
    ('TextFiles(path="texts")', "SentencePiece(vocab_size=1)", "vocab_size: 1"),
    ('TextFiles(path="latin.txt")', "Bytes()", "path: latin.txt is not UTF-8 at byte 3; as latin-1 it reads 'café "),
    ('TextFiles(path="texts", encoding="latinn")', "Bytes()", "data.source.encoding: given 'latinn', allowed"),
    ('TextFiles(path="blank.txt")', "SentencePiece(vocab_size=300)", "texts: no text but white space"),
    ('TextFiles(path="texts")', 'BytePairs(path="nowhere")', "tokenizer: given nowhere, allowed"),
    ('TextFiles(path="texts")', 'BytePairs(path="tok")', "tokenizer: given tok, allowed"),
    ('TextFiles(path="texts")', 'WordPiece(vocab="nowhere")', "vocab: nowhere is not a file, allowed"),
    ('TextFiles(path="texts")', 'WordPiece(vocab="vocab.txt")', "path: vocab.txt is empty"),
    ("Sorting(length=0)", "Bytes()", "data.source.length: given 0, allowed"),
)
"""source, tokenizer and what is said"""

DAMAGED = (
    ("not_json", "eval", "runs/{run}/config.json: damaged (Expecting"),
    ("half_json", "eval", "runs/{run}/config.json: damaged ("),
    ("empty_json", "eval", "runs/{run}/config.json: damaged (Expecting"),
    ("list_json", "eval", "runs/{run}/config.json: config: given tuple"),
    ("number_json", "eval", "runs/{run}/config.json: config: given int"),
    ("binary_json", "eval", "runs/{run}/config.json: damaged ('utf-8'"),
    ("unknown_type", "eval", "runs/{run}/config.json: config: type"),
    ("no_type", "eval", "runs/{run}/config.json: config: type None is not"),
    ("unknown_field", "eval", "runs/{run}/config.json: config: Model.dimm"),
    ("wrong_value", "eval", "runs/{run}/config.json: model.dim: given"),
    ("wrong_part", "eval", "runs/{run}/config.json: model: given 'Bytes'"),
    ("other_root", "eval", "runs/{run}/config.json: config: given Bytes"),
    ("null_part", "eval", "runs/{run}/config.json: model: given None"),
    ("no_checkpoint", "eval", "runs/{run}/checkpoints: has no checkpoint"),
    ("cut_manifest", "eval", "runs/{run}/checkpoints: none of the"),
    ("no_arrays", "eval", "runs/{run}/checkpoints: none of the"),
    ("config_dir", "eval", "runs/{run}/config.json: Is a directory"),
    ("not_json", "generate", "runs/{run}/config.json: damaged (Expecting"),
    ("half_json", "generate", "runs/{run}/config.json: damaged"),
    ("wrong_value", "generate", "runs/{run}/config.json: model.dim: given"),
    ("no_checkpoint", "generate", "runs/{run}/checkpoints: has no"),
    ("not_json", "compare", "runs/{run}/config.json: damaged (Expecting"),
    ("half_json", "compare", "runs/{run}/config.json: damaged"),
    ("wrong_value", "compare", "runs/{run}/config.json: model.dim: given"),
    ("no_checkpoint", "compare", "runs/{run}: not finished, allowed"),
    ("torn_versions", "compare", "runs/{run}: not finished, allowed"),
    ("torn_finished", "compare", "runs/{run}/finished.json: damaged"),
    ("finished_list", "compare", "runs/{run}/finished.json: damaged (it"),
    ("finished_empty", "compare", "runs/{run}/finished.json: damaged (it"),
    ("not_json", "train", "runs/{run}/config.json: damaged (Expecting"),
    ("half_json", "train", "runs/{run}/config.json: damaged ("),
    ("wrong_value", "train", "runs/{run}/config.json: model.dim: given"),
    ("torn_versions", "train", "runs/{run}/versions.json: damaged"),
    ("torn_finished", "train", "runs/{run}/finished.json: damaged"),
    ("finished_list", "train", "runs/{run}/finished.json: damaged (it"),
    ("finished_empty", "train", "runs/{run}/finished.json: damaged (it"),
)
"""damage, verb and what is said; `{run}` is the name of the run"""

FILES = {
    "binary.py": b"\xff\xfe\x00x",
    "broken.json": b"{}",
    "not_utf8.txt": b"good\xff bad",
    "empty.txt": b"",
    "latin.txt": b"caf\xe9 " * 300,
    "blank.txt": b" \n" * 300,
    "bin.txt": bytes(range(256)),
    "own.csv": b"good,nice\nbad,poor\n" * 4,
    "w/own.csv": b"good,nice\nbad,poor\n" * 4,
    "header.csv": b"class,title,text\n",
    "texts_first.csv": b"one,a\ntwo,b\nthree,c\nfour,d\n",
    "bad.jsonl": b'{"text": "x"}\n{not json\n',
    "nofield.jsonl": b'{"body": "x"}\n' * 20,
    "numbers.jsonl": b'{"text": 3}\n' * 20,
    "list.jsonl": b"[1]\n" * 20,
    "notmodel.model": b"nothing",
    "vocab.txt": b"",
    "img/train-images-idx3-ubyte": b"abc",
    "wt/train.txt": b"a b c\n",
    "x.txt.gz": b"not gz",
    "x.txt.xz": b"not xz",
    "x.tar": b"not tar",
    "tok/nothing": b"",
    "w/nothing": b"",
    "w2/config.json": b"{",
    "w3/config.json": b'{"model_type": "llama"}',
    "w4/config.json": b'{"model_type": "gpt2"}',
    "w4/model.safetensors": b"abc",
    "w5/config.json": b'{"model_type": "mixtral", "num_local_experts": 8}',
    "w5/model.safetensors": b"\x02\x00\x00\x00\x00\x00\x00\x00{}",
    "s/header.json": b"{",
}
"""what lies beside the run"""
SOURCE = """
from memjax.durable_files import read_json, write_json
from memjax.config import *
def get_config():
    model = Model(dim=8, num_layers=1, num_heads=2)
    data = Data(source={}, tokenizer={}, cache_dir="cache", batch_size=2, segment_length=8)
    return Config(name="new", model=model, data=data, training=Training(steps=2, log_every=1))
"""
PAIRS = """
from memjax.config import *
def get_config():
    model = EncoderDecoder(dim=8, num_layers=1, num_heads=2)
    data = Data(source=NumberWords(num_documents=16), tokenizer=Bytes(), cache_dir="c", batch_size=2, segment_length=8)
    return Config(name="pairs", model=model, data=data, training=Training(steps=2, log_every=1))
"""


def _write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes(content)


def _edit(change: Callable[[dict], object]) -> Callable[[Path], object]:
    def apply(run: Path) -> None:
        config = read_json(run / "config.json")
        change(config)
        write_json(run / "config.json", config)

    return apply


def _unfinished(pattern: str, change: Callable[[Path], object]) -> Callable[[Path], object]:
    def apply(run: Path) -> None:
        (run / "finished.json").unlink()
        for path in sorted(run.glob(pattern)):
            change(path)

    return apply


def _cut(path: Path) -> None:
    if path.is_file():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _folder_for_file(run: Path) -> None:
    (run / "config.json").unlink()
    (run / "config.json").mkdir()


CHANGES: dict[str, Callable[[Path], object]] = {
    "not_json": _write("config.json", b"{not json"),
    "half_json": lambda run: _cut(run / "config.json"),
    "empty_json": _write("config.json", b""),
    "list_json": _write("config.json", b"[1]"),
    "number_json": _write("config.json", b"3"),
    "binary_json": _write("config.json", b"\xff\xfe\x00"),
    "unknown_type": _edit(lambda config: config["model"].update(type="Modle")),
    "no_type": _edit(lambda config: config["model"].pop("type")),
    "unknown_field": _edit(lambda config: config["model"].update(dimm=3)),
    "wrong_value": _edit(lambda config: config["model"].update(dim="8")),
    "wrong_part": _edit(lambda config: config.update(model={"type": "Bytes"})),
    "other_root": _write("config.json", b'{"type": "Bytes"}'),
    "null_part": _edit(lambda config: config.update(model=None)),
    "config_dir": _folder_for_file,
    "no_checkpoint": _unfinished("checkpoints", shutil.rmtree),
    "cut_manifest": _unfinished("checkpoints/*/manifest/metadata", _cut),
    "cut_arrays": _unfinished("checkpoints/*/state/**/d/*", _cut),
    "no_arrays": _unfinished("checkpoints/*/state", shutil.rmtree),
    "torn_versions": _unfinished("versions.json", _cut),
    "torn_finished": lambda run: _cut(run / "finished.json"),
    "finished_list": _write("finished.json", b"[]"),
    "finished_empty": _write("finished.json", b"{}"),
}
"""damage -> what it does to a run"""


TYPED = ("wrong_value", "wrong_part", "null_part")
"""damages that the type checker of the tests, which checks the fields of settings, would see first"""


def write_inputs(folder: Path) -> None:
    """Lays the files and folders that the commands name beside a finished run `runs/tiny_default`."""
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    for name, (text, _) in OWN.items():
        (folder / f"own_{name}.py").write_text(text)
    for number, (source, tokenizer, _) in enumerate(SOURCES):
        (folder / f"source_{number}.py").write_text(SOURCE.format(source, tokenizer))
    (folder / "pairs.py").write_text(PAIRS)


def damage(folder: Path, kind: str, name: str) -> None:
    """Makes the run `runs/NAME`, a damaged copy of `runs/tiny_default`."""
    run = folder / "runs" / name
    shutil.copytree(folder / "runs" / "tiny_default", run)
    _edit(lambda config: config.update(name=name))(run)
    CHANGES[kind](run)
