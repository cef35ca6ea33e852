"""Images as documents and back, from files made here."""

import gzip
import struct
import zlib

import numpy as np
import pytest

from memjax import config as configs
from memjax.data.documents import Documents
from memjax.data.images import ImageDocuments, images_from_tokens, mnist, png_grid, read_idx
from memjax.data.opening import make_datasets

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 3, 4)).astype(np.uint8)


def idx(images) -> bytes:
    return struct.pack(">IIII", 2051, *images.shape) + images.tobytes()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(IMAGES)))
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(IMAGES[:2]))
    return tmp_path


def test_documents_are_pixels():
    documents = ImageDocuments(IMAGES)
    assert isinstance(documents, Documents) and len(documents) == 6 and documents.num_tokens(0) == 12
    tokens = documents[4]
    assert tokens.dtype == np.int32 and tokens.min() >= 3 and tokens.max() < documents.vocab_size
    np.testing.assert_array_equal(images_from_tokens(tokens[None], 3, 4)[0], IMAGES[4])
    assert images_from_tokens(np.array([[0, 1, 2, 258]]), 2, 2).tolist() == [[[0, 0], [0, 255]]]


def test_splits_of_the_files(folder):
    train, validation, test = (mnist(folder, split) for split in ("train", "validation", "test"))
    assert [len(part) for part in (train, validation, test)] == [3, 3, 2]
    np.testing.assert_array_equal(validation[0], 3 + IMAGES[3].reshape(-1).astype(int))
    np.testing.assert_array_equal(test[1], 3 + IMAGES[1].reshape(-1).astype(int))
    assert len({part.fingerprint for part in (train, validation, test)}) == 3
    datasets = make_datasets(configs.Data(source=configs.Mnist(path=str(folder))))
    assert (datasets.vocab_size, datasets.begin_token, len(datasets.documents("test"))) == (259, 1, 2)


def test_a_grid_is_a_png_of_its_pixels():
    content = png_grid(IMAGES, columns=4)
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert (width, height) == (4 * 5 - 1, 2 * 4 - 1)
    length = struct.unpack(">I", content[33:37])[0]
    data = content[41 : 41 + length]
    assert struct.unpack(">I", content[41 + length : 45 + length])[0] == zlib.crc32(b"IDAT" + data)
    lines = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, width + 1)
    assert not lines[:, 0].any()
    np.testing.assert_array_equal(lines[:3, 1:5], IMAGES[0])
    np.testing.assert_array_equal(lines[4:7, 6:10], IMAGES[5])


def test_other_files_are_refused(folder):
    with pytest.raises(ValueError, match="split: given 'dev', allowed: train, validation, test"):
        mnist(folder, "dev")
    with pytest.raises(ValueError, match="allowed: a folder with t10k-images-idx3-ubyte, also .gz"):
        mnist(folder / "nothing", "test")
    (folder / "labels").write_bytes(struct.pack(">II", 2049, 0) + bytes(16))
    with pytest.raises(ValueError, match="not an idx file of images"):
        read_idx(folder / "labels")
    (folder / "short").write_bytes(idx(IMAGES)[:-1])
    with pytest.raises(ValueError, match="87 bytes, 88 expected"):
        read_idx(folder / "short")
    with pytest.raises(ValueError, match="allowed: uint8"):
        ImageDocuments(IMAGES.astype(float))
