"""No text claims what its numbers do not carry: verdicts are filled in from runs, and all other sentences describe."""

import dataclasses
import re

import pytest

from memjax.report.verdicts import compare_pairs, withhold_verdict
from tools.recipes import RECIPES
from tools.results import claims, pages, verdicts
from tools.results.ledger import Book
from tools.texts import known

INVENTED = (
    "OML-ER is ahead of replay.",
    "MbPA++ beats plain training on five sets.",
    "With a store the model is better than without.",
    "Slots are no gain on text.",
    "Meta-MbPA falls far behind MbPA++, and so does OML-ER.",
    "A compressed memory helps on long texts.",
    "ELLE is behind replay: a larger model reads less.",
    "LAMOL is level with as many real examples.",
    "Dense mixing, Logit-KD and SI are above plain training.",
    "Memorizing gains 0.04 bits over its cache.",
    "The cache is worth trying first.",
    "Of the methods, columns are best.",
    "A tenth of the memory loses much.",
    "How often rows are replayed makes no difference.",
    "What a memory is for. Product keys outperform a network of equal cost.",
    "| text | Transformer-XL | hard to beat |",
    "GEM outdoes A-GEM, which profits from more rows.",
    "MbPA++ has a higher accuracy than OML-ER.",
    "LAMOL ended higher than replay in both seeds.",
    "Replay forgets less than plain training.",
    "OML-ER had 3 points more than replay over 6 orders, settings not searched.",
    "MbPA++ is the strongest of the methods.",
    "A-GEM matches MbPA++.",
    "Meta-MbPA is clearly higher than OML-ER.",
    "A memory reduces the perplexity.",
    "EWC does not work here.",
    "OML-ER needs fewer texts.",
    "The settings that are best on validation make OML-ER better than replay.",
    "<!-- result: which -->RFA is worse than softmax<!-- end -->",
)
DESCRIPTIONS = (
    "Each row was run in 6 orders, and the rates are those of the search.",
    "Which tokens does it help?",
    "`--memory off` says how much the memory helps.",
    "Lower is better. The tokenizer is byte-level, and reading ahead is level 1.",
    "Neighbours, best first. A memory stays behind, named in one line.",
    "Linear states decode 13 times as fast at 4,096 tokens.",
    "Python, bits per byte: -0.038 ± 0.003 (6 seeds, gain) against a cache of as many bytes",
    "```\nthis code is better\n``` and `what is better`",
)


@pytest.mark.parametrize("text", INVENTED)
def test_an_invented_claim_is_found(text):
    assert len(claims.find_claims(text)) == 1


@pytest.mark.parametrize("text", DESCRIPTIONS)
def test_a_description_is_no_claim(text):
    assert claims.find_claims(text) == []


@pytest.fixture(scope="module")
def texts():
    """Names and texts of all that describes methods and memories."""
    return list(claims.describe_all())


def test_no_text_claims_by_hand(texts):
    assert claims.check_texts(texts) == []


def test_all_kinds_of_texts_are_read(texts):
    names = {name for name, _ in texts}
    wanted = {"README.md", "docs/papers.md", "docs/guides/lifelong.md", "configs/sorting.py", "colabs/lifelong.py"}
    wanted |= {
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "memjax/memory/spalm.py",
        "tools/texts/pictures.py",
        "recipe lifelong_meta",
        "survey",
    }
    assert wanted <= names and any(name.startswith("measurement ") for name in names)
    assert all(text.strip() for name, text in texts if name in wanted)


def test_an_invented_claim_fails_in_every_kind_of_text(tmp_path, monkeypatch):
    claim = "Replay is ahead of plain training."
    files = {
        "README.md": claim,
        "docs/guides/one.md": claim,
        "configs/one.py": f'"""One.\n\n{claim}\n"""\n',
        "colabs/one.py": f"# %% [markdown]\n# {claim}\n",
        "memjax/memory/one.py": f'class One:\n    field: int\n    """{claim}"""\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(claims, "TOP", tmp_path)
    recipe = dataclasses.replace(RECIPES["lifelong_mnist"], findings=claim)
    monkeypatch.setattr(claims, "RECIPES", {"one": recipe})
    failing = {line.partition(":")[0] for line in claims.check_texts()}
    assert failing == {*files, "recipe one"}


def test_what_is_allowed_is_short_and_stands_somewhere(texts, monkeypatch):
    allowed = claims.ALLOWED
    assert len(allowed) <= 20
    monkeypatch.setattr(claims, "ALLOWED", {})
    seeming = [claim for _, text in texts for claim in claims.find_claims(text)]
    assert [part for part in allowed if not any(part in claim for claim in seeming)] == []


GAIN = compare_pairs([0.75, 0.8, 0.82], [0.5, 0.6, 0.5])
FILLED = {
    "gain": (GAIN, "One has +0.2567 ± 0.035 (3 seeds, gain)."),
    "not searched": (withhold_verdict(GAIN), "One has +0.2567 ± 0.035 (3 seeds, not searched)."),
    "too few": (compare_pairs([0.75, 0.75], [0.5, 0.5]), "One has +0.25 ± 0 (2 seeds, too few)."),
}


@pytest.mark.parametrize(("comparison", "said"), FILLED.values(), ids=FILLED)
def test_findings_follow_their_comparison(comparison, said):
    assert verdicts.fill_in("One has {one | two, wide | score}.", {("one", "two, wide", "score"): comparison}) == said
    assert verdicts.fill_in("One has {one | two}.", {("one", "two"): comparison}) == said


def test_findings_that_name_no_comparison_are_refused():
    with pytest.raises(ValueError, match=r"findings: given \{one \| three\}, allowed: one \| two"):
        verdicts.fill_in("One has {one | three}.", {("one", "two"): GAIN})


def test_texts_for_people_have_no_verdict_of_fewer_than_six_units():
    verdict = re.compile(r"(\d+) \w+, (?:gain|loss|level)")
    assert verdict.search("-0.04 ± 0.003 (3 seeds, gain)") and verdict.search("(plain training 19.7; 6 orders, gain)")
    said = [(file.name, units) for file in pages.TEXTS for units in verdict.findall(file.read_text())]
    assert sum(name == "papers.md" for name, _ in said) >= 30
    assert [(name, units) for name, units in said if int(units) < known.LEAST_UNITS] == []


def test_a_verdict_of_six_units_is_said():
    facts = known.Known({run.key: run for run in Book().runs()}, {})
    six = compare_pairs([0.75, 0.8, 0.82, 0.8, 0.79, 0.81], [0.5, 0.6, 0.5, 0.5, 0.6, 0.5])
    facts._compared["r"] = {("one", "two"): six, ("one", "three"): GAIN}
    assert facts.verdict("r", "one", "two") == "6 seeds, gain"
    assert facts.verdict("r", "one", "three") == "3 seeds, too few"
    assert facts.count_verdicts(["r"]) == {"gain": 1, "too few": 1}
