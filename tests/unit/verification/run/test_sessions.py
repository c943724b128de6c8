"""Sessions leave the cores to the reference."""

from onnxfuse.verification.run import sessions
from tests.support.verification.small_models import model

CPU = ["CPUExecutionProvider"]


def test_sessions_leave_the_cores_to_the_truth() -> None:
    """No session's threads spin while another one, or the truth, computes."""
    made = model("y = Relu(x)")
    for session in (sessions.ort_session(made, CPU), sessions.with_kernels(made, CPU), sessions.unoptimized(made)):
        assert session.get_session_options().get_session_config_entry("session.intra_op.allow_spinning") == "0"
