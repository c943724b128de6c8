"""A fused model behind HTTP, on many GPUs: `python serve_model.py MODEL.fused.onnx --replicas 4 --gpus 1`.

Each replica is a process with a session of its own; Ray gives each its GPU, shares the requests out, and starts anew
what dies. Requests that wait together run as one batch. A request is JSON, {"INPUT": rows}, and so is the answer,
{"OUTPUT": rows, ..., "replica": its name}.
"""

import argparse
import asyncio
from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request

import onnxfuse

BATCH, WAIT = 16, 0.002
"""How many requests run together at most, and the seconds that the first of them waits for others."""
TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


@serve.deployment
class Fused:
    """One replica, of a model whose inputs and outputs have rows that do not depend on each other."""

    def __init__(self, model: str) -> None:
        self.session = onnxfuse.session(model)
        self.types = {i.name: TYPES[i.type] for i in self.session.get_inputs()}
        self.replica = serve.get_replica_context().replica_id.unique_id

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT)
    async def run(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run what has come as one batch, apart where the shapes of rows differ, and share out the rows."""
        together: dict[tuple[Any, ...], list[int]] = {}
        feeds = [{n: np.asarray(r[n], t) for n, t in self.types.items()} for r in requests]
        for place, feed in enumerate(feeds):
            together.setdefault(tuple(x.shape[1:] for x in feed.values()), []).append(place)
        answers: list[dict[str, Any]] = [{} for _ in requests]
        for places in together.values():
            joined = {n: np.concatenate([feeds[p][n] for p in places]) for n in self.types}
            # Not in the loop that takes the requests: ONNX Runtime waits for the GPU.
            outputs = await asyncio.to_thread(self.session.run, None, joined)
            first = next(iter(self.types))
            ends = np.cumsum([len(feeds[p][first]) for p in places])[:-1]
            for output, rows in zip(self.session.get_outputs(), outputs, strict=True):
                for place, part in zip(places, np.split(rows, ends), strict=True):
                    answers[place][output.name] = part.tolist()
        return [answer | {"replica": self.replica} for answer in answers]

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Answer a request."""
        answer: dict[str, Any] = await self.run(await request.json())
        return answer


def main() -> None:
    """Serve until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--gpus", type=float, default=0, help="of each replica; 0.5: two share one")
    parser.add_argument("--port", type=int, default=8000)
    asked = parser.parse_args()
    serve.start(http_options={"host": "127.0.0.1", "port": asked.port})
    replicas = Fused.options(num_replicas=asked.replicas, ray_actor_options={"num_gpus": asked.gpus, "num_cpus": 0})
    serve.run(replicas.bind(asked.model), blocking=True)


if __name__ == "__main__":
    main()
