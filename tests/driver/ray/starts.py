"""Starts a cluster twice and prints the folder of each: python -m tests.driver.ray.starts."""

from __future__ import annotations

import os
from pathlib import Path

import ray

from rankloom.driver.local_cluster import start_ray


def process_id() -> int:
    return os.getpid()


def main() -> None:
    for _ in range(2):
        with start_ray(num_ranks=1):
            print(Path(os.environ["RAY_AUTH_TOKEN_PATH"]).parent)
            assert ray.get(ray.remote(process_id).remote()) != os.getpid()
        assert not ray.is_initialized()
    assert not {"RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"} & set(os.environ)


if __name__ == "__main__":
    main()
