"""The library: a function for each thing that is done to models. `import onnxfuse` offers them, the commands call them.

`optimize`, `undo` and `written` (optimizing), with one `Options` (options); `tune` (tuning); `explain` (explaining);
`verify`, `bench` and `profile` (running); `ci`; `doctor`; `rules`. Each returns what it found as a value, says how far
it is by a callback, and raises OnnxfuseError.
"""
