"""Models on the Hub by huggingface_hub: the configuration, and the headers of the weights by range. No weights are loaded.

`owner/name`, `owner/name@revision`, `owner/name:file.gguf`. Token, cache, endpoint and offline mode are huggingface_hub's
own (HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import MissingExtraError, TfmError, UnreadableError, UsageError
from ..huggingface import read_config
from ..huggingface.jsonfile import read_json
from ..spec import ModelSpec
from .gguf_file import read_parts
from .gguf_model import model_of_gguf
from .remote import Deadline, RangeSource, hub_utils, within
from .safetensors_file import INDEX_ENDING, MOST_HEADER, check_index, choose_files, gather, read_header, shards_of
from .source import FileSource, Source, safe_text
from .stored import StoredWeights

T = TypeVar("T")
Found = tuple[ModelSpec | None, StoredWeights | None, str]
WRITTEN = re.compile(r"(?P<repo>[^@:]+)(@(?P<revision>[^:]+))?(:(?P<file>.+))?")
SECONDS = 10  # for one answer
ALL_SECONDS = 120.0  # for all headers of a model
FILE_SECONDS = 30.0  # for one small file
AT_ONCE = 8
CONFIG = "config.json"


class Repo(msgspec.Struct, frozen=True, kw_only=True):
    """A repository at one revision.

    Attributes:
        revision: as asked for, which is how the cache finds it again. commit: what that is now.
        names: its files, None where the server gave no list. sizes: of those whose size it said.
        offline: only the cache is there. asked: the id as it was written; a renamed repository has another.
    """

    repo: str
    revision: str | None
    asked: str
    names: tuple[str, ...] | None = None
    sizes: dict[str, int] = msgspec.field(default_factory=dict)
    commit: str | None = None
    offline: bool = False

    def has(self, file: str) -> bool:
        """Whether the file is listed, or might be there."""
        return self.names is None or file in self.names


def read_hub(name: str, *, lenient: bool = False, weights: bool = True) -> Found:
    """(model, weights, why there is no model) of a repository, or of a file in one.

    Args:
        name: the id as described above.
        lenient: as in `load_model`. weights: read the headers of the weights too.

    Raises:
        MissingExtraError: without huggingface_hub.
        UnreadableError: not reached, missing, gated, or not understood; one line with what to do.
    """
    written = WRITTEN.fullmatch(name)
    if written is None:
        raise UsageError(f"{name!r} is no id on the Hub; write owner/name, owner/name@revision or owner/name:file.gguf")
    file = written["file"]
    if file is not None and not file.endswith((".gguf", ".safetensors")):
        raise UsageError(f"{name!r}: a file of a repository must be a .gguf or a .safetensors file, got {file!r}")
    quiet()
    repo = find_repo(written["repo"], written["revision"])
    if file is not None and file.endswith(".gguf"):
        return with_note(read_remote_gguf(repo, file), repo)
    spec = read_remote_config(repo, lenient=lenient, needed=file is None)
    held = read_remote_safetensors(repo, file) if weights or spec is None else None
    why = "" if spec else f"{repo.repo} holds no config.json"
    return with_note((spec, held, why), repo)


def quiet() -> None:
    """Without huggingface_hub's progress and warnings: what goes wrong is said once, by us."""
    try:
        utils = hub_utils()
    except ImportError as error:
        raise MissingExtraError("reading from the Hub needs the package huggingface_hub: pip install 'tfm-toolkit[hub]'") from error
    utils.disable_progress_bars()
    utils.logging.set_verbosity_error()


def with_note(found: Found, repo: Repo) -> Found:
    """What a reader must know of where the numbers came from, among the model's assumptions."""
    spec, held, why = found
    lines = []
    if repo.repo != repo.asked:
        lines.append(f"{repo.asked} was renamed: it is {repo.repo} now, use that id")
    if repo.offline:
        lines.append(f"the Hub was not reached; {repo.repo} is as the cache has it" + ("" if held else ", its weights are not there"))
    if spec is not None and lines:
        spec = msgspec.structs.replace(spec, assumptions=(*spec.assumptions, *lines))
    return spec, held, why


# --- what the Hub says ----------------------------------------------------------------------------------------------


def guarded(repo: str, revision: str | None, ask: Callable[[], T]) -> T:
    """The answer, or one line why there is none."""
    try:
        return ask()
    except TfmError:
        raise
    except Exception as error:
        raise explained(error, repo, revision) from error


