"""A page of a report: one file that asks for nothing, whatever the texts of a run hold."""

import re
from html.parser import HTMLParser

import pytest

from memjax.report import charts
from memjax.report.page import DARK, LIGHT, Report, Section, make_page
from memjax.report.panel import Figure, Panel, Paragraph, Table
from memjax.report.pictures import write_figures

EVIL = '<script>alert("x")</script> & "quoted" <img src=https://example.org/x onerror=alert(1)>'
VOID = {"meta", "link", "br", "img"}


class Reader(HTMLParser):
    """What stands in a page: its tags with their attributes, its ids, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.open = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def ids(self):
        return [attrs["id"] for _, attrs in self.tags if "id" in attrs]


def draw(figure):
    charts.line_chart(figure, {EVIL: ([1, 2], [3.0, 4.0]), "b": ([1, 2], [1.0, 2.0])}, x=EVIL)


def report():
    figures = tuple(Figure(name, EVIL, "`code` and words", draw) for name in ("first", "second"))
    table = Table("numbers", EVIL, EVIL, ("name", "value"), ((EVIL, 1), ("b", None), ("c", 1234567)))
    words = Paragraph("text", EVIL, "caption", (EVIL, " plain", "\n"), (0.5, 0.0, -1.0), (EVIL, "", "note"))
    settings = Table("settings", "All settings", "", ("field", "a", "b"), (("model.dim", "8", "16"), ("x", "1", "1")))
    panel = Panel("panel", EVIL, "`memjax` says " + EVIL, (*figures, table, words))
    return Report(EVIL, EVIL, ("a", "b"), table, settings, (Section("all", EVIL, (panel,), (EVIL,)),))


@pytest.fixture(scope="module")
def page():
    return make_page(report())


def test_what_a_run_says_is_text(page):
    read = Reader(page)
    assert not read.open
    assert [tag for tag, _ in read.tags].count("script") == 1 and "img" not in dict(read.tags)
    assert not any(name.startswith("on") for _, attrs in read.tags for name in attrs)
    assert EVIL in "".join(read.text) and any(attrs.get("title") == EVIL for _, attrs in read.tags)
    assert "$" not in page


def test_a_page_asks_for_nothing(page):
    for tag, attrs in Reader(page).tags:
        assert tag not in ("iframe", "object", "embed", "base", "form")
        for name in ("src", "href", "data", "action", "xlink:href", "srcset"):
            value = attrs.get(name, "")
            assert value.startswith(("#", "data:")) or not value, (tag, name, value)
    assert not re.findall(r"url\((?!#)", page) and "@import" not in page
    assert "default-src 'none'" in page


def test_ids_are_unique_and_every_reference_has_its_target(page):
    read = Reader(page)
    assert len(read.ids) == len(set(read.ids))
    wanted = re.findall(r"url\(#([^)]+)\)", page) + re.findall(r"href=\"#([^\"]+)\"", page)
    assert wanted and not set(wanted) - set(read.ids)
    assert any(name.startswith("first-") for name in wanted) and any(name.startswith("second-") for name in wanted)


def test_a_page_says_what_its_pictures_are(page):
    read = Reader(page)
    pictures = [attrs for tag, attrs in read.tags if tag == "svg"]
    assert len(pictures) == 2
    assert all(attrs["role"] == "img" and attrs["aria-label"].startswith(EVIL) for attrs in pictures)
    tags = [tag for tag, _ in read.tags]
    assert tags.count("figcaption") == 2 and tags.count("title") == 1 and "nav" in tags
    assert all(attrs.get("aria-label") for tag, attrs in read.tags if tag in ("nav", "button"))
    assert "<code>code</code>" in page and "1,234,567" in page


def test_equal_reports_are_equal_pages(page):
    assert make_page(report()) == page


def test_every_colour_has_a_dark_one(page):
    assert DARK.keys() == LIGHT.keys()
    assert all(f"--{name}: {color}" in page for side in (LIGHT, DARK) for name, color in side.items())
    assert set(re.findall(r"var\(--([\w-]+)\)", page)) <= {*LIGHT, "quiet", "line", "shade", "link", "v"}


def test_figures_are_files_too(tmp_path):
    first = write_figures(report().sections[0].panels[0].items[:2], tmp_path / "a")
    again = write_figures(report().sections[0].panels[0].items[:2], tmp_path / "b")
    assert [path.name for path in first] == ["first.svg", "first.png", "second.svg", "second.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert first[1].read_bytes().startswith(b"\x89PNG") and b"<svg" in first[0].read_bytes()
