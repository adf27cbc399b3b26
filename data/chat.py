"""A client of HTTP servers that speak JSON, as OpenAI-compatible endpoints, vLLM and SGLang do: retries, rate limits, one clear line.

Standard library only. The key comes from the environment and goes nowhere but into the request's header.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

TRIES = 4
"""Requests to an endpoint that does not answer, or is busy, before that is an error."""
LONGEST_WAIT_S = 60.0
"""No Retry-After makes us wait longer than this before the next try."""
OVERFLOWS = ("context_length_exceeded", "maximum context length", "longer than the model's context length")
"""What servers write into the refusal of a conversation that is too long: OpenAI's code, vLLM's words, SGLang's words."""


class Refused(OSError):
    """The endpoint understood and said no (key, model, parameters): the same request would be refused again. The user's to mend.

    `code` is the HTTP status: 401, 403, 404 speak of the key or the model, 400, 413, 422 may speak of one request alone.
    """

    def __init__(self, said: str, code: int):
        super().__init__(said)
        self.code = code


class TooLong(Refused):
    """The conversation does not fit the endpoint's context: a fact about this request alone."""


class Unavailable(OSError):
    """No usable answer after every try: down, slow, busy, or no JSON of the wanted form."""


class _Status(Exception):
    """An HTTP status that is no success, with the server's words."""

    def __init__(self, code: int, text: str, retry_s: float):
        super().__init__(f"{code} {text}")
        self.code, self.text, self.retry_s = code, text, retry_s


class Client:
    """JSON requests to one address.

    address: what the paths are appended to, for example http://HOST/v1. key_from: the environment variable with the key, "" for none.
    timeout_s: of one try. retry_s: the first wait, four times longer after each try; a Retry-After of the server counts above it.
    in_flight: `ask_async` requests at once. per_minute: requests started a minute at most, 0 = no limit.
    Raises ValueError for another address or a key that is not there.
    """

    def __init__(
        self,
        address: str,
        *,
        key_from: str = "",
        timeout_s: float = 120.0,
        retry_s: float = 2.0,
        in_flight: int = 32,
        per_minute: float = 0.0,
    ):
        if not address.startswith(("http://", "https://")):
            raise ValueError(f"address: got {address!r}, wanted http://HOST/v1 or https://HOST/v1")
        self.address, self.timeout_s, self.retry_s = address.rstrip("/"), timeout_s, retry_s
        self.key = os.environ.get(key_from) if key_from else None
        if key_from and not self.key:
            raise ValueError(f"{key_from}: got nothing in the environment, wanted the key of {address}")
        self.gap_s = 60.0 / per_minute if per_minute else 0.0
        self._next, self._turn, self._closed = 0.0, threading.Lock(), threading.Event()
        self._slots = threading.Semaphore(in_flight)

    def ask(self, path: str, body: Any, read: Callable[[Any], Any], *, wanted: str = "a chat completion", tries: int = TRIES) -> Any:
        """`read` of the JSON answer to POST `body`, or to GET where `body` is None; an empty answer is {}.

        `read` raises LookupError, AttributeError, TypeError or ValueError for an answer that is not `wanted`, which counts as a failed try.
        Raises Refused (TooLong) at once, Unavailable after `tries`; both quote the server.
        """
        for attempt in range(1, tries + 1):
            self._pace()
            wait = self._wait_s(attempt)
            try:
                return read(self._once(path, body))
            except _Status as error:
                said = f"{self.address}: got {error.code} {error.text[:300]}, wanted {wanted}"
                if error.code in (400, 413, 422) and any(words in error.text for words in OVERFLOWS):
                    raise TooLong(said, error.code) from error
                # A used-up quota comes as 429 too, and no waiting mends it.
                if (error.code < 500 and error.code not in (408, 409, 425, 429)) or "insufficient_quota" in error.text:
                    raise Refused(said, error.code) from error
                wait, failure = max(wait, error.retry_s), error
            except (LookupError, AttributeError, TypeError, ValueError) as error:
                said, failure = f"{self.address}: got an answer that cannot be read ({error!r}), wanted {wanted}", error
            except (OSError, http.client.HTTPException) as error:
                said, failure = f"{self.address}: got {error or type(error).__name__}, wanted {wanted}", error
            if attempt == tries or self._closed.is_set():
                raise Unavailable(said) from failure
            log.info("%s; try %d of %d", said, attempt, tries)
            self._closed.wait(wait)
        raise AssertionError("the last try returns or raises")

    async def ask_async(self, path: str, body: Any, read: Callable[[Any], Any], **options: Any) -> Any:
        """`ask` on a thread of its own, `in_flight` of them at once. A request that nobody awaits any more keeps no process alive."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def deliver(result: Any, error: Exception | None) -> None:
            if not future.done():
                future.set_result(result) if error is None else future.set_exception(error)

        def work() -> None:
            result, failed = None, None
            try:
                with self._slots:
                    result = self.ask(path, body, read, **options)
            except Exception as error:  # raised where it is awaited
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(deliver, result, failed)

        threading.Thread(target=work, name="endpoint", daemon=True).start()
        return await future

    def close(self) -> None:
        """End the waits between tries; requests on their way end by themselves."""
        self._closed.set()

    def _once(self, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}{path}", data, {"Content-Type": "application/json"})
        if self.key:  # not to where a redirection leads
            request.add_unredirected_header("Authorization", f"Bearer {self.key}")
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            said = " ".join(error.read(2000).decode(errors="replace").split())
            raise _Status(
                error.code, said.replace(self.key, "***") if self.key else said, _seconds(error.headers.get("Retry-After"))
            ) from error
        return json.loads(text) if text.strip() else {}

    def _wait_s(self, attempt: int) -> float:
        return self.retry_s * 4 ** (attempt - 1)

    def _pace(self) -> None:
        """Wait for this request's place in the rate limit."""
        if not self.gap_s:
            return
        with self._turn:
            at = self._next = max(time.monotonic(), self._next + self.gap_s)
        self._closed.wait(max(0.0, at - time.monotonic()))


def content(answer: Any) -> str:
    """The text of a chat completion's first choice; KeyError, IndexError, TypeError or ValueError where there is none."""
    text = answer["choices"][0]["message"]["content"]
    if not isinstance(text, str):
        raise ValueError(f"content: got {text!r}, wanted text")
    return text


def _seconds(header: str | None) -> float:
    """Seconds of a Retry-After; 0 for none or a date."""
    try:
        return min(float(header or 0.0), LONGEST_WAIT_S)
    except ValueError:
        return 0.0
