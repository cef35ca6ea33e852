"""Weights of other libraries, in and out."""

from memjax.interop import hf_bert, hf_gpt2, hf_roberta, hf_transfo_xl
from memjax.interop.runs import *

__all__ = ["hf_bert", "hf_gpt2", "hf_roberta", "hf_transfo_xl"]
