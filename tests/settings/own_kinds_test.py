"""Settings of a user's own: from which places a name is imported, and what is refused in one line."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from memjax.cli import main
from memjax.config import EWC, Attention, Config, Data, Lifelong, Method, Source, TaskData
from memjax.settings import pointers
from memjax.settings.checks import check_fields
from memjax.settings.compatibility import describe_renamed_field
from memjax.settings.overrides import UsageError, apply_overrides
from memjax.settings.overrides import load_config as load_config_file
from memjax.training.runs import config_from_dict, config_to_dict, load_config

METHOD = """from dataclasses import dataclass

from memjax.config import Method


@dataclass(slots=True, kw_only=True)
class Mine(Method):
    rate: float = 0.5


class Bare(Method):
    rate: float = 0.5


mine = Mine()


def make():
    raise SystemExit("was called")
"""
CONFIG = """from memjax.config import Config, Lifelong, TaskData
from {module} import Mine


def get_config():
    return Config(lifelong=Lifelong(method=Mine(rate=0.25), tasks=(TaskData(name="a"),)))
"""


@dataclass(slots=True, kw_only=True)
class Compressive(Attention):
    """Settings with the name of a kind of memjax that has earlier names of fields."""

    memory: int = 3


@dataclass(slots=True, kw_only=True)
class Texts(Source):
    """A source."""


@pytest.fixture(autouse=True)
def own_process(monkeypatch, tmp_path):
    """Every test begins without modules of an earlier one, in an empty folder."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    pointers.OWN_FILES.clear()
    pointers.OWN_FOLDERS.clear()
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


