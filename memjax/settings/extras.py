"""Extras of the package: optional packages, and what they are for."""

__all__ = ["EXTRAS", "extra_of"]

EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "data": ("seqio tasks and TensorFlow Datasets", ("seqio", "tensorflow-datasets", "tensorflow", "tensorflow-text")),
    "knn": ("approximate neighbours on the host", ("scann",)),
    "eval": ("BLEU, ROUGE and the other published metrics", ("sacrebleu", "rouge-score", "nltk", "scikit-learn")),
    "hf": ("Hugging Face tokenizers", ("tokenizers",)),
    "gguf": ("weights in GGUF files", ("gguf",)),
    "hub": ("models of the Hugging Face hub by name", ("huggingface-hub",)),
    "files": (
        "Parquet and Arrow files, encodings of texts and Zstandard",
        ("pyarrow", "charset-normalizer", "zstandard"),
    ),
    "faiss": ("indices in the faiss format", ("faiss-cpu",)),
    "beam": ("building datastores and TFDS data sets on several machines", ("apache-beam",)),
    "tb": ("TensorBoard event files", ("tensorboardX",)),
    "wandb": ("metrics in Weights & Biases", ("wandb",)),
    "plots": ("`memjax report`", ("matplotlib", "jinja2")),
    "docs": ("`make docs`", ("sphinx", "myst-parser", "furo")),
    "notebooks": ("running the colabs", ("ipykernel", "jupytext", "nbclient")),
    "lm-eval": ("tasks of EleutherAI's evaluation harness", ("lm-eval",)),
    "plan": ("compiling for a TPU that is not here", ("libtpu",)),
}
"""Name of an extra -> its purpose and its packages. `tpu` and `cuda` are JAX's own and follow from the devices"""


def extra_of(module: str) -> tuple[str, str] | None:
    """Returns the name of the extra of memjax that installs a Python module, and the purpose of the extra. None for a
    module of no extra.

    Example:
      >>> extra_of("seqio")
      ('data', 'seqio tasks and TensorFlow Datasets')
    """
    names = {"tensorflow_datasets": "tensorflow-datasets", "sklearn": "scikit-learn", "faiss": "faiss-cpu"}
    top = module.partition(".")[0]
    package = names.get(top, top.replace("_", "-"))
    return next(((name, purpose) for name, (purpose, packages) in EXTRAS.items() if package in packages), None)
