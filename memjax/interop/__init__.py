"""Import and export of weights of Hugging Face's `transformers`, and runs as models of `lm-eval`."""

from memjax.interop import hf_bert, hf_gpt2, hf_llama, hf_llama_kin, hf_roberta, hf_transfo_xl
from memjax.interop.runs import *

__all__ = ["hf_bert", "hf_gpt2", "hf_llama", "hf_llama_kin", "hf_roberta", "hf_transfo_xl"]
