"""`%mlxstatus` and `%mlxmodels`: what is loaded, what runs, who holds the device, what could be loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_notebook.gateway.lease import device_lease
from mlx_notebook.gateway.registry import registry
from mlx_notebook.gateway.sizes import show_bytes
from mlx_notebook.models.catalog import DEFAULT_MODEL, list_models
from mlx_notebook.notebook.static_html import prompt_title, running_note
from mlx_notebook.notebook.table_view import tabulate

if TYPE_CHECKING:
    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle
    from mlx_notebook.gateway.stats import GatewayStats

TITLE_CHARACTERS = 50
NO_LIMIT = 2**60
"""A budget of a backend whose rows take no memory."""


def status_bundle() -> dict[str, str]:
    """Gateways, rows, and the device's holder, as `text/plain` and escaped `text/html`."""
    gateways = list(registry.gateways().values())
    if not gateways:
        return _text(f"No model is loaded: %mlxload {DEFAULT_MODEL}")
    parts = [
        tabulate(
            ("gateway", "model", "device", "mode", "weights", "rows' memory", "rows", "waiting", "tokens/s"),
            [_gateway_line(gateway) for gateway in gateways],
            numbers={"weights", "rows", "waiting", "tokens/s"},
        )
    ]
    handles = registry.live_handles()
    if handles:
        parts.append(tabulate(("request", "state", "prompt"), [_row_line(handle) for handle in handles]))
    else:
        parts.append(_text("No request runs."))
    parts.append(_text(_holder()))
    return {kind: separator.join(part[kind] for part in parts) for kind, separator in _SEPARATORS.items()}


_SEPARATORS = {"text/plain": "\n\n", "text/html": "\n"}


def _text(sentence: str) -> dict[str, str]:
    from html import escape

    return {"text/plain": sentence, "text/html": f"<p>{escape(sentence)}</p>"}


def _gateway_line(gateway: Gateway) -> tuple[str, ...]:
    stats = gateway.stats()
    name = f"{gateway.name} (current)" if registry.current() is gateway else gateway.name
    return (
        name,
        stats.model,
        stats.device,
        stats.mode,
        show_bytes(stats.weight_bytes),
        f"{show_bytes(stats.kv_bytes)} of {budget_words(stats)}",
        str(stats.active_rows + stats.prefill_rows),
        str(stats.queued_rows),
        f"{stats.tokens_per_s:.1f}",
    )


def budget_words(stats: GatewayStats) -> str:
    """How much memory the rows may take together."""
    return "any amount" if stats.kv_budget_bytes >= NO_LIMIT else show_bytes(stats.kv_budget_bytes)


def _row_line(handle: Handle) -> tuple[str, str, str]:
    title = prompt_title(handle.prompt_text)
    cut = title if len(title) <= TITLE_CHARACTERS else title[: TITLE_CHARACTERS - 1] + "\u2026"
    return (str(handle.id), running_note(handle.progress()), cut)


def _holder() -> str:
    lease = device_lease()
    holder = lease.holder
    if holder is None:
        return "Nobody holds the device."
    waiting = f", {lease.waiting} waiting for it" if lease.waiting else ""
    return f"The device is held by {holder.owner} ({holder.kind}) for {holder.age_s:.1f} s{waiting}."


def models_bundle() -> dict[str, str]:
    """The models on this machine, as `text/plain` and escaped `text/html`."""
    models = list_models()
    if not models:
        return _text(
            f"No model is on this machine. %mlxload {DEFAULT_MODEL} fetches the default one; "
            "a Hugging Face id, a folder or a .gguf file does as well."
        )
    lines = [(model.name, model.kind, show_bytes(model.size_bytes), "yes" if model.fits else "no") for model in models]
    return tabulate(("model", "kind", "size", "fits"), lines, numbers={"size"})
