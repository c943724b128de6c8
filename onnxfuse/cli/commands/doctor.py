"""`onnxfuse doctor`: report what is installed, what works, what is missing, and the command that fixes it."""

from typing import Unpack

from onnxfuse.cli.base.console import print_result, working
from onnxfuse.deploy.doctor import doctor
from onnxfuse.options.commands import DoctorCommand
from onnxfuse.support.errors import DeviceError


def command(**given: Unpack[DoctorCommand]) -> int:
    """Run the command and print its result."""
    with working("look"):
        diagnosis = doctor(given["provider"])
    print_result("doctor", diagnosis.as_dict(), diagnosis.screen(), as_json=given["as_json"])
    return DeviceError.exit_code if diagnosis.broken else 0
