"""Fetching files of the hub into its cache, each as a whole or not at all.

``huggingface_hub`` asks, names and links; a large file's content is fetched here, under the lock
and the name that the package has for it: what has come before a break is kept and continued, and
the content is compared with the checksum by which the hub lists it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from tqdm import tqdm

from mtpcore.boundary.atomic import replacing
from mtpcore.errors import ModelFileError, spell
from mtpcore.hub.choice import Offered
from mtpcore.version import version

if TYPE_CHECKING:
    from io import BufferedRandom

__all__ = [
    "CHECKPOINT",
    "PARTIAL",
    "FetchReport",
    "Repository",
    "ask",
    "cache_root",
    "download",
    "is_offline",
    "repository_folder",
    "show_bar",
]

FetchReport = Callable[[int, int], None]
"""Told how many bytes have come, and of how many."""

CHECKPOINT = (
    r"[^/]*\.safetensors(\.index\.json)?",
    r"(generation_)?config\.json",
    r"tokenizer(_config)?\.jsonl?|tokenizer\.json|(vocab|added_tokens|special_tokens_map)\.json",
    r"(tokenizer|spiece)\.model|(merges|vocab)\.txt",
    r"chat_template\.(json|jinja)|additional_chat_templates/[^/]*\.jinja",
    r"README\.md",
)
"""Files of a published checkpoint that a conversion reads, as expressions."""
PARTIAL = ".mtpcore.incomplete"
_SHA256 = re.compile("[0-9a-f]{64}")
_CHUNK = 1 << 20
_NOT_THERE = (
    "the hub has no such repository, or it is private",
    None,
    "see how its page spells it; for a private one set HF_TOKEN or run hf auth login",
)


class Repository(msgspec.Struct, frozen=True):
    """What a repository holds at one commit of its main branch.

    Attributes
    ----------
    repo : str
        ``owner/name``.
    commit : str
    files : tuple of Offered
    folder : Path
        Where the cache has these files, those that were fetched.
    """

    repo: str
    commit: str
    files: tuple[Offered, ...]
    folder: Path


def cache_root() -> Path:
    """Return the folder of the hub's cache; ``HF_HOME`` and ``HF_HUB_CACHE`` say where."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def repository_folder(repo: str) -> Path:
    """Return the folder of a repository in the cache; it may not be there."""
    return cache_root() / f"models--{repo.replace('/', '--')}"


def is_offline() -> bool:
    """Say whether ``HF_HUB_OFFLINE`` forbids asking the hub."""
    from huggingface_hub import is_offline_mode

    return bool(is_offline_mode())


def ask(repo: str) -> Repository:
    """Ask the hub what a repository holds; one request.

    Raises
    ------
    ModelFileError
        There is no such repository, it is private or gated, or the hub cannot be reached.
    """
    from huggingface_hub import HfApi

    with _words(repo):
        info = HfApi(library_name="mtpcore", library_version=version()).model_info(
            repo, files_metadata=True, timeout=30
        )
    files = tuple(
        Offered(one.rfilename, one.size or 0, one.lfs.sha256 if one.lfs else "")
        for one in info.siblings or ()
    )
    commit = info.sha or ""
    if not re.fullmatch("[0-9a-f]{40}", commit):
        raise ModelFileError(
            "the hub does not say which commit it has",
            where=f"hf:{repo}",
            wanted="40 hexadecimal digits",
            got=commit[:80],
            fix="see whether HF_ENDPOINT is the address of a hub",
        )
    return Repository(repo, commit, files, repository_folder(repo) / "snapshots" / commit)


