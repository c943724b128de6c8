"""Kernel pack of a session, found next to the model: shapes it covers need neither planning nor compilation."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from onnxfuse import cuda
from onnxfuse.cuda.launch_programs import stored
from onnxfuse.cuda.pack import file
from onnxfuse.cuda.pack.file import KernelPack
from onnxfuse.cuda.pack.layout import PackEntry, PackError, StoredProgram, best
from onnxfuse.files import external
from onnxfuse.model.fused import FusedOp
from onnxfuse.runtime.engine.bridge import bridge
from onnxfuse.runtime.engine.cuda_provider import outside_captures
from onnxfuse.runtime.engine.launch import LaunchProgram, LoadedKernel, Shape, words_of
from onnxfuse.runtime.kernels.programs import next_number
from onnxfuse.support.errors import KernelError, ModelError
from onnxfuse.support.log import LOG
from onnxfuse.support.plurals import plural

Kernels = str | Path | Literal[False] | None
"""Path of a pack; None: the one next to the model, if any; False: none."""


def pack_of(model: Path | None, kernels: Kernels, ops: Mapping[str, FusedOp]) -> LoadedPack | None:
    """Return the kernel pack for a session with these ops as kernels; None if there is none.

    `model`: its file, if it has one. A pack that is damaged, of another version, or for other ops is reported in a
    warning, with the command that rebuilds it, and is not used. Raises ModelError if `kernels` names a missing file.
    """
    pack_path, named = _place(model, kernels), kernels is not None
    if pack_path is None:
        return None
    try:
        pack = file.opened(pack_path, named=named, links=external.follows_links())
    except FileNotFoundError:
        if named:
            raise ModelError(f"{pack_path}: no such kernel pack", _again(model, pack_path)) from None
        return None
    except PackError as fault:
        _warn(pack_path, f"{fault}", model)
        return None
    LOG.info("kernel pack %s is opened", pack_path)
    return _of_ops(pack, ops, model)


def require(model: Path | None, kernels: Kernels) -> None:
    """Raise ModelError if `kernels` names a missing file, also on the CPU, where no pack is used."""
    pack_path = _place(model, kernels)
    if kernels is not None and pack_path is not None and not pack_path.is_file():
        raise ModelError(f"{pack_path}: no such kernel pack", _again(model, pack_path))


def _place(model: Path | None, kernels: Kernels) -> Path | None:
    if kernels is None:
        return None if model is None else file.pack_path_of(model)
    return None if kernels is False else Path(kernels)


def _of_ops(pack: KernelPack, ops: Mapping[str, FusedOp], model: Path | None) -> LoadedPack | None:
    """Return the pack restricted to the ops of the model."""
    if pack.head.planners.hex() != stored.planners():
        _warn(pack.path, "was made by another version of onnxfuse, whose kernels differ", model)
        return None
    entries = {e.name: e for e in pack.index.ops}
    mine = {n: entries[n] for n, op in ops.items() if n in entries and entries[n].digest == stored.digest_of(op)}
    if ops and not mine:
        _warn(pack.path, "belongs to another model: it has none of this one's fused ops", model)
        return None
    if len(mine) < len(ops):
        lacking = sorted(set(ops) - set(mine))
        _warn(pack.path, f"lacks {len(lacking)} of {plural(ops, 'fused op')}, such as {lacking[0]}", model)
    return LoadedPack(pack, mine, model)


@dataclass
class _Here:
    """A pack on one GPU."""

    programs: dict[str, list[tuple[StoredProgram, int]]]
    """Programs by op, each with its process-wide family identifier."""
    early: bool
    loaded: dict[int, Any] = field(default_factory=dict)
    """Loaded functions, by the index of the kernel in the pack."""
    out: bool = False
    """Set once a kernel could not be loaded: the pack is not used any more."""


class LoadedPack:
    """A kernel pack as used by one session, or by all sessions with the same options."""

    def __init__(self, pack: KernelPack, ops: Mapping[str, PackEntry], model: Path | None) -> None:
        self.pack, self.ops, self.model = pack, ops, model
        self.lock = threading.Lock()
        self.here: dict[int, _Here | None] = {}

    def program(
        self,
        op: str,
        shapes: tuple[Shape, ...],
        aligned: bool,
        device: int,
        tuned_shapes: Sequence[tuple[Shape, ...]] = (),
        variant: str = "",
    ) -> LaunchProgram | None:
        """Return the program that covers these shapes, with its kernels loaded.

        None if the pack has none. `tuned_shapes`: shapes that a program covers only in the variant that was measured
        fastest for them, which is `variant`, empty for the planner's own choice.
        """
        device_state = self._on(device)
        if device_state is None:
            return None
        for one, index in device_state.programs.get(op, ()):
            if one.general or (one.aligned, one.variant) != (aligned, variant):
                continue
            try:
                launch = _launched(one, shapes)
            except PackError as fault:
                self._leave(device_state, fault)
                return None
            if launch is None:
                continue
            if not self._loaded(device_state, [one.kernels[n] for n in launch], device):
                return None
            words = () if variant else tuple(map(words_of, tuned_shapes))
            kernels = tuple(_kernel(device_state.loaded.get(k), device_state.early) for k in one.kernels)
            return LaunchProgram(index, one.tape, kernels, words)
        return None

    def has(self, ops: Collection[str], device: int) -> bool:
        """Return whether the pack has programs for all of these ops."""
        device_state = self._on(device)
        return device_state is not None and all(device_state.programs.get(op) for op in ops)

    def general(self, op: str, shapes: tuple[Shape, ...], device: int) -> list[Any]:
        """Return the functions that the op's general program launches for these shapes, one for each launch; none if
        the pack has no such program."""
        device_state = self._on(device)
        if device_state is None:
            return []
        for one, _ in device_state.programs.get(op, ()):
            try:
                launches = _launches(one, shapes) if one.general else None
            except PackError as fault:
                self._leave(device_state, fault)
                return []
            if launches is not None:
                kernels = [one.kernels[n] for n in launches]
                there = self._loaded(device_state, kernels, device)
                return [device_state.loaded[k] for k in kernels] if there else []
        return []

    def answers(self, op: str, shapes: tuple[Shape, ...], aligned: bool, device: int, variant: str = "") -> bool:
        """Return whether `program` covers these shapes; loads nothing."""
        device_state = self._on(device)
        mine = [] if device_state is None else device_state.programs.get(op, [])
        try:
            return any(
                not one.general
                and (one.aligned, one.variant) == (aligned, variant)
                and _launched(one, shapes) is not None
                for one, _ in mine
            )
        except PackError:  # reported when a run needs it
            return False

    def load(self, device: int, go_on: Callable[[], bool]) -> None:
        """Load the kernels for this GPU one after the other until `go_on` returns False; meant for a thread of
        its own."""
        device_state = self._on(device)
        if device_state is None:
            return
        outside_captures()
        for kernel_index in dict.fromkeys(
            k
            for programs in device_state.programs.values()
            for one, _ in programs
            if not one.general
            for k in one.kernels
        ):
            if not go_on() or device_state.out:
                return
            try:
                self._load(device_state, kernel_index, device)
            except (PackError, KernelError):  # reported when a run needs it
                return

    def _on(self, device: int) -> _Here | None:
        with self.lock:
            if device not in self.here:
                self.here[device] = self._begun(device)
            device_state = self.here[device]
        return None if device_state is None or device_state.out else device_state

    def _begun(self, device: int) -> _Here | None:
        targets = self.pack.index.targets
        arch = cuda.arch_of(device)
        target = best(targets, arch)
        if target is None:
            target_names = ", ".join(t.name for t in targets)
            _warn(
                self.pack.path,
                f"has no kernels for this GPU, {arch.name}; it has {target_names}",
                self.model,
                arch.name,
            )
            return None
        mine = {
            name: [(p, next_number()) for p in entry.programs if p.target == target] for name, entry in self.ops.items()
        }
        return _Here(mine, targets[target].arch.isa.starts_early)

    def _loaded(self, device_state: _Here, kernel_indices: Sequence[int], device: int) -> bool:
        """Return whether these kernels are loaded; the first failure is reported and ends the use of the pack."""
        try:
            for kernel_index in kernel_indices:
                self._load(device_state, kernel_index, device)
        except (PackError, KernelError) as fault:
            self._leave(device_state, fault)
            return False
        return True

    def _leave(self, device_state: _Here, fault: PackError | KernelError) -> None:
        device_state.out = True
        _warn(self.pack.path, f"{fault}", self.model)

    def _load(self, device_state: _Here, kernel_index: int, device: int) -> None:
        if kernel_index not in device_state.loaded:
            kernel = self.pack.index.kernels[kernel_index]
            image = partial(self.pack.image, kernel)
            device_state.loaded[kernel_index] = cuda.load_image(image, kernel.digest, kernel.entry, device)


def _kernel(function: Any, early: bool) -> LoadedKernel:
    """Return a kernel for the engine; one that is not loaded yet is loaded when a shape needs it."""
    return LoadedKernel(0 if function is None else function.kernel.ptr, early, function)


def _launched(one: StoredProgram, shapes: tuple[Shape, ...]) -> list[int] | None:
    """Return the indices of the kernels that a program launches for these shapes; None if it does not cover them."""
    launches = _launches(one, shapes)
    return None if launches is None else sorted(set(launches))


def _launches(one: StoredProgram, shapes: tuple[Shape, ...]) -> list[int] | None:
    """Return the same, for each launch in turn."""
    numbered = tuple(LoadedKernel(n + 1, False, None) for n in range(len(one.kernels)))
    try:
        answers = bridge().evaluated(LaunchProgram(0, one.tape, numbered, ()), shapes)
    except RuntimeError as fault:  # the engine checks every word of a program on receipt
        raise PackError(f"is damaged: {fault}") from None
    return None if answers is None else _functions(answers)


def _functions(launch: Mapping[str, Any]) -> list[int]:
    return [launch["function"] - 1, *(n for after in launch["then"] for n in _functions(after))]


def _again(model: Path | None, pack_path: Path, arch: str = "") -> str:
    which = str(model) if model is not None else "MODEL"
    command = f"onnxfuse compile {which}{f' --arch {arch}' if arch else ''}"
    return (
        f"Build it: {command}"
        if model is None or pack_path == file.pack_path_of(model)
        else f"Build it: {command} -o {pack_path}"
    )


def _warn(pack_path: Path, fault: str, model: Path | None, arch: str = "") -> None:
    warnings.warn(
        f"{pack_path}: {fault}. It is not used: kernels are compiled on demand. {_again(model, pack_path, arch)}",
        RuntimeWarning,
        stacklevel=2,
    )
