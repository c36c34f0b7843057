# SPDX-License-Identifier: Apache-2.0
"""Makes a failing program small: leaves out what it still fails without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fuzz.compare import failure, same_kind
from fuzz.programs import (
    FLOATS8,
    Assign,
    For,
    If,
    PointerArgument,
    Program,
    Rebind,
    Return,
    Statement,
    Store,
    Var,
    While,
    blocks_of,
    uses_of,
    walk,
)

# How often the program is run at most.
TRIES = 250


def minimize(program: Program, found: str, tries: int = TRIES) -> Program:
    """The smallest program found that fails as this one does: with `found`, of `compare`."""
    left = tries
    progress = True
    while progress and left > 0:
        progress = False
        for smaller in _smaller(program):
            if left <= 0:
                break
            left -= 1
            if same_kind(found, failure(smaller)):
                program, progress = _tidied(smaller), True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with something left out; large parts first, and of these those at the end."""
    if program.programs > 1:
        yield replace(program, grid=(1,) * len(program.grid))
    if program.for_least_processor:
        yield replace(program, for_least_processor=False)
    if program.on_device:
        yield replace(program, on_device=False)
    statements = list(walk(program.body))
    statements.sort(key=lambda one: -sum(len(list(walk(block))) for block in blocks_of(one)))
    stores = [one for one in reversed(statements) if isinstance(one, Store)]
    nests = [one for one in statements if blocks_of(one)]
    used = _used(program)
    for statement in (*stores, *nests):
        yield _changed(program, {statement: []})
    for statement in nests:
        if isinstance(statement, If):
            yield _changed(program, {statement: statement.then})
            yield _changed(program, {statement: statement.otherwise})
    for statement in reversed(statements):
        if isinstance(statement, (Rebind, Return)):
            yield _changed(program, {statement: []})
        elif isinstance(statement, Assign):
            if not any(target in used for target in statement.targets):
                yield _changed(program, {statement: []})
            elif _may_be_constant(statement):
                yield _changed(program, {statement: [_constant(t) for t in statement.targets]})


def _may_be_constant(assign: Assign) -> bool:
    if assign.op in ("full", "copy", "arange", "program_id", "expand"):
        return False
    dtypes = [target.dtype for target in assign.targets]
    return not any(dtype.startswith("*") or dtype in FLOATS8 for dtype in dtypes)


def _constant(target: Var) -> Assign:
    return Assign((target,), "full", (), {"value": 1})


def _used(program: Program) -> set[Any]:
    used = {use for statement in walk(program.body) for use in uses_of(statement)}
    for function in program.functions:
        used |= {use for statement in walk(function.body) for use in uses_of(statement)}
    return used


def _changed(program: Program, changes: dict[Statement, list[Any]]) -> Program:
    """A copy in which statements are others."""
    return replace(program, body=_block(program.body, changes))


def _block(block: list[Any], changes: dict[Statement, list[Any]]) -> list[Any]:
    made: list[Any] = []
    for statement in block:
        if statement in changes:
            made += changes[statement]
            continue
        match statement:
            case For():
                statement = replace(statement, body=_block(statement.body, changes))
            case While():
                statement = replace(statement, body=_block(statement.body, changes))
            case If():
                then = _block(statement.then, changes)
                otherwise = _block(statement.otherwise, changes)
                statement = replace(statement, then=then, otherwise=otherwise)
        made.append(statement)
    return made


def _tidied(program: Program) -> Program:
    """Without what nothing uses."""
    while True:
        used = _used(program)
        dead = {
            statement: []
            for statement in walk(program.body)
            if isinstance(statement, Assign)
            and statement.targets
            and not statement.op.startswith(("atomic", "call"))
            and not any(target in used for target in statement.targets)
            and not _is_rebound(program, statement)
        }
        dead = {one: [] for one in dead if not _is_test(program, one)}
        if not dead:
            break
        program = _changed(program, dead)  # type: ignore[arg-type]
    used = _used(program)
    names = {use.name for use in used if isinstance(use, Var)}
    names |= {
        one.attributes["name"]
        for one in walk(program.body)
        if isinstance(one, Assign) and one.op == "argument"
    }
    called = [
        one.attributes["function"]
        for one in walk(program.body)
        if isinstance(one, Assign) and one.op == "call"
    ]
    arguments = [one for one in program.arguments if one.name in names]
    kept = {one.storage for one in arguments if isinstance(one, PointerArgument)}
    return replace(
        program,
        arguments=arguments,
        storages=[storage for storage in program.storages if storage in kept],
        functions=[one for one in program.functions if one in called],
    )


def _is_rebound(program: Program, assign: Assign) -> bool:
    targets = [t for one in walk(program.body) if isinstance(one, Rebind) for t in one.targets]
    return any(target in targets for target in assign.targets)


def _is_test(program: Program, assign: Assign) -> bool:
    return any(assign in one.test for one in walk(program.body) if isinstance(one, While))