def download(there: Repository, files: Sequence[Offered], report: FetchReport | None) -> list[Path]:
    """Fetch files into the cache, those that it does not have, and return their paths.

    Files come one after the other. What was fetched of one before a break stays beside its final
    name, and the next call goes on from there; of several processes one fetches, and the others
    wait for it.

    Parameters
    ----------
    there : Repository
        As ``ask`` returned it.
    files : sequence of Offered
        Some of its files.
    report : callable, optional
        Called with the bytes that have come, and all of them.

    Raises
    ------
    ModelFileError
        A file cannot be fetched, or is not the one that the hub lists; says what to do.
    """
    from huggingface_hub import constants, hf_hub_download

    folder, total, done = repository_folder(there.repo), sum(one.n_bytes for one in files), 0
    paths = []
    for one in files:
        before = done

        def tell(n_bytes: int, before: int = before) -> None:
            if report is not None:
                report(before + n_bytes, total)

        with _words(there.repo, one):
            is_here = (there.folder / one.path).exists()
            # What is larger comes by another way, which the package has, and is not continued.
            if (
                not is_here
                and _SHA256.fullmatch(one.sha256)
                and one.n_bytes <= constants.MAX_HTTP_DOWNLOAD_SIZE
            ):
                _fetch(there, one, folder, tell)
            path = hf_hub_download(
                there.repo,
                one.path,
                revision=there.commit,
                library_name="mtpcore",
                library_version=version(),
                tqdm_class=_bar_of(tell),
            )
        done += one.n_bytes
        tell(one.n_bytes)
        paths.append(Path(path))
    with _words(there.repo):
        _remember(folder, there.commit)
    return paths


