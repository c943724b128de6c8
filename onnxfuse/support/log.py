"""The log for programs that embed onnxfuse: what sessions open, optimize and compile; silent unless configured."""

import logging

LOG = logging.getLogger("onnxfuse")
