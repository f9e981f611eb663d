"""What the load's probe found is a plain fact of the gateway's statistics."""

from __future__ import annotations

import json

from mlx_notebook.gateway.gateway import Gateway
from tests.engine.test_batch_families import pair
from tests.small_models import small


def test_why_a_model_is_not_served_in_the_first_way() -> None:
    with Gateway.from_loaded(*pair("baichuan_m1"), batch=2) as gateway:
        stats = gateway.stats()
    assert stats.store == "rows"
    assert [found.partition(":")[0] for found in stats.store_findings] == ["prompts in one forward"]
    assert json.loads(json.dumps(stats.to_dict()))["store_findings"] == list(stats.store_findings)


def test_nothing_was_found_where_the_first_way_serves() -> None:
    with Gateway.from_loaded(*small("llama"), batch=2) as gateway:
        assert gateway.stats().store_findings == ()