def explained(error: Exception, repo: str, revision: str | None) -> UnreadableError:
    """What went wrong and what to do, by the kind of huggingface_hub's error."""
    from huggingface_hub import constants

    kinds = {kind.__name__ for kind in type(error).__mro__}
    where, name = constants.ENDPOINT, safe_text(repo, 200)[1:-1]
    if "GatedRepoError" in kinds:
        why = f"is gated; ask for access at {where}/{name}, then log in (`hf auth login`) or set HF_TOKEN"
    elif "RevisionNotFoundError" in kinds:
        why = f"has no revision {safe_text(str(revision))}; see {where}/{name}/commits"
    elif "RepositoryNotFoundError" in kinds:
        why = f"is not on {where}, or private; check the id, or log in (`hf auth login`) or set HF_TOKEN"
    elif "DisabledRepoError" in kinds:
        why = f"was disabled on {where}"
    elif "OfflineModeIsEnabled" in kinds or "LocalEntryNotFoundError" in kinds:
        why = f"is not in the cache, and {where} is not reached (offline?); connect, or unset HF_HUB_OFFLINE, or give a local config.json"
    elif "EntryNotFoundError" in kinds:
        why = "does not have the file that was asked for"
    elif "HFValidationError" in kinds:
        why = "is no id on the Hub; write owner/name"
    elif any("Timeout" in kind for kind in kinds):
        why = f"cannot be read: {where} did not answer in time; try again, or set HF_ENDPOINT to a mirror"
    elif kinds & {"ConnectError", "ConnectionError", "NetworkError", "TransportError", "RemoteProtocolError"}:
        why = f"cannot be read: {where} is not reached; connect, set HF_ENDPOINT to a mirror, or give a local config.json"
    else:
        status = getattr(getattr(error, "response", None), "status_code", None)
        said = f"answered {status}" if status else f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        why = f"cannot be read from {where}: {said}"
    return UnreadableError(f"{name} {why}")


def unreached(error: Exception) -> bool:
    """Whether the server was not reached at all, so that the cache is what is left."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"OfflineModeIsEnabled", "ConnectError", "ConnectionError", "ConnectTimeout"})


def find_repo(name: str, revision: str | None) -> Repo:
    """The repository with the list of its files; from the cache where the Hub is not reached."""
    from huggingface_hub import HfApi

    def ask() -> Repo:
        try:
            info = within(FILE_SECONDS, lambda: HfApi().model_info(name, revision=revision, files_metadata=True, timeout=SECONDS))
        except Exception as error:
            if unreached(error):
                return Repo(repo=name, revision=revision, asked=name, offline=True)
            kinds = {kind.__name__ for kind in type(error).__mro__}
            if "RepositoryNotFoundError" in kinds and "GatedRepoError" not in kinds:  # a plain mirror has files and no list
                get_file(Repo(repo=name, revision=revision, asked=name), CONFIG, or_raise=error)
                return Repo(repo=name, revision=revision, asked=name)
            raise
        files = info.siblings or []
        sizes = {file.rfilename: file.size for file in files if file.size is not None}
        names = tuple(file.rfilename for file in files)
        return Repo(repo=info.id or name, revision=revision, commit=info.sha, asked=name, names=names, sizes=sizes)

    return guarded(name, revision, ask)


def get_file(repo: Repo, file: str, *, or_raise: Exception | None = None) -> Path:
    """A small file by huggingface_hub's own download and cache, in bounded time."""
    from huggingface_hub import hf_hub_download

    if repo.sizes.get(file, 0) > MOST_HEADER:
        raise UnreadableError(f"{repo.repo}: {file} is {repo.sizes[file]:,} bytes, more than it can be ({MOST_HEADER:,})")
    download = partial(
        hf_hub_download, repo.repo, file, revision=repo.revision, etag_timeout=SECONDS, local_files_only=repo.offline, library_name="tfm"
    )
    try:
        return Path(within(FILE_SECONDS, download))
    except Exception as error:
        if or_raise is not None:
            raise or_raise from error
        raise


def fetch(repo: Repo, file: str) -> Path:
    """`get_file`, errors explained."""
    return guarded(repo.repo, repo.revision, lambda: get_file(repo, file))


# --- configuration --------------------------------------------------------------------------------------------------


