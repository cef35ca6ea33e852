"""Bad inputs of the command line by kind, each with what its line has to name; `command_line_test` asks them all."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

OPTIONS = {
    "trian": "verb: given 'trian', allowed",
    "--verison": "verb: given '--verison', allowed",
    "TRAIN": "verb: given 'TRAIN', allowed",
    "eval train --run x": "train: given without an option, allowed: --option value",
    "train eval": "eval: given without an option, allowed",
    "train --config tiny.py --name new --temp 1": "--temp: no such field here; see --help",
    "generate --run runs/tiny_default --temp 1": "--temp: no such field here; did you mean --temperature?",
    "generate --run runs/tiny_default --tmperature 1": "--tmperature: no such field here; did you mean",
    "generate --run runs/tiny_default --max 4": "--max: no such field here; did you mean --max-tokens?",
    "generate --run runs/tiny_default --topk 4": "--topk: no such field here; did you mean --top-k?",
    "generate --run runs/tiny_default --prompts x": "--prompts: no such field here; did you mean --prompt?",
    "generate --run runs/tiny_default --top 4": "--top: no such field here; did you mean --top-k or",
    "eval foo --run runs/tiny_default": "foo: given without an option, allowed",
    "eval --run runs/tiny_default foo": "foo: given without an option, allowed",
    "eval runs/tiny_default": "runs/tiny_default: given without an option, allowed",
    "generate --run runs/tiny_default hello": "hello: given without an option, allowed",
    "train tiny.py": "tiny.py: given without an option, allowed",
    "train --config tiny.py foo": "foo: given without an option, allowed",
    "doctor foo": "foo: given without an option, allowed",
    "data prepare foo --config tiny.py": "foo: given without an option, allowed",
    "usage --run runs/tiny_default foo": "foo: given without an option, allowed",
    "plan --config tiny.py --topology v5e:1x1 foo": "foo: given without an option, allowed",
    "eval --runs runs/tiny_default": "--runs: no such option of memjax eval; did you mean",
    "eval --run runs/tiny_default --memory-length 8": "--memory-length: no such field here; did you mean",
    "eval --run runs/tiny_default --split test": "--split: no such field here; did you mean",
    "train --config tiny.py -x": "-x: no such field here; see --help",
    "train --config tiny.py --learning-rate 1": "--learning-rate: no such field here; did you mean",
    "generate --run runs/tiny_default --prompt": "--prompt: given no value, allowed",
    "generate --run runs/tiny_default --prompt --greedy": "--prompt: given no value, allowed",
    "train --config": "--config: given no value, allowed",
    "train --config tiny.py --variant": "--variant: given no value, allowed",
    "train --config tiny.py --name": "name: given no value, allowed",
    "train --config tiny.py --model.dim": "model.dim: given no value, allowed",
    "train --config tiny.py --model.dim 8 9": "model.dim: given '8 9', allowed",
    "eval --run runs/tiny_default --json=yes": "--json: given 'yes', allowed",
    "eval --run runs/tiny_default --probe": "--probe: given a run of one task, allowed: a run over tasks with classes",
    "eval --run runs/tiny_default --probe --memory off": "--probe: given with --memory, allowed: one of the two",
    "train --config tiny.py --training.tensorboard maybe": "training.tensorboard: given 'maybe', allowed",
    "generate --run runs/tiny_default --seed x": "--seed: given 'x', allowed",
    "generate --run runs/tiny_default --temperature hot": "--temperature: given 'hot', allowed",
    "generate --run runs/tiny_default --max-tokens 1.5": "--max-tokens: given '1.5', allowed",
    "demo foo": "foo: given without an option, allowed",
    "demo --tim 3": "--tim: no such option of memjax demo; see --help",
    "import": "--weights: not given, allowed",
    "import --weights x": "--run: not given, allowed",
    "datastore": "action: not given, allowed",
    "datastore biuld": "action: given 'biuld', allowed",
    "datastore plan --path s": "--run: not given, allowed",
    "compare": "RUN: not given, allowed",
    "train --config tiny.py --steps 3": "--steps: no such field here; did you mean",
    "train --config tiny.py --lr 1": "--lr: no such field here; did you mean --training.schedule.learning-rate?",
    "train --config tiny.py --training.step 3": "--training.step: no such field here; did you mean",
    "train --config tiny.py --trainig.steps 3": "--trainig.steps: no such field here; did you mean",
    "train --config tiny.py --dim 3": "--dim: no such field here; did you mean --model.dim or",
    "eval --run runs/tiny_default --cache 8": "--cache: no such field here; did you mean",
    "eval --run runs/tiny_default --evaluation.cache 8": "evaluation.cache: its kind (ContinuousCache) is set in",
    "train --config mising": "config: given 'mising', allowed",
    "train --config missing.py": "config: given 'missing.py', allowed",
    "train --config tiny": "config: given 'tiny', allowed",
    "train --config tiny.json": "config: given 'tiny.json', allowed",
    "train --config texts": "config: given 'texts', allowed",
    "train --config ''": "--config: given '', allowed",
    "train --config broken.json": "config: given 'broken.json', allowed",
    "train --config binary.py": "binary.py: SyntaxError: source code string cannot",
}
"""verbs, options, fields, names of configs and variants"""

VALUES = {
    "--evaluation.intervention-path slots": (
        "evaluation.intervention-path: given 'slots', allowed: '' with memory_intervention 'kept'"
    ),
    "--evaluation.memory-intervention lost": "evaluation.memory-intervention: given 'lost', allowed",
    "--model.dim 0": "model.dim: given 0, allowed",
    "--model.dim -8": "model.dim: given -8, allowed",
    "--model.dim 1e3": "model.dim: given '1e3', allowed",
    "--model.dim nan": "model.dim: given 'nan', allowed",
    "--model.num-layers 0": "model.num-layers: given 0, allowed",
    "--model.num-heads 0": "model.num-heads: given 0, allowed",
    "--model.dropout -0.1": "model.dropout: given -0.1, allowed",
    "--model.dropout nan": "model.dropout: given nan, allowed",
    "--model.compute-dtype float16": "model.compute-dtype: given 'float16', allowed",
    "--model.attention.layers-with-memory a": "model.attention.layers-with-memory: given 'a', allowed",
    "--model.attention.memory-length -1": "model.attention.memory-length: given -1, allowed",
    "--model.attention.recall-target 0": "model.attention.recall-target: given 0.0, allowed",
    "--model.attention.cache-length -1": "model.attention.cache-length: given -1, allowed",
    "--model.attention.num-neighbors 0": "model.attention.num-neighbors: given 0, allowed",
    "--model.attention.max-distance 0": "model.attention.max-distance: given 0, allowed",
    "--model.attention.num-buckets -1": "model.attention.num-buckets: given -1, allowed",
    "--model.attention.num-buckets 1": "model.attention.num-buckets: given 1, allowed",
    "--model.feed-forward.activation step": "model.feed-forward.activation: given 'step', allowed",
    "--model.scan-layers maybe": "model.scan-layers: given 'maybe', allowed",
    "--model.num-speaker-markers -1": "model.num-speaker-markers: given -1, allowed",
    "--data.batch-size 0": "data.batch-size: given 0, allowed",
    "--data.segment-length 0": "data.segment-length: given 0, allowed",
    "--data.protocol random": "data.protocol: given 'random', allowed",
    "--data.min-document-length 0": "data.min-document-length: given 0, allowed",
    "--data.seed x": "data.seed: given 'x', allowed",
    "--data.seed 99999999999999999999": "data.seed: given 99999999999999999999, allowed",
    "--data.source.validation-percent 101": "data.source.validation-percent: given 101, allowed",
    "--data.source.validation-percent -1": "data.source.validation-percent: given -1, allowed",
    "--data.train-half third": "data.train-half: given 'third', allowed",
    "--data.neighbors-dir nowhere": "neighbors: nowhere has none for the split train, allowed",
    "--training.steps 0": "training.steps: given 0, allowed",
    "--training.steps many": "training.steps: given 'many', allowed",
    "--training.schedule.learning-rate 0": "training.schedule.learning-rate: given 0.0, allowed",
    "--training.schedule.learning-rate -1": "training.schedule.learning-rate: given -1.0, allowed",
    "--training.schedule.learning-rate inf": "training.schedule.learning-rate: given inf, allowed",
    "--training.schedule.warmup-steps -1": "training.schedule.warmup-steps: given -1, allowed",
    "--training.schedule.decay fast": "training.schedule.decay: given 'fast', allowed",
    "--training.schedule.final-fraction 2": "training.schedule.final-fraction: given 2.0, allowed",
    "--training.optimizer.b1 1": "training.optimizer.b1: given 1.0, allowed",
    "--training.optimizer.b2 -1": "training.optimizer.b2: given -1.0, allowed",
    "--training.optimizer.eps -1": "training.optimizer.eps: given -1.0, allowed",
    "--training.optimizer.eps 0": "training.optimizer.eps: given 0.0, allowed",
    "--training.clip-norm -1": "training.clip-norm: given -1.0, allowed",
    "--training.clip-norm nan": "training.clip-norm: given nan, allowed",
    "--training.keep-checkpoints 0": "training.keep-checkpoints: given 0, allowed",
    "--training.max-skipped-steps -1": "training.max-skipped-steps: given -1, allowed",
    "--training.burn-in-segments 1": "training.burn-in-segments: given 1, allowed",
    "--training.segments-per-update 0": "training.segments-per-update: given 0, allowed",
    "--training.remat all": "training.remat: given 'all', allowed",
    "--training.gradient-accumulation-steps 0": "training.gradient-accumulation-steps: given 0, allowed",
    "--training.frozen-parameters nothing": "training.frozen-parameters: given 'nothing', allowed",
    "--training.seed -1": "training.seed: given -1, allowed",
    "--training.seed 99999999999999999999": "training.seed: given 99999999999999999999, allowed",
    "--training.memory-learning-rate -1": "training.memory-learning-rate: given -1.0, allowed",
    "--evaluation.split dev": "evaluation.split: given 'dev', allowed",
    "--evaluation.segment-length -1": "evaluation.segment-length: given -1, allowed",
    "--evaluation.protocol sliding": "evaluation.protocol: given 'sliding', allowed",
    "--evaluation.stride -1": "evaluation.stride: given -1, allowed",
    "--evaluation.name x": "evaluation.name: given 'x', allowed",
    "--evaluation.cache.memory-length -1": "evaluation.cache.memory-length: given -1, allowed",
    "--evaluation.cache.interpolation none": "evaluation.cache.interpolation: given 'none', allowed",
    "--evaluation.cache.interpolation-weight -0.1": "evaluation.cache.interpolation-weight: given -0.1",
    "--evaluation.cache.similarity-scale nan": "evaluation.cache.similarity-scale: given nan, allowed",
    "--evaluation.memory-length x": "evaluation.memory-length: given 'x', allowed",
    "--evaluation.max-answers -1": "evaluation.max-answers: given -1, allowed",
    "--sharding.data 7": "sharding: given data x fsdp x model = 7 x 1 x 1, allowed",
    "--sharding.fsdp 2": "sharding: given data x fsdp x model = 0 x 2 x 1, allowed",
    "--sharding.fsdp -1": "sharding: given data x fsdp x model = 0 x -1 x 1",
    "--sharding.model 3": "sharding: given data x fsdp x model = 0 x 1 x 3, allowed",
    "--sharding.model 0 --sharding.fsdp 0": "sharding: given data x fsdp x model = 0 x 0 x 0, allowed",
    "--sharding.process-timeout -1": "sharding.process-timeout: given -1.0, allowed",
    "--sharding.process-timeout 0": "sharding.process-timeout: given 0.0, allowed",
    "--sharding.split-memory-by rows": "sharding.split-memory-by: given 'rows', allowed",
    "--workdir tiny.py": "workdir: given 'tiny.py/new', allowed: a path in a folder; tiny.py is a file",
    "--name ''": "runs: not empty",
    "--name .": "runs: not empty",
    "--model.dim 1000000": "model.dim: given 1000000, needs 37,252.9 GiB for",
    "--data.batch-size 1000000000": "data.batch-size: given 1000000000, needs 119.2 GiB for one",
    "--model.attention.memory-length 2000000000": "model.attention.memory-length: given 2000000000, needs",
    "--evaluation.batch-size 1000000000": "evaluation.batch-size: given 1000000000, needs 1,072.9 GiB",
    "--evaluation.segment-length 1000000000": "evaluation.segment-length: given 1000000000, needs 29.8",
    "--sharding.pad-vocab-to-multiple 2000000000": "sharding.pad-vocab-to-multiple: given 2000000000, needs 119.2",
    "--training.steps 1e30": "training.steps: given '1e30', allowed",
    "--evaluation.batch-size 1000000000000": "evaluation.batch-size: given 1000000000000, allowed",
    "--data.batch-size 100000000000": "data.batch-size: given 100000000000, allowed",
    "--training.segments-per-update 1000000000": "training.segments-per-update: given 1000000000, needs",
    "--model.dim 2000000000": "model.dim: given 2000000000, needs 149,011,611,938.5",
    "--model.dim 100000000000": "model.dim: given 100000000000, allowed",
}
"""values of fields, after `train --config tiny.py --name new`: types, ranges, relations, sizes"""

RUNS = {
    "generate --run runs/pairs --prompt x": "generate: given Translation, allowed: a run that continues texts",
    "usage --run runs/pairs": "the model has no value tables, allowed: one with",
    "datastore plan --run runs/pairs --path s": "datastore: given EncoderDecoder, allowed",
    "eval --run runs/pairs --evaluation.memory-length 8": "evaluation.memory-length: given 8, allowed",
    "eval --run runs/pairs": "runs/pairs/checkpoints: has no checkpoint",
    "compare runs/pairs": "runs/pairs: not finished, allowed",
    "usage --run runs/tiny_default": "usage: the model has no value tables, allowed",
    "train --config pairs.py --data.protocol contiguous": "data.protocol: given 'contiguous', allowed",
    "generate --run runs/tiny_default --max-tokens -1": "--max-tokens: given -1, allowed",
    "generate --run runs/tiny_default --seed -1": "--seed: given -1, allowed",
    "generate --run runs/tiny_default --seed 99999999999999999999": "seed: given 99999999999999999999, allowed",
    "generate --run runs/tiny_default --temperature -1": "temperature: given -1.0, allowed",
    "generate --run runs/tiny_default --temperature nan": "temperature: given nan, allowed",
    "generate --run runs/tiny_default --temperature inf": "temperature: given inf, allowed",
    "generate --run runs/tiny_default --top-p 0": "--top-p: given 0.0, allowed",
    "generate --run runs/tiny_default --top-p 1.5": "--top-p: given 1.5, allowed",
    "generate --run runs/tiny_default --top-p nan": "--top-p: given nan, allowed",
    "generate --run runs/tiny_default --prompt-file texts": "prompt-file: given 'texts', allowed",
    "generate --run runs/tiny_default --prompt-file empty.txt": "--prompt-file: empty.txt is empty",
    "generate --run runs/tiny_default --stop ''": "--stop: given '', allowed",
    "generate --run runs/tiny_default --model.dim 3": "model.dim: cannot be changed here, allowed",
    "eval --run runs/tiny_default --data.source.path empty.txt": "--data.source.path: empty.txt is empty",
    "eval --run runs/tiny_default --evaluation.memory-length 1": "model.attention.num_neighbors: given 2, allowed",
    "eval --run runs/tiny_default --evaluation.task x": "evaluation.task: given 'x', allowed",
    "eval --run runs/tiny_default --evaluation.split dev": "evaluation.split: given 'dev', allowed",
    "eval --run runs/tiny_default --evaluation.batch-size 0": "evaluation.batch-size: given 0, allowed",
    "eval --run runs/tiny_default --task.x 3": "--task.x: no such field here; see --help",
    "compare nowhere": "nowhere: no run directory (it has no config.json)",
    "compare tiny.py": "tiny.py: no run directory (it has no config.json)",
    "compare texts": "texts: no run directory (it has no config.json), allowed",
    "eval --run tiny.py": "tiny.py: no run directory (it has no config.json)",
    "eval --run texts": "texts: no run directory (it has no config.json), allowed",
    "eval --run ''": "--run: given '', allowed",
    "generate --run runs": "runs: no run directory (it has no config.json), allowed",
    "data --config tiny.py --data.source.path nowhere": "--data.source.path: nowhere does not exist and",
}
"""runs that do not fit a verb, and what is asked of them"""

OTHERS = {
    "plan --config tiny.py --topology v5e:1x1 --vocab-size -3": "--vocab-size: given -3, allowed",
    "plan --config tiny.py --topology v9:1x1": "topology: given 'v9:1x1', allowed",
    "plan --config tiny.py --topology v5e": "topology: given 'v5e', allowed",
    "plan --config tiny.py --topology v5e:0x0": "topology: given 'v5e:0x0', allowed",
    "plan --config tiny.py --topology v5e:3x5x7": "topology: given 'v5e:3x5x7', allowed",
    "plan --config tiny.py --topology v5p-127": "topology: given 'v5p-127', allowed",
    "plan --config tiny.py --topology v5e:1x1 --sweep dim": "sweep: given 'dim', allowed",
    "plan --config tiny.py --topology v5e:1x1 --sweep nothing=3": "--nothing: no such field here; see --help",
    "plan --config tiny.py --topology v5e:1x1 --sweep dim=x": "model.dim: given 'x', allowed",
    "plan --config tiny.py --topology v5e:1x1 --what nothing": "--what: given 'nothing', allowed",
    "plan --config tiny.py --topology v5e:1x1 --vocab-size x": "--vocab-size: given 'x', allowed",
    "import --weights nowhere --run runs/i": "--weights: nowhere is no folder, allowed",
    "import --weights w --run runs/i": "--weights: w has no config.json, allowed",
    "import --weights w3 --run runs/i": "--weights: w3 has no model.safetensors, allowed",
    "import --weights w4 --run runs/i": "w4/model.safetensors: given a file that is not whole",
    "import --weights tiny.py --run runs/i": "--weights: tiny.py is no folder, allowed",
    "import --weights w3 --run runs/tiny_default": "run: runs/tiny_default exists, allowed",
    "datastore stats --path s": "path: s is not a datastore, allowed: a folder",
    "datastore stats --path texts": "path: texts is not a datastore, allowed: a folder",
    "datastore verify --path nowhere": "path: nowhere is not a datastore, allowed: a folder",
    "datastore index --path nowhere": "path: nowhere is not a datastore, allowed: a folder",
    "datastore build --path st --shards 3 --run runs/tiny_default": "evaluation.batch_size: given 2, allowed",
    "datastore build --path st --shards -1 --run runs/tiny_default": "--shards: given -1, allowed",
    "datastore plan --path st --key nothing --run runs/tiny_default": "features: given 'nothing', allowed",
    "datastore plan --path st --key-dtype int3 --run runs/tiny_default": "key-dtype: given 'int3', allowed",
    "datastore index --path s --backend x": "--backend: given 'x', allowed",
    "datastore index --path s --metric x": "--metric: given 'x', allowed",
    "datastore index --path s --parts 0": "--parts: given 0, allowed",
    "datastore verify --path s --sample -1": "--sample: given -1, allowed",
    "datastore neighbors --path s --run runs/tiny_default --to near --other a": "--other: given no value, allowed: one",
    "datastore build --path texts --run runs/tiny_default": "path: texts holds 0.txt and is not a datastore",
    "train --config tiny.py --name new --profile x:y": "profile: given 'x:y', allowed",
    "train --config tiny.py --name new --profile 3:2": "profile: given 3:2, allowed",
    "train --config tiny.py --name new --profile 0:1": "profile: given 0:1, allowed",
    "train --config tiny.py --name new --num-processes 2": "processes: given coordinator '', num_processes 2",
    "train --config tiny.py --training.steps 1": "training.steps: given 1, allowed: 2 or more",
    "train --config tiny.py --data.batch-size 4": "runs/tiny_default: holds a run of another config",
    "train --config tiny.py --training.seed 3": "runs/tiny_default: holds a run of another config",
    "train --config tiny.py --data.source.path other": "runs/tiny_default: holds a run of another config",
    "train --tasks nowhere.csv": "--tasks: given 'nowhere.csv', which does not exist, allowed: a file or a folder",
    "train --tasks own.csv ./own.csv": "--tasks: given ./own.csv twice, allowed: each file once",
    "train --tasks own.csv w/own.csv": "--tasks: given two files of the name 'own', allowed: a name of its own for",
    "train --tasks header.csv": "header.csv: no row has a class and a text, allowed: at least one",
    "train --tasks texts_first.csv": "texts_first.csv: 4 classes in 4 rows, as 'four', allowed: .csv with the class in",
    "train --text latin.txt": "--text: latin.txt is not UTF-8 at byte 3; as latin-1 it reads",
    "train --text latin.txt --encoding latinn": "--encoding: given 'latinn', allowed: an encoding such as",
    "train --text own.csv --skip --strict": "--strict: given with --skip, allowed: one of the two",
    "train --config own_text --skip": "--skip: given without your own files, allowed: with --text, --tasks",
    "train --text bin.txt": "--text: bin.txt is not text; give files with text",
    "train --tasks own.csv empty.txt": "empty.txt: given another ending, allowed: .csv, .csv.xz, .csv.gz, .tsv",
    "train --tasks own.csv broken.json": "broken.json: no row has a class and a text, allowed: at least one",
    "train --tasks own.csv --text texts": "--text: given with --tasks, allowed: one of the two",
    "train --tasks own.csv --config pairs.py": "--tasks: given own.csv for LanguageModeling, allowed: a config that",
    "train --add-task own.csv": "--add-task: given without a run, allowed: --run DIR --add-task own.csv",
    "train --run nowhere --add-task own.csv": "nowhere: no run directory (it has no config.json), allowed",
    "train --run runs/tiny_default --add-task own.csv": "--add-task: given a run of one task, allowed",
    "train --run runs/tiny_default --config tiny.py": "--run: given with --config, allowed: one of the two",
    "demo --time x": "--time: no such option of memjax demo; see --help",
    "demo --steps x": "--steps: no such option of memjax demo",
    "demo --nothing": "--nothing: no such option of memjax demo; see --help",
}
"""plan, import, datastore, starts from other runs, resumption with another configuration"""

RETURN = "from memjax.config import *\ndef get_config():\n    return "
CHANGED = "from memjax.config import *\n\ndef get_config():\n    config = Config()\n    {}\n    return config\n"
OWN = {
    "no_function": ("x = 1\n", "has no function get_config(variant)"),
    "syntax": ("def get_config(:\n    pass\n", "line 1: SyntaxError: invalid syntax"),
    "missing_import": (
        "from memjax.config import *\nimport numpi\ndef get_config(): return Config()\n",
        "line 2: ModuleNotFoundError: No",
    ),
    "no_name": (
        "from memjax.config import *\nfrom memjax.config import Memorising\ndef get_config(): return Config()\n",
        "line 2: ImportError: cannot import name",
    ),
    "wrong_field": (
        "from memjax.config import *\n\ndef get_config():\n    return Config(model=Model(dimm=8))\n",
        "line 4: ModelSettings has no field",
    ),
    "wrong_attribute": (
        CHANGED.format("config.model.dimm = 8"),
        "line 5: ModelSettings has no",
    ),
    "wrong_section": (
        CHANGED.format("config.modell.dim = 8"),
        "line 5: Config has no field",
    ),
    "wrong_name": (
        "from memjax.config import *\n\ndef get_config():\n    return Config(model=Modle())\n",
        "line 4: NameError: name 'Modle' is",
    ),
    "raises": ("def get_config():\n    raise KeyError('nothing')\n", "line 2: KeyError: 'nothing'"),
    "zero": ("def get_config():\n    return 1 / 0\n", "line 2: ZeroDivisionError: division by zero"),
    "returns_none": (
        "from memjax.config import *\ndef get_config():\n    Config()\n",
        "line 2: get_config gave NoneType",
    ),
    "returns_dict": ("def get_config():\n    return {'model': 8}\n", "line 1: get_config gave dict"),
    "two_arguments": (
        "from memjax.config import *\ndef get_config(variant, other):\n    return Config()\n",
        "line 2: given get_config(variant",
    ),
    "not_callable": ("get_config = 8\n", "has no function get_config(variant)"),
    "str_for_int": (RETURN + "Config(model=Model(dim='8'))\n", "line 2: model.dim: given '8'"),
    "float_for_int": (RETURN + "Config(model=Model(dim=8.5))\n", "line 2: model.dim: given 8.5"),
    "bool_for_int": (RETURN + "Config(model=Model(dim=True))\n", "line 2: model.dim: given True"),
    "int_for_str": (RETURN + "Config(name=8)\n", "line 2: name: given 8, allowed"),
    "str_for_part": (RETURN + "Config(model='large')\n", "line 2: model: given 'large'"),
    "class_for_part": (RETURN + "Config(model=Model)\n", "line 2: model: given 'the class"),
    "part_elsewhere": (RETURN + "Config(model=Model(attention=Bytes()))\n", "line 2: model.attention: given"),
    "int_for_tuple": (
        RETURN + "Config(model=Model(attention=Memorizing(layers_with_memory=-1)))\n",
        "line 2: model.attention.layers_with_memory",
    ),
    "none_for_int": (RETURN + "Config(model=Model(dim=None))\n", "line 2: model.dim: given None"),
    "str_for_tuple": (
        RETURN + "Config(training=Training(frozen_parameters='head'))\n",
        "line 2: training.frozen_parameters: given",
    ),
    "exits": ("import sys\ndef get_config():\n    sys.exit('nothing to do')\n", "line 3: SystemExit: nothing to do"),
    "exits_at_import": ("raise SystemExit(3)\n", "line 1: SystemExit: 3"),
    "recursion": ("def get_config():\n    return get_config()\n", "line 2: RecursionError: maximum"),
    "asserts": ("def get_config():\n    assert 1 == 2\n", "line 2: AssertionError"),
    "long": (
        "from memjax.config import *\ndef get_config():\n    raise ValueError('one\\ntwo\\nthree')\n",
        "line 3: ValueError: one two three",
    ),
    "nan": (
        RETURN + "Config(training=Training(schedule=Schedule(learning_rate=float('nan'))))\n",
        "line 2: training.schedule.learning_rate",
    ),
    "dict_for_part": (RETURN + "Config(data={'rows': 8})\n", "line 2: data: given {'rows': 8}"),
    "list_of_parts": (RETURN + "Config(evaluations=(8,))\n", "line 2: evaluations: given (8,)"),
}
"""config files: text, and what is said of it after its name"""

SOURCES = (
    ('JsonLines(path="bad.jsonl")', "Bytes()", "path: bad.jsonl, row 2 is not JSON (Expecting property name"),
    ('JsonLines(path="nofield.jsonl")', "Bytes()", "field: nofield.jsonl, row 1 has no text under 'text'"),
    ('JsonLines(path="numbers.jsonl")', "Bytes()", "field: numbers.jsonl, row 1 has no text under 'text'"),
    ('JsonLines(path="list.jsonl")', "Bytes()", "field: list.jsonl, row 1 has no text under 'text'"),
    ('JsonLines(path="nowhere.jsonl")', "Bytes()", "path: nowhere.jsonl does not exist and matches no file"),
    ('JsonLines(path="bin.txt")', "Bytes()", "path: bin.txt is not text; give files with text"),
    ('Enwik8(path="nowhere")', "Bytes()", "path: nowhere is not a file; check the path"),
    ('Enwik8(path="empty.txt")', "Bytes()", "path: empty.txt is empty"),
    ('WikiText(path="nowhere")', "Words()", "path: nowhere has none of train.txt, train.txt.xz"),
    ('Novels(path="nowhere")', "Bytes()", "path: nowhere does not exist"),
    ('Novels(path="x.txt.gz")', "Bytes()", "path: x.txt.gz is not a readable tar"),
    ('TextFiles(path="x.txt.gz")', "Bytes()", "path: x.txt.gz cannot be unpacked (its content is not that of a .gz"),
    ('TextFiles(path="bin.txt")', "Bytes()", "path: bin.txt is not text; give files with text"),
    ('Directories(path="nowhere")', "Bytes()", "path: nowhere is not a folder"),
    ('Mnist(path="nowhere")', "Bytes()", "data.source.path: given 'nowhere', allowed"),
    ('Mnist(path="img")', "Bytes()", "img/train-images-idx3-ubyte: not an idx file of images"),
    ('CmuDog(path="nowhere")', "Bytes()", "data.source.path: nowhere has neither WikiData nor"),
    ('Glue(path="nowhere")', "Bytes()", "data.source: given 'Glue', allowed"),
    ('ParallelText(path="nowhere")', "Bytes()", "data.source: given 'ParallelText', allowed"),
    ('TextFiles(path="texts")', 'SentencePiece(model="nowhere.model")', "tokenizer: nowhere.model is not a file"),
    ('TextFiles(path="texts")', "SentencePiece(vocab_size=1)", "vocab_size: 1"),
    ('TextFiles(path="latin.txt")', "Bytes()", "path: latin.txt is not UTF-8 at byte 3; as latin-1 it reads 'café "),
    ('TextFiles(path="texts", encoding="latinn")', "Bytes()", "data.source.encoding: given 'latinn', allowed"),
    ('TextFiles(path="blank.txt")', "SentencePiece(vocab_size=300)", "texts: no text but white space"),
    ('TextFiles(path="texts")', 'BytePairs(path="nowhere")', "tokenizer: given nowhere, allowed"),
    ('TextFiles(path="texts")', 'BytePairs(path="tok")', "tokenizer: given tok, allowed"),
    ('TextFiles(path="texts")', 'WordPiece(vocab="nowhere")', "vocab: nowhere is not a file, allowed"),
    ('TextFiles(path="texts")', 'WordPiece(vocab="vocab.txt")', "path: vocab.txt is empty"),
    ("Sorting(length=0)", "Bytes()", "data.source.length: given 0, allowed"),
)
"""source, tokenizer and what is said"""

DAMAGED = (
    ("not_json", "eval", "runs/{run}/config.json: damaged (Expecting"),
    ("half_json", "eval", "runs/{run}/config.json: damaged (Unterminated"),
    ("empty_json", "eval", "runs/{run}/config.json: damaged (Expecting"),
    ("list_json", "eval", "runs/{run}/config.json: config: given tuple"),
    ("number_json", "eval", "runs/{run}/config.json: config: given int"),
    ("binary_json", "eval", "runs/{run}/config.json: damaged ('utf-8'"),
    ("unknown_type", "eval", "runs/{run}/config.json: config: type"),
    ("no_type", "eval", "runs/{run}/config.json: config: type None is not"),
    ("unknown_field", "eval", "runs/{run}/config.json: config: Model.dimm"),
    ("wrong_value", "eval", "runs/{run}/config.json: model.dim: given"),
    ("wrong_part", "eval", "runs/{run}/config.json: model: given 'Bytes'"),
    ("other_root", "eval", "runs/{run}/config.json: config: given Bytes"),
    ("null_part", "eval", "runs/{run}/config.json: model: given None"),
    ("no_checkpoint", "eval", "runs/{run}/checkpoints: has no checkpoint"),
    ("cut_manifest", "eval", "runs/{run}/checkpoints: none of the"),
    ("no_arrays", "eval", "runs/{run}/checkpoints: none of the"),
    ("config_dir", "eval", "runs/{run}/config.json: Is a directory"),
    ("not_json", "generate", "runs/{run}/config.json: damaged (Expecting"),
    ("half_json", "generate", "runs/{run}/config.json: damaged"),
    ("wrong_value", "generate", "runs/{run}/config.json: model.dim: given"),
    ("no_checkpoint", "generate", "runs/{run}/checkpoints: has no"),
    ("not_json", "compare", "runs/{run}/config.json: damaged (Expecting"),
    ("half_json", "compare", "runs/{run}/config.json: damaged"),
    ("wrong_value", "compare", "runs/{run}/config.json: model.dim: given"),
    ("no_checkpoint", "compare", "runs/{run}: not finished, allowed"),
    ("torn_versions", "compare", "runs/{run}: not finished, allowed"),
    ("torn_finished", "compare", "runs/{run}/finished.json: damaged"),
    ("finished_list", "compare", "runs/{run}/finished.json: damaged (it"),
    ("finished_empty", "compare", "runs/{run}/finished.json: damaged (it"),
    ("not_json", "train", "runs/{run}/config.json: damaged (Expecting"),
    ("half_json", "train", "runs/{run}/config.json: damaged (Unterminated"),
    ("wrong_value", "train", "runs/{run}/config.json: model.dim: given"),
    ("torn_versions", "train", "runs/{run}/versions.json: damaged"),
    ("torn_finished", "train", "runs/{run}/finished.json: damaged"),
    ("finished_list", "train", "runs/{run}/finished.json: damaged (it has"),
    ("finished_empty", "train", "runs/{run}/finished.json: damaged (it"),
)
"""damage, verb and what is said; `{run}` is the name of the run"""

FILES = {
    "binary.py": b"\xff\xfe\x00x",
    "broken.json": b"{}",
    "not_utf8.txt": b"good\xff bad",
    "empty.txt": b"",
    "latin.txt": b"caf\xe9 " * 300,
    "blank.txt": b" \n" * 300,
    "bin.txt": bytes(range(256)),
    "own.csv": b"good,nice\nbad,poor\n" * 4,
    "w/own.csv": b"good,nice\nbad,poor\n" * 4,
    "header.csv": b"class,title,text\n",
    "texts_first.csv": b"one,a\ntwo,b\nthree,c\nfour,d\n",
    "bad.jsonl": b'{"text": "x"}\n{not json\n',
    "nofield.jsonl": b'{"body": "x"}\n' * 20,
    "numbers.jsonl": b'{"text": 3}\n' * 20,
    "list.jsonl": b"[1]\n" * 20,
    "notmodel.model": b"nothing",
    "vocab.txt": b"",
    "img/train-images-idx3-ubyte": b"abc",
    "wt/train.txt": b"a b c\n",
    "x.txt.gz": b"not gz",
    "x.txt.xz": b"not xz",
    "x.tar": b"not tar",
    "tok/nothing": b"",
    "w/nothing": b"",
    "w2/config.json": b"{",
    "w3/config.json": b'{"model_type": "llama"}',
    "w4/config.json": b'{"model_type": "gpt2"}',
    "w4/model.safetensors": b"abc",
    "s/header.json": b"{",
}
"""what lies beside the run"""
SOURCE = """
from memjax.config import *
def get_config():
    model = Model(dim=8, num_layers=1, num_heads=2)
    data = Data(source={}, tokenizer={}, cache_dir="cache", batch_size=2, segment_length=8)
    return Config(name="new", model=model, data=data, training=Training(steps=2, log_every=1))
