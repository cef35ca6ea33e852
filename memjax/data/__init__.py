"""Documents, tokenizers and the streams of segments that training and evaluation read."""
