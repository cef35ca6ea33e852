"""Texts of tasks in domains: counted word for word."""

import json

from tools.measurements.shared_texts import count_shared, flat, read_domain


def test_texts_are_found_whatever_stands_between_their_words(tmp_path):
    texts = ["Stocks fell -- again, on Monday.", "A line that ends here", "and goes on there, in another text", "short"]
    file = tmp_path / "news.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    domain = read_domain(file)
    assert domain.split("\n") == [flat(text) for text in texts]
    wanted = [
        "stocks fell again on Monday",
        "A line that ends here and goes on",
        "short",
        "Stocks rose again on Monday",
    ]
    assert count_shared(wanted, domain) == (4, 1)
