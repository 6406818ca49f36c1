"""The one line that tells a reader that a text is not the model's exact answer."""

from __future__ import annotations

from pearl_cli.routing.settings import RoutingSettings


def steered_mark(settings: RoutingSettings) -> str | None:
    """None under exact routing."""
    if settings.exact:
        return None
    return f"experts were chosen by {settings.label()}: close to the model's exact answer, not the same"
