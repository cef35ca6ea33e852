"""A stand-in for a bucket that is mounted with gcsfuse: renames of folders are no single operation, and a process may
be killed between any two.

A file gets its new name by a copy, which appears as a whole, and a deletion. A folder is renamed file by file, in any
order. `fsync` does nothing.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Killed(BaseException):
    """The process is killed. Nothing that the stand-in has patched works after it."""


class MountedBucket:
    """Patches renames, deletions and `fsync` of the process.

    Attributes:
      operations: Number of copies and deletions so far.
      renamed_folders: Folders that were renamed.
    """

    def __init__(self, monkeypatch: Any, *, kill_at: int = 0, kill_on: str = "", seed: int = 0):
        """Patches the functions of the modules `os` and `shutil`.

        Args:
          monkeypatch: Fixture of pytest, which takes the patches back.
          kill_at: Number of the operation before which the process is killed. 0 for none.
          kill_on: Name of the file before whose renaming the process is killed. '' for none.
          seed: Seed of the order in which the files of a folder are renamed.
        """
        self.operations, self.renamed_folders = 0, list[str]()
        self._kill_at, self._kill_on, self._draw = kill_at, kill_on, random.Random(seed)
        self._unlink = os.unlink
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, self._rename)
        monkeypatch.setattr(shutil, "move", self._rename)
        for name in ("unlink", "remove"):
            monkeypatch.setattr(os, name, self._step(os.unlink))
        monkeypatch.setattr(os, "rmdir", self._step(os.rmdir))
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)

    def _step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function as one operation."""

        def call(*arguments: Any, **options: Any) -> Any:
            self.operations += 1
            if 0 < self._kill_at <= self.operations:
                raise Killed
            return function(*arguments, **options)

        return call

    def _rename(self, source: Any, target: Any) -> None:
        source, target = Path(source), Path(target)
        if not source.is_dir():
            self._rename_file(source, target)
            return
        self.renamed_folders.append(str(source))
        files = [file for file in source.rglob("*") if file.is_file()]
        for file in self._draw.sample(files, len(files)):
            (target / file.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            self._rename_file(file, target / file.relative_to(source))
        shutil.rmtree(source)

    def _rename_file(self, source: Path, target: Path) -> None:
        if target.name == self._kill_on:
            raise Killed
        self._step(shutil.copyfile)(source, target)
        self._step(self._unlink)(source)
