"""Transformer-XL on the Python sources of the running interpreter, at the size of `memorizing_python`.

    memjax train --config transformer_xl_python

Paper: Dai, Yang, Yang, Carbonell, Le and Salakhutdinov, "Transformer-XL", ACL 2019, https://arxiv.org/abs/1901.02860.
Paper's number: none on this corpus.
Our number: not run at this size.
Hardware: 2 CPU cores.

Where the values come from
  paper       relative positions, hidden states of the last tokens in every layer, gradients stopped, post-norm, Adam
              with cosine decay, gradient norm 0.25
  ours        the size, the tokenizer, the learning rate; biases u and v per layer, as the authors' TensorFlow code
"""

from memjax.config import (
    Bytes,
    Config,
    Data,
    Evaluation,
    Model,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Training,
    TransformerXL,
)

VARIANTS = {
    "default": "memory of 128 tokens in each of 4 layers",
    "smoke": "seconds: 2 layers, 32 wide, bytes",
    "no_memory": "`default` without memory: each segment alone",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    attention = TransformerXL(memory_length=128)
    config = Config(
        name=f"transformer_xl_python_{variant}",
        model=Model(dim=192, num_layers=4, num_heads=4, attention=attention),
        data=Data(source=PythonLibrary(), tokenizer=SentencePiece(vocab_size=4096), batch_size=8, segment_length=128),
        training=Training(
            steps=800,
            schedule=Schedule(learning_rate=1e-3, warmup_steps=100, decay="cosine", final_fraction=0.05),
            clip_norm=0.25,
        ),
        evaluation=Evaluation(batch_size=8),
    )
    match variant:
        case "default":
            pass
        case "smoke":
            config.model = Model(dim=32, num_layers=2, num_heads=2, attention=TransformerXL(memory_length=16))
            config.data = Data(source=PythonLibrary(), tokenizer=Bytes(), batch_size=2, segment_length=16)
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
        case "no_memory":
            attention.memory_length = 0
    return config
