"""A small Transformer without memory on the Python sources of the interpreter, to which `make run` adds memories.

    memjax train --config python_demo
    memjax demo                        # trains it too, then adds a cache and a datastore

Each token sees only its segment of 128 subwords, so that every difference from it comes from the added memories.

Paper: none; the memories are those of Grave et al. 2017 (the continuous cache) and Khandelwal et al. 2020 (kNN-LM).
Our number: not in the ledger; `memjax demo` prints it, with the memories and without, for the sources here.
Hardware: 2 CPU cores, two minutes.

Where the values come from: trials, until the demonstration took a few minutes.
"""

from memjax.config import (
    Bytes,
    Config,
    Data,
    Evaluation,
    FullAttention,
    Model,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Training,
)

VARIANTS = {
    "default": "3 layers, 128 wide, segments of 128 subwords",
    "smoke": "seconds: 2 layers, 16 wide, bytes",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    config = Config(
        name=f"python_demo_{variant}",
        model=Model(dim=128, num_layers=3, num_heads=4, attention=FullAttention()),
        data=Data(source=PythonLibrary(), tokenizer=SentencePiece(vocab_size=2048), batch_size=16, segment_length=128),
        training=Training(
            steps=1200,
            schedule=Schedule(learning_rate=3e-3, warmup_steps=100, decay="cosine", final_fraction=0.05),
            log_every=200,
            checkpoint_every=400,
        ),
        evaluation=Evaluation(batch_size=16),
    )
    match variant:
        case "default":
            pass
        case "smoke":
            config.model = Model(dim=16, num_layers=2, num_heads=2, attention=FullAttention())
            config.data = Data(source=PythonLibrary(), tokenizer=Bytes(), batch_size=2, segment_length=16)
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
