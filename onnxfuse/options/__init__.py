"""The one schema of options: each option is declared once, with its type, default, flag, help and place.

Keywords of the Python functions with their checks and docstrings, options of the commands, keys of `onnxfuse.toml` with
their JSON schema, what the lock file records, completion and the reference pages follow from the declarations. A new
option is its declaration here, and its use.
"""

COMMANDS = {
    "optimize": "Apply the fusion rules to a model and write the result.",
    "verify": "Run two models on the same inputs and compare what they compute.",
    "bench": "Time a model before and after fusion, against ONNX Runtime's best settings.",
    "profile": "Profile a model's memory traffic and time per node and kernel, before and after fusion.",
    "rules": "List the rules, or explain one.",
    "explain": "Explain what fuses in a model, what does not, and why.",
    "inspect": "Describe a model: sizes, operators, dimensions, precision, fused ops.",
    "view": "Show a model before and after fusion in the browser: graph, cost per node, kernel sources.",
    "compile": "Compile a fused model's kernels for ranges of shapes into one file next to it.",
    "export-library": "Export a folder that serves a fused model from C++, C#, Java or Triton, without Python.",
    "ci": "Check models against onnxfuse.toml and onnxfuse.lock.",
    "doctor": "Check the environment: what is installed, what is missing, and how to fix it.",
    "config": "List every option with its value and where it comes from.",
    "completion": "Print the completion script for a shell.",
}
"""Each command with a line for `onnxfuse --help`. It is the function `command` of a module of `onnxfuse.cli.commands`,
imported on use; hyphens in its name become underscores."""