def read_remote_config(repo: Repo, *, lenient: bool, needed: bool) -> ModelSpec | None:
    """The model that the repository's configuration describes; None where it has none and none is needed."""
    if not repo.has(CONFIG):
        ggufs = [name for name in repo.names or () if name.endswith(".gguf")]
        if ggufs:
            raise UnreadableError(f"{repo.repo} holds GGUF files and no config.json; name one, as in {repo.asked}:{ggufs[0]}")
        if needed and not any(name.endswith(".safetensors") for name in repo.names or ()):
            raise UnreadableError(f"{repo.repo} holds neither a config.json nor safetensors files, so it is no model that is understood")
        return None
    data, _, _ = read_json(fetch(repo, CONFIG))
    try:
        spec = read_config(data, lenient=lenient)
    except UnreadableError as error:
        raise UnreadableError(f"{repo.repo}: config.json{str(error).removeprefix('configuration')}") from None
    commit = repo.commit or repo.revision
    at = f" at {commit[:12]}" if commit else ""
    return msgspec.structs.replace(spec, name=repo.repo.rsplit("/", 1)[-1], title=repo.repo, source=(f"config.json of {repo.repo}{at}",))


# --- weights --------------------------------------------------------------------------------------------------------


def opener(repo: Repo) -> Callable[[str], Source]:
    """Opens files of a repository: from the cache where it has them, else by range."""
    deadline = Deadline(ALL_SECONDS)

    def open_file(file: str) -> Source:
        from huggingface_hub import constants, hf_hub_url, try_to_load_from_cache

        cached = try_to_load_from_cache(repo.repo, file, revision=repo.commit or repo.revision)
        if isinstance(cached, str):
            return FileSource(Path(cached))
        if repo.offline:
            raise UnreadableError(f"{repo.repo}:{file} is not in the cache, and {constants.ENDPOINT} is not reached")
        url = hf_hub_url(repo.repo, file, revision=repo.commit or repo.revision)
        name, utils = f"{repo.repo}:{file}", hub_utils()
        headers = utils.build_hf_headers(library_name="tfm")
        return RangeSource(url, headers, name=name, session=utils.get_session(), deadline=deadline)

    return lambda file: guarded(repo.repo, repo.revision, lambda: open_file(file))


def read_remote_safetensors(repo: Repo, file: str | None) -> StoredWeights | None:
    """The headers of the repository's safetensors files; None where there are none, or offline none in the cache."""
    if file is not None:
        check_listed(repo, file)
        return gather({file: header(repo, opener(repo), file)}, origin=f"{repo.repo}:{file}")
    if repo.names is None:
        return guess_safetensors(repo)
    chosen = choose_files([name for name in repo.names if "/" not in name and name.endswith((".safetensors", INDEX_ENDING))])
    return by_files(repo, chosen) if chosen else None


def guess_safetensors(repo: Repo) -> StoredWeights | None:
    """By the usual names, where there is no list of files; offline what is not in the cache is not there."""
    for usual in ("model" + INDEX_ENDING, "model.safetensors"):
        try:
            return by_files(repo, [usual])
        except UnreadableError as error:
            if "does not have the file" not in str(error) and not repo.offline:
                raise
    return None


def by_files(repo: Repo, chosen: list[str]) -> StoredWeights:
    """Headers of the files, several at once; an index is fetched and names them."""
    index = FileSource(fetch(repo, chosen[0])) if chosen[0].endswith(INDEX_ENDING) else None
    names = list(shards_of(index)) if index else chosen
    missing = [name for name in names if not repo.has(name)]
    if missing:
        raise UnreadableError(f"{repo.repo}: shard {safe_text(missing[0])} of its index is missing in the repository")
    open_file = opener(repo)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        headers = dict(zip(names, pool.map(lambda name: header(repo, open_file, name), names), strict=True))
    weights = gather(headers, origin=repo.repo)
    return check_index(weights, index) if index else weights


def header(repo: Repo, open_file: Callable[[str], Source], file: str) -> Any:
    """One file's tensors and metadata."""
    return guarded(repo.repo, repo.revision, lambda: read_header(open_file(file)))


def read_remote_gguf(repo: Repo, file: str) -> Found:
    """A GGUF file in a repository, by its header."""
    check_listed(repo, file)
    open_file = opener(repo)
    origin = f"{repo.repo}:{file}"
    weights = guarded(repo.repo, repo.revision, lambda: read_parts(file, open_file, origin=origin))
    try:
        spec = model_of_gguf(weights)
    except UnreadableError as error:
        return None, weights, str(error)
    return msgspec.structs.replace(spec, source=(f"metadata of {origin}", *spec.source[1:])), weights, ""


def check_listed(repo: Repo, file: str) -> None:
    """The file must be one of the repository's."""
    if repo.has(file):
        return
    alike = [name for name in repo.names or () if name.endswith(file[file.rfind(".") :])]
    close = difflib.get_close_matches(file, alike, n=3, cutoff=0.4) or alike[:3]
    raise UnreadableError(f"{repo.repo} has no file {safe_text(file)}" + (f"; it has {', '.join(close)}" if close else ""))
