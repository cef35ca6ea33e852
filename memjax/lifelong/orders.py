"""Published orders of text tasks."""

MBPA_ORDERS = (
    ("yelp", "ag_news", "dbpedia", "amazon", "yahoo"),
    ("dbpedia", "yahoo", "ag_news", "amazon", "yelp"),
    ("yelp", "yahoo", "amazon", "dbpedia", "ag_news"),
    ("ag_news", "yelp", "amazon", "yahoo", "dbpedia"),
)
"""The four orders of text classification of MbPA++ (de Masson d'Autume et al. 2019, https://arxiv.org/abs/1906.01076);
names are those of `memjax.config.TextClasses.data_set`."""

LONG_ORDERS = (
    (
        *("mnli", "cb", "wic", "copa", "qqp", "boolq", "rte", "imdb", "yelp", "amazon", "sst2", "dbpedia", "ag_news"),
        "multirc",
    ),
    (
        *("multirc", "boolq", "wic", "mnli", "cb", "copa", "qqp", "rte", "imdb", "sst2", "dbpedia", "ag_news", "yelp"),
        "amazon",
    ),
    (
        *("yelp", "amazon", "mnli", "cb", "copa", "qqp", "rte", "imdb", "sst2", "dbpedia", "ag_news", "multirc"),
        *("boolq", "wic"),
    ),
)
"""The three orders of 15 tasks of Progressive Prompts (Razdaibiedina et al. 2023, https://arxiv.org/abs/2301.12314) and
O-LoRA (Wang et al. 2023, its orders 4 to 6) without Yahoo, so 14 tasks: Yahoo is the last of the first two and stands
before MultiRC in the third, and its files are not at hand. Names are those of `memjax.config.CLBenchmark.task`."""

QUESTION_ORDERS = (
    ("quac", "trivia_qa_web", "trivia_qa_wikipedia", "squad"),
    ("squad", "trivia_qa_wikipedia", "quac", "trivia_qa_web"),
    ("trivia_qa_web", "trivia_qa_wikipedia", "squad", "quac"),
    ("trivia_qa_wikipedia", "quac", "trivia_qa_web", "squad"),
)
"""The four orders of question answering of MbPA++, of four stages: the two sets of TriviaQA are apart."""
