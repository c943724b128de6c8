"""From CUPTI's records to kernels, from kernels to nodes, from both to the rows of a report."""

from typing import Any

from onnxfuse.measure.profile.kernels import TracedKernel, follow, kernels_with_nodes
from onnxfuse.measure.profile.nodes import Ran


def ran(name: str, begin: float, duration: float, op: str = "Relu") -> Ran:
    return Ran(name, op, "CUDA", begin, duration, 32)


def kernel(name: str, begin: float, duration: float, launched: float | None, **more: Any) -> TracedKernel:
    return TracedKernel(name, begin, duration, launched, **more)


def test_a_kernel_is_its_nodes_by_the_time_of_its_launch() -> None:
    """The device is late: what runs in the time of b was launched in that of a. Between nodes it is nobody's."""
    nodes = [ran("a", 10, 5), ran("b", 20, 5), ran("outer", 40, 20, "If"), ran("inner", 45, 5)]
    kernels = [
        kernel("k1", 21, 1, 12), kernel("k2", 23, 1, 24.5), kernel("lost", 35, 1, 32), kernel("k3", 60, 1, 47),
        kernel("k4", 61, 1, 55), kernel("graph", 80, 1, None),
    ]  # fmt: skip
    assert [k.node for k in kernels_with_nodes(kernels, nodes)] == ["a", "b", "", "inner", "outer", ""]


def named(*names: str) -> list[TracedKernel]:
    return [kernel(name, at, 1, None) for at, name in enumerate(names)]


def test_another_run_of_the_same_launches_is_followed() -> None:
    """A CUDA graph's kernels are those of the run before it in the same order; times are its own."""
    known = [kernel("p", 0, 1, 0, node="a", op="MatMul"), kernel("q", 2, 1, 1, node="b", op="Relu")]
    replayed = [kernel("p", 100, 1, None), kernel("q", 101, 1, None)]
    found = follow(replayed, known)
    assert found is not None
    assert [(k.begin, k.node, k.op) for k in found] == [(100, "a", "MatMul"), (101, "b", "Relu")]
    assert follow(named("q", "r"), known) is None
    assert follow([], known) is None


def test_another_kernel_for_one_node_does_not_lose_the_others() -> None:
    """A product may run as another kernel, or as two: they are the node's between its neighbours, if it is but one."""
    names = [f"k{n}" for n in range(8)]
    known = [kernel(name, at, 1, at, node=f"n{at}") for at, name in enumerate(names)]
    found = follow(named(*names[:3], "split", "sum", *names[4:]), known)
    assert found is not None
    assert [k.node for k in found] == ["n0", "n1", "n2", "n3", "n3", "n4", "n5", "n6", "n7"]
    first = follow(named("other", *names[1:]), known)
    assert first is not None
    assert first[0].node == "n0"
    unclear = follow(named(*names[:3], "one for two", *names[5:]), known)
    assert unclear is not None
    assert [k.node for k in unclear] == ["n0", "n1", "n2", "", "n5", "n6", "n7"]
    fewer = follow(named(*names[:3], *names[4:]), known)
    assert fewer is not None
    assert [k.node for k in fewer] == ["n0", "n1", "n2", "n4", "n5", "n6", "n7"]
