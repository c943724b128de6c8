"""The one schema of options: each option is declared once, with its type, default, flag, help and place.

Keywords of the Python functions with their checks and docstrings, options of the commands, keys of `onnxfuse.toml` with
their JSON schema, what the lock file records, completion and the reference pages follow from the declarations. A new
option is its declaration here, and its use.
"""

COMMAND_GROUPS = {
    "Fuse a model and prove it": {
        "optimize": "Apply the fusion rules to a model and write the result.",
        "verify": "Run two models on the same inputs and compare what they compute.",
        "bench": "Time a model before and after fusion, against ONNX Runtime's best settings.",
        "compare": "Compare two results of bench: what became slower or faster.",
    },
    "Understand a model": {
        "explain": "Explain what fuses in a model, what does not, and why.",
        "profile": "Profile a model's memory traffic and time per node and kernel, before and after fusion.",
        "inspect": "Describe a model: sizes, operators, dimensions, precision, fused ops.",
        "view": "Show a model before and after fusion in the browser: graph, cost per node, kernel sources.",
        "rules": "List the rules, or explain one.",
    },
    "Deploy": {
        "compile": "Compile a fused model's kernels for ranges of shapes into one file next to it.",
        "export-library": "Export a folder that serves a fused model from C++, C#, Java or Triton, without Python.",
        "init": "Write a first onnxfuse.toml from the models in a folder.",
        "ci": "Check models against onnxfuse.toml and onnxfuse.lock.",
    },
    "Set up": {
        "doctor": "Check the environment: what is installed, what is missing, and how to fix it.",
        "config": "List every option with its value and where it comes from.",
        "docs": "Show the documentation, or find words in it.",
        "completion": "Print the completion script for a shell.",
    },
}
"""The commands under the headings of `onnxfuse --help`, each with a line."""
COMMANDS = {name: text for commands in COMMAND_GROUPS.values() for name, text in commands.items()}
"""All commands. Each is the function `command` of a module of `onnxfuse.cli.commands`, imported on use; hyphens in its
name become underscores."""
EXAMPLES = {
    "onnxfuse optimize model.onnx fused.onnx --precision float16": "fuse, in half precision where accurate enough",
    "onnxfuse verify model.onnx fused.onnx": "prove that both compute the same",
    "onnxfuse bench model.onnx fused.onnx --shape batch=8": "measure whether it is faster",
}
"""What a first session types, with what each line does."""
