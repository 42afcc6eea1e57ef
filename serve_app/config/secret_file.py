"""Files with a secret of this user's servers."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path


def secret_file(path: Path) -> Path:
    """The file `path` with 32 random bytes in hexadecimal; it is made on first use, atomically.

    Only the owner can access the file and its folder. If several processes need it at once, only one makes
    it. Raises OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    is_empty = path.exists() and not path.stat().st_size  # left by a full disk
    if is_empty or not path.exists():
        fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
            (os.replace if is_empty else os.link)(fresh, path)
        except FileExistsError:
            pass  # another process was faster: its secret counts
        finally:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the folder may be another user's, or read-only
        path.chmod(0o600)
    return path
