"""`memjax import`: weights of other libraries."""

from memjax.cli.parser import Parser
from memjax.overrides import UsageError


def run(arguments: list[str]) -> int:
    """Makes a run directory of weights of Hugging Face (BERT, DistilBERT, MiniLM, GPT-2), for init_from and eval."""
    parser = Parser("import", run.__doc__)
    files = "a folder with config.json, model.safetensors and the files of the tokenizer"
    parser.add_argument("--weights", required=True, metavar="DIR", help=files)
    parser.add_argument("--run", required=True, metavar="DIR", help="the run directory to make")
    marks = "of a GPT-2: with the marks of dialogues (cmu_dog) in its vocabulary"
    parser.add_argument("--dialogues", action="store_true", help=marks)
    options = parser.read(arguments)
    from memjax.interop import hf_bert, hf_gpt2

    if hf_gpt2.is_gpt2(options.weights):
        config = hf_gpt2.save_run(options.weights, options.run, dialogues=options.dialogues)
    elif options.dialogues:
        raise UsageError("--dialogues: given with other weights, allowed: with those of a GPT-2")
    else:
        config = hf_bert.save_run(options.weights, options.run)
    model = config.model
    print(f"{options.run}: {type(config.task).__name__}, {model.num_layers} layers, {model.dim} wide")
    return 0
