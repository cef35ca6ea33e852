"""Dialogues about films with the document in a memory: GPT-2, compressed memory, infinity-former, sticky memories.

    memjax train --config cmu_dog --data.source.path DIR                                      # document in the context
    memjax train --config cmu_dog --variant sticky --data.source.path DIR \
        --training.init-from runs/cmu_dog_default                                             # document in a memory
    memjax eval --run runs/cmu_dog_sticky --evaluation.split test        # with F1, ROUGE, METEOR of its answers

With published weights, as in the paper (the variants `gpt2_...`): W has config.json, model.safetensors and the files of
the tokenizer. The marks of dialogues are added to the vocabulary.

    memjax import --weights W --run runs/gpt2 --dialogues
    memjax train --config cmu_dog --variant gpt2_sticky --data.source.path DIR \
        --data.tokenizer.path runs/gpt2 --training.init-from runs/gpt2

DIR has the archive or the folders of CMU-DoG, https://github.com/festvox/datasets-CMU_DoG. `perplexity` is measured on
utterances with their end tokens, and the subset `is_word` on words only; documents are not scored. With a memory, the
document is read in segments before the dialogue, which can use it only through the memory.

Paper: Martins, Marinho and Martins, "infinity-former: Infinite Memory Transformer", ACL 2022,
https://arxiv.org/abs/2109.00301; data: Zhou, Prabhumoye and Black 2018, https://arxiv.org/abs/1809.07358.
Paper's number: test perplexity, F1, ROUGE-1, ROUGE-L, METEOR, from published weights of GPT-2 small: without document
19.43, 7.82, 12.18, 10.17, 6.10; document in context 18.53, 8.64, 14.61, 12.03, 7.15; compressive 18.02, 8.78, 14.74,
12.14, 7.29; infinity-former 18.02, 8.92, 15.28, 12.51, 7.52; sticky 18.04, 9.01, 15.37, 12.56, 7.55.
Our number: not run at full size. 4 layers, 128 wide, 1,000 steps from scratch: tools/results/tables/cmu_dog.md.
One seed a row; with a memory the segments have 126 tokens instead of 512.
Hardware: not said in the paper.

Where the values come from
  paper    GPT-2 small: 12 layers, 768 wide, 12 heads; widths 0.005 and 0.01, tau 0.5, learning rate 5e-5 with linear
           decay, 5 epochs; 512 compressed slots of 3 tokens; nucleus 0.9 at temperature 0.7
  ours     without published weights: the default variant is trained from scratch at 2.5e-4, memories go on from it at
           5e-5, byte pairs of the training split, 8,192 entries. Always 2.5e-4 for what memories add; 8 rows, 512 basis
           functions; segments of 510 with a memory (a multiple of 3) and 1,024 without; the first 512 tokens of a
           document in the context; utterances up to 128 tokens; with published weights the marks begin as the mean of
           all entries, and their embeddings by speaker are new and learn at 5e-5
"""

from memjax.config import (
    GPT2,
    BytePairs,
    Bytes,
    CmuDog,
    Config,
    Data,
    Dense,
    Evaluation,
    InfinityFormer,
    Model,
    Schedule,
    TemplateDialogues,
    Training,
)

VARIANTS = {
    "default": "GPT-2 with the document in its context",
    "no_document": "GPT-2 with the dialogue and no document",
    "compressive": "the document in 512 compressed slots of every layer",
    "infinity_former": "the document in a signal of 512 basis functions in every layer",
    "sticky": "`infinity_former` with sticky memories",
    "gpt2": "published weights with the document in the context",
    "gpt2_no_document": "published weights with the dialogue and no document",
    "gpt2_compressive": "published weights with the document in compressed slots",
    "gpt2_infinity_former": "published weights with the document in a signal",
    "gpt2_sticky": "`gpt2_infinity_former` with sticky memories",
    "smoke": "seconds: synthetic dialogues in bytes, 1 layer with sticky memories",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    config = Config(
        name=f"cmu_dog_{variant}",
        model=Model(
            dim=768,
            num_layers=12,
            num_heads=12,
            dropout=0.1,
            attention_dropout=0.1,
            scale_embeddings=False,
            num_speaker_markers=3,
            attention=GPT2(num_positions=1024),
            feed_forward=Dense(activation="gelu"),
        ),
        data=Data(
            source=CmuDog(document="context", document_length=512),
            tokenizer=BytePairs(vocab_size=8192),
            batch_size=8,
            segment_length=1024,
        ),
        training=Training(
            steps=2500,
            schedule=Schedule(learning_rate=2.5e-4, warmup_steps=250, decay="linear"),
            log_every=50,
            checkpoint_every=500,
            evaluate_every=500,
        ),
        evaluation=Evaluation(batch_size=8),
    )
    signal = InfinityFormer(base_attention="gpt2", num_basis=512, widths=(0.005, 0.01), sticky="none", kl_weight=1e-6)
    published = variant.startswith("gpt2")
    layout = "default" if variant == "gpt2" else variant.removeprefix("gpt2_")
    with_memory = layout in ("compressive", "infinity_former", "sticky")
    if published:
        config.data.tokenizer = BytePairs(vocab_size=50_257)  # of the published files: data.tokenizer.path
    if published or with_memory:
        config.training.schedule = Schedule(learning_rate=5e-5, warmup_steps=0, decay="linear")
    if with_memory:
        config.data.source, config.data.segment_length = CmuDog(document="memory"), 510
        config.training.steps = 9000
        config.training.memory_learning_rate = 2.5e-4
    match layout if variant in VARIANTS else variant:
        case "default":
            pass
        case "no_document":
            config.data.source = CmuDog(document="none")
        case "compressive":
            config.model.attention = GPT2(num_positions=1024, compressed_memory_length=512, compression_rate=3)
        case "infinity_former":
            config.model.attention = signal
        case "sticky":
            signal.sticky, config.model.attention = "sample", signal
        case "smoke":
            config.model = Model(
                dim=32,
                num_layers=1,
                num_heads=2,
                scale_embeddings=False,
                num_speaker_markers=3,
                attention=InfinityFormer(
                    base_attention="gpt2",
                    num_positions=32,
                    num_basis=16,
                    num_samples=8,
                    sticky="sample",
                    num_bins=8,
                ),
            )
            config.data = Data(
                source=TemplateDialogues(num_dialogues=16), tokenizer=Bytes(), batch_size=2, segment_length=32
            )
            config.training = Training(steps=8, schedule=Schedule(warmup_steps=0), log_every=1)
            config.evaluation = Evaluation(batch_size=2)
    return config
