"""A real Chromium without a screen, driven over its own protocol: what a page looks like, does, loads and forgets."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 120.0
"""A guard: what a slow machine may take for one answer."""
WIDTHS = (390, 1440)
"""Of a phone and of a desk."""


def needs() -> None:
    """Skip the test where there is no browser, or no axe-core."""
    if not any(map(shutil.which, NAMES)):
        pytest.skip("needs Chromium: apt-get install chromium")
    if not AXE.exists():
        pytest.skip("needs axe-core: npm ci --prefix tests/report")


class Tab:
    """One page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._count = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self.requested: list[str] = []
        """The addresses of all that it asked for."""
        self.complaints: list[str] = []
        """What it wrote to its console, as about what a policy forbids."""
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            data = json.loads(message.data)
            if "id" in data:
                self._answers.pop(data["id"]).set_result(data)
                continue
            event, facts = data["method"], data["params"]
            if event == "Network.requestWillBeSent":
                self.requested.append(facts["request"]["url"])
            elif event == "Log.entryAdded":
                self.complaints.append(facts["entry"]["text"])
            elif event == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(facts["exceptionDetails"]))
            elif event == "Page.loadEventFired":
                self._loaded.set()

    async def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Call the browser."""
        self._count += 1
        answer = self._answers[self._count] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._count, "method": method, "params": arguments})
        data = await asyncio.wait_for(answer, PATIENCE_S)
        assert "error" not in data, data
        found: dict[str, Any] = data["result"]
        return found

    async def open(self, url: str, width: int, *, dark: bool = False) -> None:
        """Show a page on a screen of that width."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        await asyncio.wait_for(self._loaded.wait(), PATIENCE_S)

    async def value(self, expression: str) -> Any:
        """Return what an expression is in the page, once it is known."""
        found = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Return what an expression is, once it is true."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := await self.value(expression)):
                await asyncio.sleep(0.1)
        return found

    async def overflow(self) -> list[str]:
        """Return what makes the page wider than its screen, and what has to be scrolled sideways in it."""
        found: list[str] = await self.value(
            "[...document.querySelectorAll('html, body, body *')].filter(e => e.clientWidth > 0"
            " && !(e instanceof SVGElement) && e.scrollWidth > e.clientWidth + 1"
            " && getComputedStyle(e).display !== 'inline').map(e => e.outerHTML.slice(0, 200))"
        )
        wide = "document.documentElement.scrollWidth > innerWidth ? ['the page'] : []"
        return found + list(await self.value(wide))

    async def violations(self) -> list[str]:
        """Return what axe-core's default rules find."""
        await self.value(AXE.read_text(encoding="utf-8") + ";0")
        found = await self.value("axe.run().then(found => JSON.stringify(found.violations))")
        return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in json.loads(found)]

    async def reached_by_keyboard(self, presses: int) -> list[str]:
        """Press Tab so often; return the name of each element that then has the focus."""
        names = []
        for _ in range(presses):
            for kind in ("keyDown", "keyUp"):
                await self.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
            names.append(await self.value("document.activeElement.tagName"))
        return names

    async def close(self) -> None:
        """Let go of it."""
        self._reader.cancel()
        await self._socket.close()


@asynccontextmanager
async def chromium() -> AsyncIterator[Tab]:
    """Run a browser with one empty page; it reaches this machine only."""
    program = next(filter(None, map(shutil.which, NAMES)))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            program,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
            *("--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with aiohttp.ClientSession() as session:
                tab = Tab(await session.ws_connect(await _address(session, Path(folder)), max_msg_size=0))
                for domain in ("Page", "Runtime", "Network", "Log"):
                    await tab.call(f"{domain}.enable")
                yield tab
                await tab.close()
        finally:
            process.terminate()
            await process.wait()


async def _address(session: aiohttp.ClientSession, folder: Path) -> str:
    port = folder / "DevToolsActivePort"
    async with asyncio.timeout(PATIENCE_S):
        while not (port.exists() and port.read_text().count("\n")):
            await asyncio.sleep(0.05)
        async with session.get(f"http://127.0.0.1:{port.read_text().splitlines()[0]}/json/list") as answer:
            return next(str(page["webSocketDebuggerUrl"]) for page in await answer.json() if page["type"] == "page")
