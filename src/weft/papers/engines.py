"""Where papers are computed: on the cores of this machine, or on a Dask or Ray cluster that the user has.

    with engine("ray://10.0.0.1:10001", jobs=None) as compute:
        for result in compute(delayed(work)(name, True) for name in NAMES): ...

Every engine returns each result as soon as it is there, in any order, so that a run that is stopped keeps
what was done. An engine that cannot work says so in an InputError before it takes any work.
"""

from __future__ import annotations

import contextlib
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from weft.errors import InputError, WeftError

DASK, RAY = "dask://", "ray://"
CONNECT_S = 10.0
WORKERS_S = 30.0  # how long a cluster may take to show a worker
STOP_S = 5.0  # how long cancelled tasks may take to end their processes
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]  # what joblib's delayed makes
Compute = Callable[[Iterable[Call]], Iterator[Any]]


@contextmanager
def engine(url: str, jobs: int | None, stop: Callable[[], None] | None = None) -> Iterator[Compute]:
    """`local`, `dask://HOST:PORT` of a scheduler, or `ray://HOST:PORT` of a cluster's client server.

    `jobs` is for this machine: how many at a time. `stop` ends what was started here, when all is over.
    """
    if url == "local":
        one = _local(jobs or 1, stop)
    elif not url.startswith((DASK, RAY)):
        raise InputError(
            f"--engine {url!r} is not known; give local, dask://HOST:PORT or ray://HOST:PORT"
        )
    elif jobs is not None:
        raise InputError("--jobs is for this machine; a cluster decides itself how many it takes")
    else:
        one = _dask(url) if url.startswith(DASK) else _ray(url)
    with one as compute:
        yield compute


@contextmanager
def _local(jobs: int, stop: Callable[[], None] | None) -> Iterator[Compute]:
    try:
        from joblib import Parallel
    except ImportError:
        raise InputError("reproduce all needs joblib: pip install 'weft[papers]'") from None
    try:
        # Each thread only waits for the process of its paper.
        yield Parallel(n_jobs=jobs, backend="threading", return_as="generator_unordered")
    finally:
        if stop is not None:
            stop()


@contextmanager
def _dask(url: str) -> Iterator[Compute]:
    try:
        import distributed
    except ImportError:
        raise InputError(f"--engine {url} needs Dask: pip install 'weft[dask]'") from None
    try:
        dask: Any = distributed  # it has no types
        client = dask.Client(f"tcp://{url.removeprefix(DASK)}", timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise InputError(f"--engine {url}: no Dask scheduler answers there: {error}") from None

    def compute(calls: Iterable[Call]) -> Iterator[Any]:
        futures = [client.submit(do, *args, pure=False, **options) for do, args, options in calls]
        for future in dask.as_completed(futures):
            yield future.result()

    with client:
        try:
            client.wait_for_workers(1, timeout=WORKERS_S)
        except TimeoutError:
            raise InputError(f"--engine {url}: this Dask cluster has no worker") from None
        yield compute


@contextmanager
def _ray(url: str) -> Iterator[Compute]:
    try:
        import grpc  # noqa: F401  # Ray's client needs it; a plain `pip install ray` has none
        import ray as installed
    except ImportError:
        raise InputError(f"--engine {url} needs Ray: pip install 'weft[ray]'") from None
    ray: Any = installed  # its client has other types
    _connect_ray(ray, url)
    waiting: list[Any] = []

    def compute(calls: Iterable[Call]) -> Iterator[Any]:
        # A task is not tried again: after a failure the paper is left for the next call.
        task = ray.remote(num_cpus=1, max_retries=0)(_called)
        waiting.extend(task.remote(call) for call in calls)
        while waiting:
            (ready, *_), _ = ray.wait(waiting, num_returns=1)
            waiting.remove(ready)
            yield _result(ray, ready)

    try:
        yield compute
    finally:
        # A cancelled task is interrupted, so it ends the process of its paper.
        with contextlib.suppress(Exception):
            for task in waiting:
                ray.cancel(task)
            if waiting:
                ray.wait(waiting, num_returns=len(waiting), timeout=STOP_S)
        ray.shutdown()


def _connect_ray(ray: Any, url: str) -> None:
    """Ray itself tries for half a minute; a port that nobody listens at is found at once."""
    host, _, port = url.removeprefix(RAY).rstrip("/").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"--engine {url}: give ray://HOST:PORT, such as ray://10.0.0.1:10001")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below says the same
            ray.init(url.rstrip("/"), logging_level="ERROR", log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"--engine {url}: no Ray cluster answers there: {words[-300:]}") from None
    end = time.monotonic() + WORKERS_S
    while ray.cluster_resources().get("CPU", 0) < 1:
        if time.monotonic() > end:
            ray.shutdown()
            raise InputError(f"--engine {url}: this Ray cluster has no CPU for a task")
        time.sleep(0.5)


def _called(call: Call) -> Any:
    do, args, options = call
    return do(*args, **options)


def _result(ray: Any, task: Any) -> Any:
    """What a task returned, or its error in the words of Weft."""
    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, WeftError):
            raise cause from None
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise WeftError(
            f"a Ray worker failed: {last} (every worker needs this version of Weft and Python)"
        ) from None
