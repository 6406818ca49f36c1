"""Calibrate the first setting of an evaluation, store its factor beside the model, and say so."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from models.errors import FileError, WriteFailure
from pearl_cli.evaluate.calibrate import GRID, calibrate
from pearl_cli.evaluate.evaluation import EvalRequest
from pearl_cli.predict.fingerprint import model_fingerprint
from pearl_cli.resolve_routing import logical_evict, logical_residency
from pearl_cli.routing.lambda_file import store_lambda
from pearl_cli.routing.settings import RoutingSettings
from pearl_cli.session import Session
from pearl_cli.terminal import Progress


def find_lambda(session: Session, ids: Sequence[int], request: EvalRequest, text: str) -> EvalRequest:
    """`request` with the factor found in its first setting, priced against exact routing where it is the only one.
    Raises UsageError.
    """
    opened, terminal = session.opened, session.terminal
    progress = Progress(terminal, f"trying {len(GRID)} factors")
    found = calibrate(session, ids, request, progress)
    terminal.end_progress()
    evict, residency = logical_evict(opened.gguf, opened.options, found), logical_residency(opened, found)
    strongest = f"lambda {found.lambda_:g} is the strongest of the grid within the price"
    model, fingerprint = opened.gguf.paths[0], model_fingerprint(opened.gguf)
    try:
        path = store_lambda(model, fingerprint, found, evict, residency, found.lambda_ or 0.0, text)
        terminal.note(f"{strongest}; stored in {path}")
    except (FileError, WriteFailure) as error:  # the factor took minutes to find: a full disk does not lose it
        terminal.warn(f"{strongest}, but it could not be stored ({error}); give it as --lambda {found.lambda_:g}")
    exact = RoutingSettings(residency=found.residency, evict=found.evict)
    others = request.settings[1:]
    settings = [found, *others] if others else [exact, found]
    return dataclasses.replace(request, settings=settings)
