"""On CUDA a fused op that was not launched is a problem."""

from onnxfuse.verification.report import kernel_counts
from onnxfuse.verification.report.rows import KernelRow


def test_on_cuda_a_fused_op_that_was_not_launched_is_a_problem() -> None:
    """A body in place of a kernel, or a kernel that was never asked, proves nothing about the kernel."""
    ran = KernelRow("A_1", "pointwise", 2, "kernel", "", 3, 6)
    empty = KernelRow("D_4", "pointwise", 2, "kernel", "", 3, 0)
    body = KernelRow("B_2", "row", 1, "body", "no kernel for float64", 0, 0)
    idle = KernelRow("C_3", "row", 1, "kernel", "", 0, 0)
    assert kernel_counts.launch_problems([ran, empty]) == []
    assert kernel_counts.launch_problems([ran, body, idle]) == [
        "fused op B_2 ran as its body, not as a kernel: no kernel for float64",
        "fused op C_3 was never called",
    ]
    assert kernel_counts.launch_problems([ran, idle], excused={"C_3"}) == []
