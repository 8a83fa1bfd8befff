"""Chooses which of the files that a glob or a folder holds are trained on, and which are held out.

A file that the user names itself is read as it is. Of a glob and of a folder, only files of the
kind that has the most bytes are read; what is named test is never trained on, and what is named
validation is held out.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from elman.base.errors import UserError
from elman.data.matching import Left, Match, Names, matched
from elman.data.planning import OtherKindError, SourceFile, inner_suffix, look
from elman.data.splits import Split, split_of
from elman.sections.training import DataFormat

# Files that lie beside the data in folders of data sets, and are read only if nothing else is.
_BESIDE = (
    *("readme*", "license*", "licence*", "copying*", "notice*", "citation*", "changelog*"),
    *("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"),
    *("*.lock", "*.incomplete", "*.tmp", "*.part", "*.crc", "*.md5", "*.sha256", "sha256sums*"),
    *("_success", "*.pyc", "thumbs.db", "cache-*.arrow"),
)
_TEST_WHY = "a test split"
# Program text is one kind, whatever the language.
_CODE = re.compile(
    r"\.(py|pyi|pyx|c|h|cc|cpp|cxx|hpp|cu|cuh|js|mjs|ts|jsx|tsx|java|kt|scala|go|rs|rb|php|pl|lua"
    r"|sh|bash|r|jl|swift|cs|hs|ml|f90|sql|asm|s|el|lisp|clj|ex)"
)
# Other endings that stand for a kind of text of their own; any other one is plain text.
_OTHER_TEXT = re.compile(
    r"\.(md|rst|tex|html|htm|xml|csv|tsv|yaml|yml|toml|ini|cfg|cff|ipynb|bib|log)"
)
_SHOWN = 3


@dataclass(frozen=True)
class _Candidate:
    """A file that may be read, and the split that its name stands for."""

    match: Match
    file: SourceFile
    split: Split | None


@dataclass(frozen=True)
class Chosen:
    """The files of a run.

    Args:
        train: Files to train on, in order.
        held_out: Files to validate on; empty if the tail of the others is held out.
        left: What lies beside them and is not read.
    """

    train: tuple[SourceFile, ...]
    held_out: tuple[SourceFile, ...] = ()
    left: tuple[Left, ...] = ()


def chosen_to_train(
    names: Names, val_names: Names | None, format_: DataFormat, field: str
) -> Chosen:
    """Return what ``data.path`` and ``data.val_path`` choose.

    Raises:
        UserError: a file is missing or cannot be read, or nothing is left to train on.
    """
    candidates, left = _candidates(names, format_, field, "data.path")
    train = [one for one in candidates if one.match.named or one.split in (None, "train")]
    validation = [one for one in candidates if one.split == "validation" and not one.match.named]
    left += [Left(one.match.path, _TEST_WHY) for one in candidates if _tests(one)]
    if not train:
        raise UserError(_nothing_to_train_on(names, candidates))
    if val_names is not None:
        named = _named_to_hold_out(val_names, format_, field, left)
        train = _without(train, named)
        known = {one.match.identity for one in named}
        left += [
            Left(one.match.path, "a validation split, and data.val_path names another")
            for one in validation
            if one.match.identity not in known
        ]
        held = {one.match.path for one in named}
        left = [one for one in left if one.path not in held]
        validation = named
    return Chosen(_files(train), _files(validation), tuple(left))


def chosen_to_hold_out(val_names: Names, format_: DataFormat, field: str) -> Chosen:
    """Return what ``data.val_path`` chooses, for a run that trains on the default data."""
    left: list[Left] = []
    named = _named_to_hold_out(val_names, format_, field, left)
    return Chosen((), _files(named), tuple(left))


def chosen_to_score(names: Names, format_: DataFormat, field: str, setting: str) -> Chosen:
    """Return what another setting chooses, which trains on nothing.

    Raises:
        UserError: as :func:`chosen_to_train`, or one name holds several splits.
    """
    candidates, left = _candidates(names, format_, field, setting)
    for typed in {one.match.typed for one in candidates}:
        own = [one for one in candidates if one.match.typed == typed and not one.match.named]
        splits = sorted({one.split for one in own if one.split is not None})
        if len(splits) > 1:
            raise UserError(
                f"{setting}={typed}: holds the splits {', '.join(splits)}; name one of them, as in "
                f"{setting}={_example(own[0].match.path)}"
            )
    return Chosen(_files(candidates), (), tuple(left))


def chosen_line(chosen: Chosen, what: str = "training on") -> str:
    """Say which files are trained on, which are held out and which are left.

    Args:
        chosen: The files.
        what: What is done with the first ones.

    Returns:
        One line; empty if all files are among the first.
    """
    if not chosen.held_out and not chosen.left:
        return ""
    parts = [f"{what} {_listed([file.path for file in chosen.train])}"] if chosen.train else []
    if chosen.held_out:
        parts.append(f"validating on {_listed([file.path for file in chosen.held_out])}")
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for one in chosen.left:
        by_reason[one.why].append(one.path)
    left = [f"{_listed(paths)} ({why})" for why, paths in by_reason.items()]
    return "; ".join([*parts, f"left: {', '.join(left)}"] if left else parts)


def _tests(one: _Candidate) -> bool:
    return one.split == "test" and not one.match.named


def _files(candidates: Sequence[_Candidate]) -> tuple[SourceFile, ...]:
    return tuple(one.file for one in candidates)


def _named_to_hold_out(
    names: Names, format_: DataFormat, field: str, left: list[Left]
) -> list[_Candidate]:
    """Return the files of ``data.val_path``: of a glob or folder with splits, its validation."""
    setting = "data.val_path"
    candidates, more = _candidates(names, format_, field, setting)
    patterned = [one for one in candidates if not one.match.named]
    if any(one.split == "validation" for one in patterned):
        wanted = [one for one in patterned if one.split == "validation"]
    elif len({one.split for one in patterned}) > 1 or any(
        one.split == "train" for one in patterned
    ):
        raise UserError(
            f"{setting}={_typed(names)}: no file there is named validation, valid, val or dev; "
            f"name the files to hold out, as in {setting}={_example(patterned[0].match.path)}"
        )
    else:
        wanted = patterned
    taken = {one.match.path for one in wanted}
    known = {one.path for one in left}
    left += [one for one in more if one.path not in known]
    return [one for one in candidates if one.match.named or one.match.path in taken]


def _without(train: list[_Candidate], held_out: Sequence[_Candidate]) -> list[_Candidate]:
    """Return the files to train on without those that are held out."""
    apart = {one.match.identity for one in held_out}
    for one in train:
        if one.match.named and one.match.identity in apart:
            raise UserError(
                f"data.val_path={one.match.path}: data.path names it, too, so the run would "
                f"train on what it validates on; name another file"
            )
    rest = [one for one in train if one.match.identity not in apart]
    if not rest:
        raise UserError(
            f"data.path={_typed([one.match.typed for one in train])}: data.val_path holds all of "
            f"its files out; name files to train on"
        )
    return rest


def _nothing_to_train_on(names: Names, candidates: Sequence[_Candidate]) -> str:
    splits = sorted({str(one.split) for one in candidates})
    return (
        f"data.path={_typed(names)}: matches only files named {' or '.join(splits)}, which are "
        f"not trained on; name the files themselves to do so, as in "
        f"data.path={_example(candidates[0].match.path)}"
    )


def _typed(names: Names) -> str:
    listed = [names] if isinstance(names, str | os.PathLike) else list(names)
    return ",".join(dict.fromkeys(os.fspath(name) for name in listed))


def _example(path: str) -> str:
    near = os.path.relpath(path)
    return path if near.startswith("..") else near


def _candidates(
    names: Names, format_: DataFormat, field: str, setting: str
) -> tuple[list[_Candidate], list[Left]]:
    """Return the files of the prevailing kinds, in the order of their paths, and the others."""
    matches = matched(names, setting)
    by_name: defaultdict[str, list[Match]] = defaultdict(list)
    for match in matches.files:
        by_name["" if match.named else match.typed].append(match)
    files: dict[str, SourceFile] = {}
    left = list(matches.left)
    for typed, own in by_name.items():
        if typed:
            files |= _of_one_kind(own, format_, field, setting, left)
        else:
            files |= {match.path: look(match, format_, field, setting) for match in own}
    found = [
        _Candidate(match, files[match.path], split_of(match.inside) if match.inside else None)
        for match in matches.files
        if match.path in files
    ]
    return found, left


def _of_one_kind(
    matches: Sequence[Match], format_: DataFormat, field: str, setting: str, left: list[Left]
) -> dict[str, SourceFile]:
    """Return the files of a glob or folder that are of the kind with the most bytes, by path."""
    beside = {match.path for match in matches if _is_beside(match.path)}
    if len(beside) == len(matches):
        beside = set()
    left += [Left(match.path, "beside the data") for match in matches if match.path in beside]
    plain = [match for match in matches if match.path not in beside]
    files: dict[str, SourceFile] = {}
    refused: list[OtherKindError] = []
    others: list[Match] = []
    for match in plain:
        try:
            files[match.path] = look(match, format_, field, setting)
        except OtherKindError as error:
            refused.append(error)
            others.append(match)
    if not files:
        raise refused[0]
    weights: defaultdict[str, int] = defaultdict(int)
    for file in files.values():
        weights[_kind(file, format_)] += file.bytes
    kind = max(weights, key=lambda one: weights[one])
    taken = {path: file for path, file in files.items() if _kind(file, format_) == kind}
    others += [match for match in plain if match.path in files and match.path not in taken]
    left += [Left(match.path, "another kind of file") for match in others]
    return taken


def _is_beside(path: str) -> bool:
    """Whether a file describes a data set, or is a leftover of the programs that wrote it."""
    folder, name = os.path.split(path)
    if any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in _BESIDE):
        return True
    state = os.path.join(folder, "state.json")
    return name.endswith(".arrow") and os.path.isfile(state) and name not in _saved_in(state)


def _saved_in(state: str) -> set[str]:
    """Return the files that ``save_to_disk`` lists in its ``state.json``.

    Raises:
        UserError: the file cannot be read, or a file that it lists is missing.
    """
    try:
        with open(state, encoding="utf-8") as stream:
            listed = {str(one["filename"]) for one in json.load(stream)["_data_files"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{state}: does not list the files of a saved data set; save it again, or name its "
            f".arrow files"
        ) from None
    folder = os.path.dirname(state)
    for name in sorted(listed):
        if not os.path.exists(os.path.join(folder, name)):
            raise UserError(f"{state}: lists {name}, which is missing; copy the folder again")
    return listed


def _kind(file: SourceFile, format_: DataFormat) -> str:
    """Return a word that is equal for files that hold text in the same way."""
    if format_ in ("raw", "text"):
        return "text"
    if file.content != "raw" and (format_ == "auto" or file.content not in ("jsonl", "json")):
        return file.content
    suffix = inner_suffix(file)
    if _CODE.fullmatch(suffix):
        return "code"
    return suffix if _OTHER_TEXT.fullmatch(suffix) else "text"


def _listed(paths: Sequence[str]) -> str:
    """Return the names of a few files, and how many there are besides."""
    names = [os.path.basename(path) for path in paths[:_SHOWN]]
    more = len(paths) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
