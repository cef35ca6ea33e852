"""Tables of recurrent memories: cost and state of Memformer and Transformer-XL, memories added to a trained GPT-2,
regression of infinity-former's signal, digits that a run draws."""