"""
PAIRS = """
from memjax.config import *
def get_config():
    model = EncoderDecoder(dim=8, num_layers=1, num_heads=2)
    data = Data(source=NumberWords(num_documents=16), tokenizer=Bytes(), cache_dir="c", batch_size=2, segment_length=8)
    return Config(name="pairs", model=model, data=data, training=Training(steps=2, log_every=1))
"""


def _write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes(content)


def _edit(change: Callable[[dict], object]) -> Callable[[Path], object]:
    def apply(run: Path) -> None:
        config = json.loads((run / "config.json").read_text())
        change(config)
        (run / "config.json").write_text(json.dumps(config))

    return apply


def _unfinished(pattern: str, change: Callable[[Path], object]) -> Callable[[Path], object]:
    def apply(run: Path) -> None:
        (run / "finished.json").unlink()
        for path in sorted(run.glob(pattern)):
            change(path)

    return apply


def _cut(path: Path) -> None:
    if path.is_file():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _folder_for_file(run: Path) -> None:
    (run / "config.json").unlink()
    (run / "config.json").mkdir()


CHANGES: dict[str, Callable[[Path], object]] = {
    "not_json": _write("config.json", b"{not json"),
    "half_json": lambda run: _cut(run / "config.json"),
    "empty_json": _write("config.json", b""),
    "list_json": _write("config.json", b"[1]"),
    "number_json": _write("config.json", b"3"),
    "binary_json": _write("config.json", b"\xff\xfe\x00"),
    "unknown_type": _edit(lambda config: config["model"].update(type="Modle")),
    "no_type": _edit(lambda config: config["model"].pop("type")),
    "unknown_field": _edit(lambda config: config["model"].update(dimm=3)),
    "wrong_value": _edit(lambda config: config["model"].update(dim="8")),
    "wrong_part": _edit(lambda config: config.update(model={"type": "Bytes"})),
    "other_root": _write("config.json", b'{"type": "Bytes"}'),
    "null_part": _edit(lambda config: config.update(model=None)),
    "config_dir": _folder_for_file,
    "no_checkpoint": _unfinished("checkpoints", shutil.rmtree),
    "cut_manifest": _unfinished("checkpoints/*/manifest/metadata", _cut),
    "cut_arrays": _unfinished("checkpoints/*/state/**/d/*", _cut),
    "no_arrays": _unfinished("checkpoints/*/state", shutil.rmtree),
    "torn_versions": _unfinished("versions.json", _cut),
    "torn_finished": lambda run: _cut(run / "finished.json"),
    "finished_list": _write("finished.json", b"[]"),
    "finished_empty": _write("finished.json", b"{}"),
}
"""damage -> what it does to a run"""


TYPED = ("wrong_value", "wrong_part", "null_part")
"""damages that the type checker of the tests, which checks the fields of settings, would see first"""


def write_inputs(folder: Path) -> None:
    """Lays the files and folders that the commands name beside a finished run `runs/tiny_default`."""
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    for name, (text, _) in OWN.items():
        (folder / f"own_{name}.py").write_text(text)
    for number, (source, tokenizer, _) in enumerate(SOURCES):
        (folder / f"source_{number}.py").write_text(SOURCE.format(source, tokenizer))
    (folder / "pairs.py").write_text(PAIRS)


def damage(folder: Path, kind: str, name: str) -> None:
    """Makes the run `runs/NAME`, a damaged copy of `runs/tiny_default`."""
    run = folder / "runs" / name
    shutil.copytree(folder / "runs" / "tiny_default", run)
    _edit(lambda config: config.update(name=name))(run)
    CHANGES[kind](run)
