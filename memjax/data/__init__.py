"""Data sets, tokenizers, and iterators over batches of segments for training and evaluation."""

from memjax.data.annotations import *
from memjax.data.batch_iterator import *
from memjax.data.byte_pairs import *
from memjax.data.corpora import *
from memjax.data.dialogue import *
from memjax.data.document_batches import *
from memjax.data.documents import *
from memjax.data.events import *
from memjax.data.example_batches import *
from memjax.data.file_contents import *
from memjax.data.glue import *
from memjax.data.identifiers import *
from memjax.data.images import *
from memjax.data.key_value_recall import *
from memjax.data.opening import *
from memjax.data.python_sources import *
from memjax.data.qa_srl import *
from memjax.data.quac import *
from memjax.data.questions import *
from memjax.data.reading_plan import *
from memjax.data.reading_report import *
from memjax.data.record_files import *
from memjax.data.records import *
from memjax.data.seqio import *
from memjax.data.sorting import *
from memjax.data.source_readers import *
from memjax.data.sources import *
from memjax.data.squad import *
from memjax.data.text_classes import *
from memjax.data.text_splits import *
from memjax.data.tfds import *
from memjax.data.token_files import *
from memjax.data.tokenizers import *
from memjax.data.trivia_qa import *
from memjax.data.vectors import *
from memjax.data.wordpiece import *
from memjax.settings.compatibility import renamed_names as _renamed_names

__getattr__ = _renamed_names(__name__)
