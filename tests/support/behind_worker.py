"""A flusher in a process of its own: says ``saving`` before each transaction, and waits for a line.

python behind_worker.py URL NAMESPACE DATABASE
"""

from __future__ import annotations

import sys
from typing import Any

from sqlalchemy import create_engine

from fencepost import Client
from fencepost.errors import Superseded
from fencepost.sql.gate import SqlGate
from support.behind_sql import OPTIONS, save_rows


def main(url: str, namespace: str, database: str) -> None:
    engine = create_engine(database)
    gate = SqlGate(engine)

    def save(batch: Any) -> None:
        print("saving", flush=True)
        sys.stdin.readline()
        try:
            save_rows(engine, gate, batch)
        except Superseded:
            print("refused", flush=True)
            raise
        print("saved", flush=True)

    with Client.from_url(url, namespace=namespace) as client:
        writes = client.cache("rows", **OPTIONS).behind(save, gate=gate)
        while writes.drain(1.0):
            pass
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
