"""GPT-2 on WikiText-103, and memories added to it: infinity-former, sticky memories, a compressed memory.

    memjax train --config gpt2_wikitext --data.source.path DIR                                       # GPT-2 alone
    memjax train --config gpt2_wikitext --variant sticky --data.source.path DIR \
        --training.init-from runs/gpt2_wikitext_default                                              # then with memory

The paper adds memories to published weights, which `memjax.interop.hf_gpt2` can read. This config first trains GPT-2 on
the same text, and `training.init_from` starts the memories from it. The log lists the parameters that a memory adds.

Paper: Martins, Marinho and Martins, "infinity-former: Infinite Memory Transformer", ACL 2022,
https://arxiv.org/abs/2109.00301.
Paper's number: test perplexity, fine-tuned from the published GPT-2 small: 16.85 alone, 16.87 compressive, 16.64
infinity-former, 16.61 sticky.
Our number: not run at full size. 1.3 M parameters on WikiText-2, memories added after 800 steps:
tools/results/tables/gpt2_wikitext.md.
Hardware: not said in the paper.

Where the values come from
  paper    GPT-2 small: 12 layers, 768 wide, 12 heads; segments of 512, 512 basis functions, widths 0.005 and 0.01,
           tau 0.5, learning rate 5e-5, and 2.5e-4 for the memory, coefficient 1e-6, batch 1, one epoch; "memory
           threshold" 2,048, read as tokens after which the signal begins anew; compression rate 4, 512 slots
  ours     8 streams instead of 1; byte pairs trained on the text, 16,384 entries; the learning rate and length of the
           first stage
"""

from memjax.config import (
    GPT2,
    BytePairs,
    Config,
    Data,
    Dense,
    Evaluation,
    InfinityFormer,
    Model,
    PythonLibrary,
    Schedule,
    Training,
    WikiText,
)

VARIANTS = {
    "default": "GPT-2 small without a memory, which the other variants start from",
    "infinity_former": "GPT-2 small with a signal of 512 basis functions in every layer",
    "sticky": "`infinity_former` with sticky memories",
    "compressive": "GPT-2 small with 512 compressed slots in every layer",
    "smoke": "seconds: 2 layers, 32 wide, byte pairs of Python sources, sticky memories",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    config = Config(
        name=f"gpt2_wikitext_{variant}",
        model=Model(
            dim=768,
            num_layers=12,
            num_heads=12,
            dropout=0.1,
            attention_dropout=0.1,
            scale_embeddings=False,
            attention=GPT2(num_positions=1024),
            feed_forward=Dense(activation="gelu"),
        ),
        data=Data(
            source=WikiText(),
            tokenizer=BytePairs(vocab_size=16_384),
            batch_size=8,
            segment_length=512,
            protocol="contiguous",
        ),
        training=Training(
            steps=100_000,
            schedule=Schedule(learning_rate=2.5e-4, warmup_steps=2_000),
            log_every=200,
            checkpoint_every=4000,
            evaluate_every=4000,
        ),
        evaluation=Evaluation(batch_size=8),
    )
    if variant in ("infinity_former", "sticky", "compressive"):
        config.training.steps, config.training.schedule = 25_000, Schedule(learning_rate=5e-5, warmup_steps=0)
        config.training.memory_learning_rate = 2.5e-4
    signal = InfinityFormer(
        base_attention="gpt2", num_basis=512, widths=(0.005, 0.01), reset_after_tokens=2048, kl_weight=1e-6
    )
    match variant:
        case "default":
            pass
        case "infinity_former":
            config.model.attention = signal
        case "sticky":
            signal.sticky, config.model.attention = "sample", signal
        case "compressive":
            config.model.attention = GPT2(num_positions=1024, compressed_memory_length=512, compression_rate=4)
        case "smoke":
            config.model = Model(
                dim=32,
                num_layers=2,
                num_heads=2,
                scale_embeddings=False,
                attention=InfinityFormer(
                    base_attention="gpt2",
                    num_positions=16,
                    num_basis=16,
                    num_samples=8,
                    sticky="sample",
                    num_bins=8,
                ),
                feed_forward=Dense(activation="gelu"),
            )
            config.data = Data(
                source=PythonLibrary(), tokenizer=BytePairs(vocab_size=512), batch_size=2, segment_length=16
            )
            config.training = Training(
                steps=4, memory_learning_rate=2e-3, schedule=Schedule(warmup_steps=0), log_every=1
            )
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
