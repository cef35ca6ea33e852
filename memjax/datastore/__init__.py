"""Key-value stores on disk, independent of any document, and indices that find the nearest entries of a query."""

from memjax.datastore.exact import *
from memjax.datastore.faiss import *
from memjax.datastore.files import *
from memjax.datastore.hosts import *
from memjax.datastore.index import *
from memjax.datastore.opening import *
from memjax.datastore.plan import *
from memjax.datastore.scann import *
from memjax.datastore.sharded import *
from memjax.datastore.store import *
from memjax.datastore.verification import *
from memjax.datastore.writer import *
from memjax.settings.compatibility import renamed_names as _renamed_names

__getattr__ = _renamed_names(__name__)
