"""Compressive Transformer on the Python sources of the running interpreter, at the size of `transformer_xl_python`.

    memjax train --config compressive_python
    memjax train --config compressive_python --variant transformer_xl              # the same attention length
    memjax train --config compressive_python --model.attention.compression mean    # max, most_used, dilated

Paper: Rae, Potapenko, Jayakumar and Lillicrap, "Compressive Transformers for Long-Range Sequence Modelling",
ICLR 2020, https://arxiv.org/abs/1911.05507.
Paper's number: none on this corpus.
Our number: not run.
Hardware: 2 CPU cores.

Where the values come from
  paper       convolution of width and stride c, attention-reconstruction loss, post-norm, Adam with cosine decay,
              gradient norm 0.1; plain BPTT over two segments with half the rows
  authors' code   relative positions of their own for compressed slots, mean square as the loss, no bias in f_c
  ours        the size, the tokenizer, the learning rate, both memories as long as the segment, c = 4
"""

from memjax.config import (
    Bytes,
    Compressive,
    Config,
    Data,
    Evaluation,
    Model,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Training,
)

VARIANTS = {
    "default": "memory of 128 tokens and 128 compressed slots, which stand for 512 more, in each of 4 layers",
    "transformer_xl": "Transformer-XL of equal attention length: a memory of 256 tokens, without compression",
    "bptt": "without an auxiliary loss: the compression learns through the next segment",
    "smoke": "seconds: 2 layers, 32 wide, bytes",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    attention = Compressive(memory_length=128, compressed_memory_length=128, compression_rate=4)
    config = Config(
        name=f"compressive_python_{variant}",
        model=Model(dim=192, num_layers=4, num_heads=4, attention=attention),
        data=Data(source=PythonLibrary(), tokenizer=SentencePiece(vocab_size=4096), batch_size=8, segment_length=128),
        training=Training(
            steps=800,
            schedule=Schedule(learning_rate=1e-3, warmup_steps=100, decay="cosine", final_fraction=0.05),
            clip_norm=0.1,
        ),
        evaluation=Evaluation(batch_size=8),
    )
    match variant:
        case "default":
            pass
        case "transformer_xl":
            attention.memory_length, attention.compressed_memory_length = 256, 0
        case "bptt":
            attention.compression_loss = "none"
            config.data.batch_size, config.training.segments_per_update = 4, 2
        case "smoke":
            attention = Compressive(memory_length=16, compressed_memory_length=8, compression_rate=4)
            config.model = Model(dim=32, num_layers=2, num_heads=2, attention=attention)
            config.data = Data(source=PythonLibrary(), tokenizer=Bytes(), batch_size=2, segment_length=16)
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), clip_norm=0.1, log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
