"""Loop and Scan in the reference, in the forms that onnx's implementation lacks."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_loop import Loop as OnnxLoop

Array = npt.NDArray[Any]


class Loop(OnnxLoop):
    """Iterated body; onnx's implementation concatenates scan outputs vertically, without a new axis."""

    def _run(self, *inputs: Any, context: Any = None, attributes: Any = None, **_unused: Any) -> tuple[Any, ...]:
        this: Any = self  # values computed by the reference carry no type
        (limit, going), values = inputs[:2], list(inputs[2:])
        gathered: list[list[Array]] = [[] for _ in range(this.K)]
        proceed, step = going is None or bool(going), 0

        def iterate(step: int, values: Sequence[Any]) -> list[Any]:
            feeds = dict(zip(this.body.input_names, (np.array(step), np.array(True), *values), strict=True))
            return list(this._run_body({**(context or {}), **feeds}, attributes=attributes))

        if this.K and not (proceed and (limit is None or limit > 0)):
            # A scan output of no iterations has no rows, each of the shape that an iteration would yield.
            return (*values, *(np.stack([row])[:0] for row in iterate(0, values)[1 + len(values) :]))
        while proceed and (limit is None or step < limit):
            going, *results = iterate(step, values)
            values, proceed, step = results[: len(values)], bool(going), step + 1
            for rows, row in zip(gathered, results[len(values) :], strict=True):
                rows.append(row)
        return (*values, *map(np.stack, gathered))


class Scan(OpRun):
    """The body for each entry of an axis, from either end; onnx's implementation supports the first axis, forward,
    only."""

    def need_context(self) -> bool:
        """Return True: the body may read values of the enclosing graph."""
        return True

    def _run(
        self,
        *inputs: Any,
        context: Any = None,
        attributes: Any = None,
        body: Any = None,
        num_scan_inputs: int = 1,
        scan_input_axes: Sequence[int] | None = None,
        scan_input_directions: Sequence[int] | None = None,
        scan_output_axes: Sequence[int] | None = None,
        scan_output_directions: Sequence[int] | None = None,
        directions: Sequence[int] | None = None,
    ) -> tuple[Any, ...]:
        def iterate(states: Sequence[Any], entries: Sequence[Any]) -> list[Any]:
            feeds = dict(zip(body.input_names, (*states, *map(np.asarray, entries)), strict=True))
            return list(body.run(None, {**(context or {}), **feeds}, attributes=attributes))

        if self.run_params["opsets"][self.onnx_node.domain] < 9:
            return _scan_batches(iterate, inputs[0], inputs[1:], num_scan_inputs, directions)
        states, scanned = list(inputs[:-num_scan_inputs]), inputs[-num_scan_inputs:]
        rows = [
            np.moveaxis(x, axis, 0)[:: -1 if back else 1]
            for x, axis, back in zip(
                scanned, _each(scan_input_axes, scanned), _each(scan_input_directions, scanned), strict=True
            )
        ]
        gathered: list[list[Array]] = [[] for _ in body.output_names[len(states) :]]
        for entries in zip(*rows, strict=True):
            results = iterate(states, entries)
            states = results[: len(states)]
            for column, row in zip(gathered, results[len(states) :], strict=True):
                column.append(row)
        stacked = [
            np.moveaxis(np.stack(column[:: -1 if back else 1]), 0, axis)
            for column, axis, back in zip(
                gathered, _each(scan_output_axes, gathered), _each(scan_output_directions, gathered), strict=True
            )
        ]
        return (*states, *stacked)


def _scan_batches(
    iterate: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
    lengths: Array | None,
    values: Sequence[Array],
    scans: int,
    directions: Sequence[int] | None,
) -> tuple[Array, ...]:
    """Evaluate Scan of opset 8: the first axis is the batch, the second is scanned up to its own length.

    Entries beyond that length are zeros.
    """
    first, scanned = values[:-scans], values[-scans:]
    batch, longest = scanned[0].shape[:2]
    ends = [longest] * batch if lengths is None else [int(n) for n in lengths]
    finals: list[list[Array]] = [[] for _ in first]
    columns: list[list[Array]] = []
    for b, length in enumerate(ends):
        rows = [
            x[b, :length][:: -1 if back else 1] for x, back in zip(scanned, _each(directions, scanned), strict=True)
        ]
        states, gathered = [x[b] for x in first], list[list[Array]]()
        for entries in zip(*rows, strict=True):
            results = iterate(states, entries)
            states = results[: len(first)]
            gathered.append([np.asarray(row) for row in results[len(first) :]])
        for column, state in zip(finals, states, strict=True):
            column.append(state)
        for n, rows_of_one in enumerate(zip(*gathered, strict=True)):
            padded = [*rows_of_one, *[np.zeros_like(rows_of_one[0])] * (longest - length)]
            columns += [[] for _ in range(n + 1 - len(columns))]
            columns[n].append(np.stack(padded))
    return (*map(np.stack, finals), *map(np.stack, columns))


def _each(values: Sequence[int] | None, of: Sequence[Any]) -> list[int]:
    """Return an axis or direction for each of `of`; 0 by default."""
    return list(values or [0] * len(of))


OPERATORS: tuple[type[OpRun], ...] = (Loop, Scan)
