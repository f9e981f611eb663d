"""What answers came from, for their output's metadata: enough to make them again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mlx_notebook.gateway.registry import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.gateway.handle import Handle


def provenance(handles: Sequence[Handle]) -> dict[str, Any]:
    """Model, source, revision, options and seed, of each row its own: only what JSON can carry.

    Of one row all stand side by side. Of several, options and seed stand under "rows", and so do model, source and
    revision where not all rows come from the same.
    """
    origins = [_origin(handle) for handle in handles]
    rows = [_asked_for(handle) for handle in handles]
    if any(origin != origins[0] for origin in origins):
        about: dict[str, Any] = {"rows": [origin | row for origin, row in zip(origins, rows, strict=True)]}
    elif len(rows) == 1:
        about = origins[0] | rows[0]
    else:
        about = {**origins[0], "rows": rows}
    plain: dict[str, Any] = json.loads(json.dumps(about, default=repr))
    return plain


def _origin(handle: Handle) -> dict[str, Any]:
    # The engine's and not the gateway's: a handle outlives its gateway, which may be closed or restarted by now.
    engine = next((engine for engine in registry.engines() if handle.belongs_to(engine)), None)
    source, revision = (None, None) if engine is None else engine.origin
    return {"model": handle.model, "source": source, "revision": revision}


def _asked_for(handle: Handle) -> dict[str, Any]:
    options = {name: value for name, value in handle.options.items() if name != "seed"}
    return {"options": options, "seed": handle.options.get("seed")}
