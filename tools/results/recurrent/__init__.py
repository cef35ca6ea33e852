"""Tables of recurrent memories: cost and state of Memformer and Transformer-XL, digits that a run draws."""
