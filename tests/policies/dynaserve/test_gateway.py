"""On a gateway nobody tells the router how long answers will be: it learns that from how requests end."""

from __future__ import annotations

import asyncio

from tests.gateway.rig import ask, config, stand


def test_the_router_learns_the_length_of_answers() -> None:
    """The default predictor starts with `prior_tokens`, and plans with what it has seen from the first answer on."""

    async def run() -> None:
        async with stand("dual", "dual", cfg=config("dynaserve")) as it:
            router, planned = it.gateway.routing.router, []
            placed = router.on_arrival

            def on_arrival(*asked):  # type: ignore[no-untyped-def]
                placement = placed(*asked)
                planned.append(placement.reason)
                return placement

            router.on_arrival = on_arrival
            it.gateway.routing.use(router)
            for number in range(3):
                await it.post("/generate", ask([number] * 100, 40))
            assert planned == [f"whole, {tokens} tokens" for tokens in (100 + 256 + 20, 100 + 40 + 20, 100 + 40 + 20)]

    asyncio.run(run())
