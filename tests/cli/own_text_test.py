"""One's own text: what is chosen for it, and that it trains."""

import gzip
import json

import pytest

from memjax.cli import main
from memjax.cli.own_text import SIZES, text_config
from memjax.config import JsonLines, Memorizing, TextFiles
from memjax.settings.checks import validate

TEXT = "".join(f"line {number}: a sentence that goes on for a while.\n" for number in range(1500))


@pytest.mark.parametrize("size, variant", [(1_000, "tiny"), (60_000, "default"), (5_000_000, "medium")])
def test_the_size_of_the_text_chooses(tmp_path, size, variant):
    file = tmp_path / "novel.part.txt"
    file.write_text((TEXT * (size // len(TEXT) + 1))[:size])
    config, why = text_config(file)
    validate(config)
    assert config.name == "text_novel" and isinstance(config.data.source, TextFiles)
    assert f"variant {variant} (chosen by that size)" in why and "1 file" in why and "memory of" in why
    assert size < SIZES[variant]


def test_folders_globs_json_lines_and_other_configs(tmp_path):
    folder = tmp_path / "books"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(TEXT)
    assert "3 files" in text_config(folder)[1]
    assert text_config(f"{folder}/*.txt")[0].name == "text_texts"
    lines = tmp_path / "some.jsonl"
    lines.write_text(json.dumps({"text": TEXT}) + "\n")
    assert isinstance(text_config(lines)[0].data.source, JsonLines)
    config, why = text_config(folder, "memorizing_python", "smoke")
    assert config.name == "memorizing_python_books_smoke" and config.data.source.path == str(folder)
    assert "as asked" in why


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--text", "nowhere.txt"], "--text: nowhere.txt does not exist"),
        (["--text", "a.txt", "--config", "key_value_recall"], "--text: given with --config key_value_recall"),
        (["--text", "a.txt", "--variant", "mediu"], "did you mean medium?"),
        (["--text", "empty.txt"], "empty.txt"),
        (["--text", ""], "--text: given '', allowed"),
        (["--text", "a.txt", "--memory-kind", "memorising"], "--memory-kind: given 'memorising', allowed: none, "),
        (["--text", "a.txt", "--method", "ewc"], "--method: given ewc with --text, allowed: with --tasks FILES"),
        (["--text", "a.txt", "--variant", "rfa"], "no_memory, smoke; rfa is a name for --memory-kind rfa"),
        (["--text", "a.txt", "--config", "lstm"], "; lstm is a name for --memory-kind lstm"),
        (["--text", "a.txt", "--memory", "64"], "--memory: no such option of memjax train, allowed: --memory-kind"),
        (["--text", "a.txt", "--memory-kind", "spalm"], "data.neighbors_dir: given '', allowed: a folder with neigh"),
        (["--run", "runs/a", "--memory-kind", "rfa"], "--run: given with --memory-kind, allowed: one of the two"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, capsys, arguments, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "empty.txt").write_text("")
    assert main(["train", *arguments]) == 2
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_a_memory_by_name(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    config, why = text_config(tmp_path / "a.txt", memory_kind="memorizing")
    assert config.name == "text_a_memorizing" and isinstance(config.model.attention, Memorizing)
    assert "memory memorizing (keys and values of many tokens" in why
    linear, why = text_config(tmp_path / "a.txt", memory_kind="linear")
    assert linear.data.protocol == "contiguous" and "linear forgets nothing, records" in why
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    linear, why = text_config(tmp_path / "a.jsonl", memory_kind="linear")
    assert linear.data.protocol == linear.evaluation.protocol == "separate" and "forgets" not in why
    assert "memjax datastore build --run RUN" in text_config(tmp_path / "a.txt", memory_kind="knn_lm")[1]


@pytest.mark.slow
def test_three_files_train_and_generate_from_the_command_line(tmp_path, monkeypatch, capsys):
    """So few files that a split would have none: the end of each is held out."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    for number in range(3):
        (tmp_path / "books" / f"{number}.txt").write_text(TEXT)
    cache = ["--data.cache-dir", "cache"]
    assert main(["train", "--text", "books", "--variant", "smoke", *cache]) == 0
    assert "variant smoke (as asked)" in capsys.readouterr().err
    assert main(["data", "--text", "books", "--variant", "smoke", *cache]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    documents, sizes = zip(
        *((int(line.split()[1]), int(line.split()[5].replace(",", ""))) for line in lines), strict=True
    )
    assert documents == (3, 3, 3) and sum(sizes) == 3 * len(TEXT)
    assert main(["generate", "--run", "runs/text_books_smoke", "--max-tokens", "4"]) == 0


@pytest.mark.parametrize("size, chosen", [(20_000, "tiny"), (200_000, "default")])
def test_without_a_memory_it_is_the_config_of_that_size(tmp_path, size, chosen):
    (tmp_path / "text.txt").write_text("a" * size)
    whole, why = text_config(tmp_path / "text.txt")
    alone, why_alone = text_config(tmp_path / "text.txt", variant="no_memory")
    assert f"variant {chosen} (chosen by that size)" in why and f"variant {chosen} (chosen by that size)" in why_alone
    assert "with no memory" in why_alone and alone.name == f"{whole.name}_no_memory"
    assert alone.model == whole.model.with_memory(0) and alone.data == whole.data and alone.training == whole.training


def test_configs_lists_every_config_with_a_line(capsys):
    assert main(["configs", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["own_text"]["variants"]["tiny"].startswith("less than 50 kB")
    assert all(config["about"].endswith(".") and config["variants"] for config in facts.values())
    assert main(["configs", "own_text"]) == 0
    assert "    no_memory  `default` without memory: each segment alone" in capsys.readouterr().out
    assert main(["configs", "own_txt"]) == 2
    assert "did you mean own_text?" in capsys.readouterr().err


@pytest.mark.parametrize("size", [0, 1, 3, 20, 100])
def test_too_small_a_text_is_refused_before_a_tokenizer_is_trained(tmp_path, monkeypatch, capsys, size):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(("a b " * 50)[:size])
    assert main(["train", "--text", "a.txt", "--data.cache-dir", "cache"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "a.txt" in line and ("allowed: 8 or more" in line or "give a" in line)
    assert not (tmp_path / "cache").exists() and not (tmp_path / "runs").exists()


LINES_CONFIG = """
from memjax.config import JsonLines
from memjax.settings.overrides import load_config
def get_config(variant=""):
    config = load_config("own_text")
    config.data.source = JsonLines()
    return config
"""


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("size", [1, 3, 20, 100])
def test_so_it_is_where_a_config_names_the_text(tmp_path, monkeypatch, capsys, name, size):
    monkeypatch.chdir(tmp_path)
    text = ("a b " * 50)[:size]
    (tmp_path / name).write_text(text if name == "a.txt" else json.dumps({"text": text}))
    (tmp_path / "lines.py").write_text(LINES_CONFIG)
    config = "own_text" if name == "a.txt" else "lines.py"
    assert main(["train", "--config", config, "--data.source.path", name, "--data.cache-dir", "cache"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert (f"--data.source.path: {name} has " in line and " or more, one for every row" in line) or "give a la" in line
    assert not (tmp_path / "cache").exists() and not (tmp_path / "runs").exists()


FILES = {
    "latin.txt": (TEXT.replace("line", "líne").encode("latin-1"), ["--encoding", "latin-1"], TextFiles),
    "wide.txt": (TEXT.encode("utf-16"), ["--encoding", "utf-16"], TextFiles),
    "lines.jsonl": (
        "".join(json.dumps({"text": f"{TEXT[:300]} {n}"}) + "\n" for n in range(60)).encode(),
        [],
        JsonLines,
    ),
    "table.csv": (f'id,text\n1,"{TEXT}"\n2,"{TEXT}"\n'.encode(), [], JsonLines),
    "array.json": (json.dumps([{"text": TEXT}] * 3).encode(), [], JsonLines),
    "packed.txt.gz": (gzip.compress(TEXT.encode()), [], TextFiles),
    "one_line.txt": (TEXT.replace("\n", " ").encode(), [], TextFiles),
    "one_letter.txt": (b"a" * 5000, [], TextFiles),
    "hebrew.txt": (("שלום עולם ומלואו\n" * 300).encode(), [], TextFiles),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_every_kind_are_prepared(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    content, options, kind = FILES[name]
    (tmp_path / name).write_bytes(content)
    arguments = ["--text", name, *options, "--variant", "smoke", "--data.cache-dir", "cache"]
    assert main(["data", *arguments]) == 0
    said = capsys.readouterr()
    assert kind.__name__ in said.out and "train" in said.out
    if options:
        assert main(["data", "--text", name]) == 2
        assert f"--encoding {options[1]}" in capsys.readouterr().err


def test_other_files_of_a_folder_are_skipped_as_the_options_say(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    for number in range(3):
        (tmp_path / "books" / f"{number}.txt").write_text(TEXT)
    (tmp_path / "books" / "cover.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    (tmp_path / "books" / "empty.txt").write_bytes(b"")
    arguments = ["data", "--text", "books", "--variant", "smoke", "--data.cache-dir", "cache"]
    assert main(arguments) == 0
    assert "2 of 5 files skipped: 1 picture (PNG), 1 empty" in capsys.readouterr().err
    assert main([*arguments, "--strict"]) == 2
    assert "books/cover.png is a picture (PNG)" in capsys.readouterr().err
    (tmp_path / "books" / "cover.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(50_000))
    assert main(arguments) == 2
    assert "of the bytes; more than 5% needs --skip" in capsys.readouterr().err
    assert main([*arguments, "--skip"]) == 0
