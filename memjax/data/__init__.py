"""Documents, tokenizers and the streams of segments that training and evaluation read."""

from memjax.data.annotations import AnnotatedDocuments, open_neighbors, write_neighbors
from memjax.data.byte_pairs import BytePairTokenizer, train_byte_pairs
from memjax.data.dialogue import Dialogue, Dialogues, MarkingTokenizer, Turn, Utterance, cmu_dog, dialogue_texts
from memjax.data.documents import ArrayDocuments, Documents
from memjax.data.examples import EXAMPLE, Example, Examples, ExampleStream
from memjax.data.glue import LabelledText, glue_texts, tfds_glue_texts
from memjax.data.identifiers import distant_identifiers, identifier_distances
from memjax.data.images import ImageDocuments, images_of, mnist, png_grid
from memjax.data.opening import Datasets, make_datasets, make_examples, make_tokenizer, open_source, prepare
from memjax.data.python_sources import corpus_sha256, python_version, read_python_sources
from memjax.data.reading import Reading
from memjax.data.rows import RowStream, epoch_order, merge_positions
from memjax.data.seqio import register_tasks, seqio_documents, seqio_tokenizer
from memjax.data.sorting import Sorting
from memjax.data.sources import (
    Texts,
    TextSource,
    directories,
    enwik8,
    json_lines,
    novels,
    read_text,
    text_files,
    wikitext,
)
from memjax.data.squad import Question, squad_questions, tfds_squad_questions
from memjax.data.streams import Streams
from memjax.data.synthetic import KeyValueRecall
from memjax.data.tfds import python_library_builder, tfds_examples, tfds_texts
from memjax.data.token_files import TokenFile, TokenizedDocument, TokenizedTexts, write_token_file, write_tokens
from memjax.data.tokenizers import (
    ByteTokenizer,
    SentencePieceTokenizer,
    SeqioVocabulary,
    StreamingDecoder,
    Tokenizer,
    WordTokenizer,
    train_sentencepiece,
)
from memjax.data.wordpiece import WordPieceTokenizer

__all__ = [
    "EXAMPLE",
    "AnnotatedDocuments",
    "ArrayDocuments",
    "BytePairTokenizer",
    "ByteTokenizer",
    "Datasets",
    "Dialogue",
    "Dialogues",
    "Documents",
    "Example",
    "ExampleStream",
    "Examples",
    "ImageDocuments",
    "KeyValueRecall",
    "LabelledText",
    "MarkingTokenizer",
    "Question",
    "Reading",
    "RowStream",
    "SentencePieceTokenizer",
    "SeqioVocabulary",
    "Sorting",
    "StreamingDecoder",
    "Streams",
    "TextSource",
    "Texts",
    "TokenFile",
    "TokenizedDocument",
    "TokenizedTexts",
    "Tokenizer",
    "Turn",
    "Utterance",
    "WordPieceTokenizer",
    "WordTokenizer",
    "cmu_dog",
    "corpus_sha256",
    "dialogue_texts",
    "directories",
    "distant_identifiers",
    "enwik8",
    "epoch_order",
    "glue_texts",
    "identifier_distances",
    "images_of",
    "json_lines",
    "make_datasets",
    "make_examples",
    "make_tokenizer",
    "merge_positions",
    "mnist",
    "novels",
    "open_neighbors",
    "open_source",
    "png_grid",
    "prepare",
    "python_library_builder",
    "python_version",
    "read_python_sources",
    "read_text",
    "register_tasks",
    "seqio_documents",
    "seqio_tokenizer",
    "squad_questions",
    "text_files",
    "tfds_examples",
    "tfds_glue_texts",
    "tfds_squad_questions",
    "tfds_texts",
    "train_byte_pairs",
    "train_sentencepiece",
    "wikitext",
    "write_neighbors",
    "write_token_file",
    "write_tokens",
]
