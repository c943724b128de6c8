"""The library behind `import onnxfuse` and the commands: one function per task.

`optimize`, `undo` and `written` (optimize), with one `Options` (request); `tune`; `explain`; `verify`, `bench` and
`profile` (run); `ci`; `doctor`; `rules`. Each returns its result as a value, reports progress through a callback, and
raises OnnxfuseError.
"""