@contextmanager
def show_bar(title: str, shown: bool | None = None) -> Iterator[FetchReport]:
    """Show a bar on standard error while the block runs; it is told the bytes that have come.

    Parameters
    ----------
    title : str
    shown : bool, optional
        Default: where standard error is a terminal.
    """
    if shown is None:
        shown = sys.stderr.isatty()
    with tqdm(desc=title, unit="B", unit_scale=True, file=sys.stderr, disable=not shown) as bar:

        def report(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield report


class _Silent(tqdm):  # type: ignore[misc]
    """A bar that is not shown: progress is reported by who writes."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{**settings, "disable": True})


def _bar_of(tell: Callable[[int], None]) -> type[_Silent]:
    """Return bars that are not shown, and tell how much has come."""

    class Told(_Silent):
        come = 0

        def update(self, n: float | None = 1) -> None:
            Told.come += int(n or 0)
            tell(Told.come)

    return Told


class _Counted:
    """A file that tells how much of it is written."""

    def __init__(self, file: BufferedRandom, tell: Callable[[int], None]) -> None:
        self._file, self._tell = file, tell

    def write(self, data: bytes) -> int:
        n = self._file.write(data)
        self._tell(self._file.tell())
        return n

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _fetch(there: Repository, one: Offered, folder: Path, tell: Callable[[int], None]) -> None:
    """Fetch the content of a large file, which lies under its checksum."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    blob = folder / "blobs" / one.sha256
    lock = cache_root() / ".locks" / folder.name / f"{one.sha256}.lock"
    for path in (blob, lock):
        path.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if blob.exists():
            return
        partial = blob.with_name(blob.name + PARTIAL)
        partial.touch()
        with open(partial, "r+b") as file:
            n_there = file.seek(0, os.SEEK_END)
            if n_there > one.n_bytes:
                n_there = file.seek(0)
                file.truncate()
            _check_room(partial, one.n_bytes - n_there)
            tell(n_there)
            http_get(
                hf_hub_url(there.repo, one.path, revision=there.commit),
                _Counted(file, tell),
                resume_size=n_there,
                headers=build_hf_headers(library_name="mtpcore", library_version=version()),
                expected_size=one.n_bytes,
                tqdm_class=_Silent,
            )
            file.flush()
            os.fsync(file.fileno())
        if (got := _digest(partial)) != one.sha256:
            partial.unlink()
            raise ModelFileError(
                "what came is not the file that the hub lists",
                where=f"hf:{there.repo}/{one.path}",
                wanted=f"SHA-256 {one.sha256}",
                got=got,
                fix="fetch it again; where it comes like this once more, something between the hub "
                "and this machine changes it",
            )
        partial.replace(blob)


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _check_room(path: Path, n_bytes: int) -> None:
    """Raise where the disk has no room for as many bytes more."""
    if shutil.disk_usage(path.parent).free < n_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _remember(folder: Path, commit: str) -> None:
    """Note which commit the main branch has, as the cache keeps it."""
    ref = folder / "refs" / "main"
    if ref.is_file() and ref.read_text("utf-8") == commit:
        return
    ref.parent.mkdir(parents=True, exist_ok=True)
    with replacing(ref) as written:
        written.write_text(commit, "utf-8")


@contextmanager
def _words(repo: str, file: Offered | None = None) -> Iterator[None]:
    """Say what the package's errors mean to who asked for a model.

    The package's telemetry is switched off in this process: it would ask the hub for more than the
    model, and tell it about this machine.
    """
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        yield
    except ModelFileError:
        raise
    except Exception as error:
        said = _explain(error, repo, file)
        if said is None:
            raise
        what, got, fix = said
        where = f"hf:{repo}" + (f"/{file.path}" if file else "")
        raise ModelFileError(what, where=where, got=got, fix=fix) from error


def _explain(error: Exception, repo: str, file: Offered | None) -> tuple[str, object, str] | None:
    """Return what went wrong, the value found and the fix; None: it is not about the hub."""
    from huggingface_hub import errors
    from huggingface_hub.constants import ENDPOINT

    again = "; what has come is kept, and fetching goes on from there" if file else ""
    if isinstance(error, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
        cause = error.__cause__
        if cause is None or isinstance(cause, errors.OfflineModeIsEnabled):
            return (
                "the cache does not hold it, and HF_HUB_OFFLINE forbids asking the hub",
                None,
                f"fetch it while there is a network: mtpcore pull {repo}",
            )
        return _explain(cause, repo, file) if isinstance(cause, Exception) else None
    if isinstance(error, errors.GatedRepoError):
        return (
            "the repository is gated: its authors ask who uses it",
            None,
            f"accept its terms at {ENDPOINT}/{repo}, and set HF_TOKEN or run hf auth login",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return _NOT_THERE
    if isinstance(error, errors.EntryNotFoundError | errors.RevisionNotFoundError):
        return "the file was there and is not any more", None, "ask again: mtpcore pull " + repo
    response = getattr(error, "response", None)
    if isinstance(error, errors.HfHubHTTPError) and response is not None:
        return _explain_status(response.status_code, response.headers, again)
    if isinstance(error, OSError):
        return _explain_system(error, again)
    if type(error).__module__.partition(".")[0] in ("httpx2", "httpcore2", "httpx", "httpcore"):
        return (
            f"the hub at {ENDPOINT} cannot be reached, or broke off",
            spell(error, str) or type(error).__name__,
            "see whether this machine has a network, and whether HF_ENDPOINT and the proxies are "
            f"right{again}",
        )
    if isinstance(error, ValueError) and "hf_xet" in str(error):
        return "the file is larger than the hub sends by plain HTTP", None, "pip install hf_xet"
    if isinstance(error, ValueError):  # of sizes, addresses and answers
        return (
            "the hub's answer cannot be used",
            spell(error, str),
            "see whether HF_ENDPOINT is one",
        )
    return None


def _explain_status(status: int, headers: Any, again: str) -> tuple[str, object, str]:
    if status in (401, 404):
        return _NOT_THERE
    if status == 403:
        return (
            "the hub refuses it",
            f"status {status}",
            "set HF_TOKEN to a token that may read it, or run hf auth login",
        )
    if status == 429:
        wait = headers.get("Retry-After")
        pause = f" {wait} s" if wait else " some minutes"
        return (
            "the hub has had too many requests from here",
            f"status {status}",
            f"wait{pause} and try again{again}; with HF_TOKEN there may be more",
        )
    return "the hub failed", f"status {status}", f"try again later{again}"


def _explain_system(error: OSError, again: str) -> tuple[str, object, str] | None:
    if error.errno == errno.ENOSPC:
        return (
            "no room on the disk",
            None,
            f"make room, or set HF_HOME to a folder on another disk{again}",
        )
    if str(error).startswith("Consistency check failed"):
        return "the file came with another size than the hub lists", None, f"try again{again}"
    if error.errno in (errno.EACCES, errno.EROFS):
        return (
            "the cache cannot be written",
            error.filename,
            "set HF_HOME to a folder that you may write",
        )
    return None
