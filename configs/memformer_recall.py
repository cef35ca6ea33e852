"""Memformer on recall over a gap: four pairs in the first segment, four segments of noise, questions in the last.

    memjax train --config memformer_recall
    memjax train --config memformer_recall --model.num-slots 0      # what can be answered without the memory: chance
    python -m tools.results run memformer_recall

Four segments of noise come before the questions. So only slots that were written after the first segment, and kept in
four updates, can supply the answers. Documents have no practice questions, so that gradients must cross all six
segments.

Paper: none; the task is ours.
Our number: tools/results/tables/memformer_recall.md.
Hardware: 2 CPU cores.

Where the values come from
  ours     all. A pair is one token; with the begin token, the pairs fill the first half of the first segment, and the
           questions with their answers the last segment
"""

from memjax.config import Config, Data, Dense, Evaluation, KeyValueRecall, Memformer, Schedule, Training

VARIANTS = {
    "default": "16 slots",
    "as_published": "16 slots as published: values as long as those of tokens, no bias for slots, no sinusoids",
    "smoke": "seconds: a few documents, 16 wide",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    source = KeyValueRecall(num_pairs=4, num_keys=8, num_values=8, filler_length=36, group=0, num_documents=16_384)
    model = Memformer(dim=32, num_layers=1, num_heads=4, feed_forward=Dense(dim=64), encoder_layers=1, num_slots=16)
    config = Config(
        name=f"memformer_recall_{variant}",
        model=model,
        data=Data(source=source, batch_size=32, segment_length=8),
        training=Training(
            steps=1200,
            segments_per_update=6,
            schedule=Schedule(learning_rate=2e-3, warmup_steps=60, decay="cosine"),
            log_every=100,
            checkpoint_every=600,
        ),
        evaluation=Evaluation(batch_size=32, compute_accuracy=True),
    )
    match variant:
        case "default":
            pass
        case "as_published":
            model.unit_length_updates, model.retain_bias = False, 0.0
            model.write_begin_token, model.segment_positions = True, "none"
        case "smoke":
            model.dim, model.num_slots, source.num_documents, source.filler_length = 16, 4, 16, 20
            config.data.batch_size = config.evaluation.batch_size = 2
            config.training = Training(steps=4, segments_per_update=4, schedule=Schedule(warmup_steps=0), log_every=1)
    return config