def write(path: Path, text: str = METHOD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def saved(folder: Path, name: str, **fields) -> Path:
    """A run directory with a `config.json` whose method has a name."""
    value = config_to_dict(Config(lifelong=Lifelong(tasks=(TaskData(name="a"),))))
    value["lifelong"]["method"] = {"type": name, **fields}
    return write(folder / "config.json", json.dumps(value)).parent


REFUSED = {
    "os:system": "given a builtin_function_or_method, allowed: a subclass of memjax.config.Method, Attention or Source",
    "antigravity:fly": "given a module of Python, allowed: a subclass of memjax.config.Method",
    "subprocess:Popen": "given the class Popen, allowed: a subclass of memjax.config.Method",
    "memjax.cli.dispatch:main": "given a function, allowed: a subclass of",
    "memjax.config:EWC": "given the class EWC, allowed: a subclass of",
    "memjax.no_such:Mine": "given a module of memjax, allowed: a subclass of",
    "numpy:ndarray": "given the class ndarray, allowed: a subclass of",
    "mine:make": "given a function, allowed: a subclass of",
    "mine:mine": "given a Mine, allowed: a subclass of",
    "mine:Method": "given the class Method, allowed: a subclass of",
    "mine:Bare": "given the class Bare, allowed: a subclass of memjax.config.Method, Attention or Source, with @",
    "mine:Other": "given nothing of that name, allowed: a subclass of",
    "mine:Mine.make": "type: given 'mine:Mine.make', allowed: my_module:MyClass",
    "mine:": "type: given 'mine:', allowed: my_module:MyClass",
    ":Mine": "type: given ':Mine', allowed: my_module:MyClass",
    "../mine:Mine": "type: given '../mine:Mine', allowed: my_module:MyClass",
    "mine:Mine:x": "type: given 'mine:Mine:x', allowed: my_module:MyClass",
    "/etc/passwd:x": "type: given '/etc/passwd:x', allowed: my_module:MyClass",
    "here:Mine": "there is no installed module here, and none beside a config file that was named, allowed: --module h",
    "run.mine:Mine": "there is no installed module run, and none beside",
    "no_such_module:Mine": "there is no installed module no_such_module, and none beside",
    "__main__:Mine": "its class was defined in a notebook or script, allowed: the class in a file, as --module FILE",
}
"""Name in `config.json` -> what the line says."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_of_something_else_is_one_line_and_runs_nothing(name, tmp_path, monkeypatch, capsys):
    write(tmp_path / "installed" / "mine.py")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    monkeypatch.syspath_prepend(str(tmp_path))
    crash = "raise SystemExit('was imported')"
    write(tmp_path / "here.py", crash)
    run = saved(tmp_path / "run", name)
    write(run / "mine.py", crash)
    write(run / "__init__.py", crash)
    called = []
    monkeypatch.setattr(os, "system", called.append)
    assert main(["eval", "--run", str(run)]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"memjax eval: {run / 'config.json'}: ") and REFUSED[name] in line
    assert not called and "here" not in sys.modules and "antigravity" not in sys.modules


def test_nothing_is_imported_from_the_folder_of_a_run(tmp_path, monkeypatch):
    run = saved(tmp_path / "elsewhere" / "evil", "evil:Mine")
    write(run / "__init__.py")
    monkeypatch.syspath_prepend(str(run.parent))
    with pytest.raises(
        ValueError, match="evil:Mine: given .*__init__.py, a file of the run, allowed: a module outside"
    ):
        load_config(run)
    monkeypatch.syspath_prepend(str(run))
    write(run / "inside.py")
    with pytest.raises(ValueError, match="inside:Mine: given .*inside.py, a file of the run"):
        load_config(saved(run, "inside:Mine"))


@pytest.mark.parametrize("name, file", [("mine:Mine", "mine.py"), ("mine.methods:Mine", "mine/methods.py")])
def test_a_name_is_imported_from_an_installed_package(name, file, tmp_path, monkeypatch, capsys):
    path = write(tmp_path / "site" / file)
    write(path.parent / "__init__.py", "")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    config = load_config(saved(tmp_path / "run", name, rate=0.125))
    assert config.lifelong.method.rate == 0.125
    assert capsys.readouterr().err == f"{name} is imported from {path}\n"
    assert config_from_dict(config_to_dict(config)) == config
    assert config_to_dict(config)["lifelong"]["method"] == {"type": name, "rate": 0.125}


def test_a_config_file_imports_the_modules_of_its_folder(tmp_path, capsys):
    path = write(tmp_path / "mine" / "beside.py")
    file = write(tmp_path / "mine" / "config.py", CONFIG.format(module="beside"))
    config = load_config_file(str(file))
    assert capsys.readouterr().err == f"beside is imported from {path}\n"
    assert load_config(saved(tmp_path / "run", "beside:Mine", rate=0.25)) == config
    other = write(tmp_path / "mine" / "other.py")
    assert load_config(saved(tmp_path / "other", "other:Mine")).lifelong.method.rate == 0.5
    assert capsys.readouterr().err == f"other:Mine is imported from {other}\n"
    assert str(path.parent) not in sys.path


def test_a_class_of_a_config_file_has_its_name(tmp_path):
    text = METHOD + CONFIG.format(module="dataclasses").replace("import Mine", "import replace")
    config = load_config_file(str(write(tmp_path / "whole.py", text)))
    assert config_to_dict(config)["lifelong"]["method"]["type"] == "whole:Mine"
    assert config_from_dict(config_to_dict(config)) == config


def test_named_files_are_told_before_any_is_imported(tmp_path, capsys):
    first = write(tmp_path / "first.py", "import sys\nprint('first runs', file=sys.stderr)\n" + METHOD)
    second = write(tmp_path / "second.py", "import first")
    run = saved(tmp_path / "run", "first:Mine")
    assert main(["compare", str(run), "--module", str(first), "--module", str(second)]) == 2  # it is not finished
    told = [f"first is imported from {first}", f"second is imported from {second}", "first runs"]
    assert capsys.readouterr().err.splitlines()[:3] == told


MODULES = {
    "no_file.py": "given 'no_file.py', which does not exist, allowed: a Python file, as my_module.py",
    ".": "given '.', allowed: a Python file, as my_module.py",
    "text.txt": "given 'text.txt', allowed: a Python file, as my_module.py",
    "two words.py": "given 'two words.py', allowed: a Python file, as my_module.py",
    "json.py": "given 'json.py', the name of a module of Python, allowed: another file name",
    "jax.py": "given 'jax.py', the name of a module of ",
    "memjax.py": "given 'memjax.py', the name of a module of ",
    "wrong.py": "wrong.py, line 2: NameError: name 'x' is not defined",
    "broken.py": "broken.py, line 1: SyntaxError: ",
    "exits.py": "exits.py, line 1: SystemExit: 3",
    "needs.py": "needs.py, line 1: ModuleNotFoundError: No module named 'no_such_module'",
}
"""File of `--module` -> what the line says."""


@pytest.mark.parametrize("file", MODULES)
def test_a_file_that_is_no_module_is_one_line(file, tmp_path, capsys):
    texts = {
        "wrong.py": "\nx",
        "broken.py": "def",
        "exits.py": "raise SystemExit(3)",
        "needs.py": "import no_such_module",
    }
    if file not in ("no_file.py", "."):
        write(tmp_path / file, texts.get(file, ""))
    assert main(["eval", "--run", "run", "--module", file]) == 2
    assert MODULES[file] in capsys.readouterr().err.splitlines()[-1]


def test_a_class_of_a_notebook_is_found_in_a_named_file(tmp_path):
    pointers.import_files([str(write(tmp_path / "mine.py"))])
    assert load_config(saved(tmp_path / "run", "__main__:Mine", rate=0.75)).lifelong.method.rate == 0.75


def test_the_command_finds_nothing_in_the_current_folder(tmp_path):
    write(tmp_path / "here.py", "raise SystemExit('was imported')")
    run = saved(tmp_path / "run", "here:Mine")
    command = [sys.executable, "-m", "memjax", "eval", "--run", str(run)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), str(tmp_path)])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 2 and "there is no installed module here" in done.stderr.splitlines()[-1]


def test_own_settings_stand_only_where_their_base_class_does():
    check_fields(Config(data=Data(source=Texts())))
    config = Config()
    config.model.attention = Texts()
    with pytest.raises(ValueError, match="model.attention: given 'Texts', allowed: FullAttention or .* or Attention"):
        check_fields(config)


def test_a_class_inside_of_a_function_has_no_name():
    @dataclass(slots=True, kw_only=True)
    class Inner(Method):
        pass

    with pytest.raises(
        ValueError, match="Inner: given a class inside of .*, allowed: one at the top level of its module"
    ):
        config_to_dict(Inner())


def test_own_settings_with_a_name_of_memjax_have_fields_of_their_own():
    value = config_to_dict(Compressive(memory=4))
    assert value == {"type": f"{__name__}:Compressive", "memory": 4}
    assert config_from_dict(value) == Compressive(memory=4)
    assert not describe_renamed_field(Compressive, "memory")


def test_options_change_the_fields_of_own_settings():
    config = Config(data=Data(source=Texts()))
    config.model.attention = Compressive()
    changed = apply_overrides(config, ["--model.attention.memory", "7"])
    assert changed.model.attention == Compressive(memory=7)
    with pytest.raises(UsageError, match="model.attention.memory: given 'many', allowed: an integer"):
        apply_overrides(config, ["--model.attention.memory", "many"])


@pytest.mark.parametrize(
    "parts, line",
    [
        ({"method": EWC()}, "lifelong: given None, allowed: tasks one after the other"),
        ({"method": EWC}, "method: given 'EWC', allowed: settings, an instance of Method"),
        ({"memory": EWC()}, "memory: given 'EWC', allowed: settings, an instance of Attention"),
        (
            {"method": "ewc"},
            "method: given 'ewc', allowed: .*; a name for memjax.*named_methods.with_method$",
        ),
        ({"memory": "lstm"}, "memory: given 'lstm', allowed: .*; a name for memjax.*named_memories.with_memory_kind$"),
        ({"source": "novel.txt"}, "source: given 'novel.txt', allowed: settings, an instance of Source"),
    ],
)
def test_parts_of_another_kind_are_refused(parts, line):
    with pytest.raises(ValueError, match=line):
        Config().with_parts(**parts)
