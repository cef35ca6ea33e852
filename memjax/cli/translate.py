"""The command `memjax translate`, which translates texts."""

import json

from memjax.cli.parser import DATA_FIELDS, Parser, make_reader, parse_with_config
from memjax.cli.predict import predict
from memjax.cli.texts import read_texts
from memjax.settings.ranges import Count, Finite


def run(arguments: list[str]) -> int:
    """Translates texts with the newest checkpoint of a run on sentence pairs, by beam search."""
    parser = Parser("translate", run.__doc__, reads="run", json=" per text")
    add = parser.add_argument
    add("--text", action="append", default=[], metavar="TEXT", help="sentence to translate; may be repeated")
    add(
        "--file", action="append", default=[], metavar="FILE", help="file with a sentence in each line; may be repeated"
    )
    beam = "number of hypotheses of the beam search (default: 5)"
    add("--beam-size", type=make_reader(Count), default=5, metavar="N", help=beam)
    penalty = "exponent of the length by which scores are divided; larger favours longer translations (default: 1)"
    add("--length-penalty", type=make_reader(Finite), default=1.0, metavar="P", help=penalty)
    options, config = parse_with_config(parser, arguments, only=DATA_FIELDS)
    from memjax.tasks import make_task

    make_task(config).require("translate")
    texts = read_texts(options.text, options.file, by_line=True)
    settings = {"beam_size": options.beam_size, "length_penalty": options.length_penalty}
    queries = [(text, "") for text in texts]
    answers, facts = predict(options.run, config, queries, is_data_named=options.is_data_named, **settings)
    for text, answer in zip(texts, answers, strict=True):
        value = {"text": text, "translation": answer["answer"], **facts}
        print(json.dumps(value) if options.json else answer["answer"])
    return 0
