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
from onnxfuse.runtime.kernels.programs import next_number, rooms
from onnxfuse.support.errors import KernelError, ModelError
from onnxfuse.support.plurals import plural

Kernels = str | Path | Literal[False] | None
"""Path of a pack; None: the one next to the model, if any; False: none."""


def pack_of(model: Path | None, kernels: Kernels, ops: Mapping[str, FusedOp]) -> LoadedPack | None:
    """Return the kernel pack for a session with these ops as kernels; None if there is none.

    `model`: its file, if it has one. A pack that is damaged, of another version, or for other ops is reported in a
    warning, with the command that rebuilds it, and is not used. Raises ModelError if `kernels` names a missing file.
    """
    place, named = _place(model, kernels), kernels is not None
    if place is None:
        return None
    try:
        pack = file.opened(place, named=named, links=external.follows_links())
    except FileNotFoundError:
        if named:
            raise ModelError(f"{place}: there is no such kernel pack", _again(model, place)) from None
        return None
    except PackError as fault:
        _warn(place, f"{fault}", model)
        return None
    return _of_ops(pack, ops, model)


def require(model: Path | None, kernels: Kernels) -> None:
    """Raise ModelError if `kernels` names a missing file, also on the CPU, where no pack is used."""
    place = _place(model, kernels)
    if kernels is not None and place is not None and not place.is_file():
        raise ModelError(f"{place}: there is no such kernel pack", _again(model, place))


def _place(model: Path | None, kernels: Kernels) -> Path | None:
    if kernels is None:
        return None if model is None else file.pack_path_of(model)
    return None if kernels is False else Path(kernels)


def _of_ops(pack: KernelPack, ops: Mapping[str, FusedOp], model: Path | None) -> LoadedPack | None:
    """Return the pack restricted to the ops of the model."""
    if pack.head.planners.hex() != stored.planners():
        _warn(pack.path, "was made by another version of onnxfuse, whose kernels are not these", model)
        return None
    there = {e.name: e for e in pack.index.ops}
    mine = {n: there[n] for n, op in ops.items() if n in there and there[n].digest == stored.digest_of(op)}
    if ops and not mine:
        _warn(pack.path, "is of another model: it has none of this one's fused ops", model)
        return None
    if len(mine) < len(ops):
        missing = sorted(set(ops) - set(mine))
        _warn(pack.path, f"lacks {len(missing)} of {plural(ops, 'fused op')}, such as {missing[0]}", model)
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
        apart: Sequence[tuple[Shape, ...]] = (),
        variant: str = "",
    ) -> LaunchProgram | None:
        """Return the program that covers these shapes, with its kernels loaded.

        None if the pack has none. `apart`: shapes that a program covers only in the variant that was measured fastest
        for them, which is `variant`, empty for the planner's own choice.
        """
        here = self._on(device)
        if here is None:
            return None
        for one, number in here.programs.get(op, ()):
            if one.general or (one.aligned, one.variant) != (aligned, variant):
                continue
            try:
                wanted = _launched(one, shapes)
            except PackError as fault:
                self._leave(here, fault)
                return None
            if wanted is None:
                continue
            if not self._loaded(here, [one.kernels[n] for n in wanted], device):
                return None
            words = () if variant else tuple(map(words_of, apart))
            found = tuple(_kernel(here.loaded.get(k), here.early) for k in one.kernels)
            return LaunchProgram(number, one.tape, found, words, partial(rooms, device=device))
        return None

    def has(self, ops: Collection[str], device: int) -> bool:
        """Return whether the pack has programs for all of these ops."""
        here = self._on(device)
        return here is not None and all(here.programs.get(op) for op in ops)

    def general(self, op: str, device: int) -> Any:
        """Return the function of the op's general kernel; None if the pack has none."""
        here = self._on(device)
        found = next((one for one, _ in here.programs.get(op, ()) if one.general), None) if here is not None else None
        if here is None or found is None:
            return None
        (number,) = found.kernels
        return here.loaded[number] if self._loaded(here, [number], device) else None

    def answers(self, op: str, shapes: tuple[Shape, ...], aligned: bool, device: int, variant: str = "") -> bool:
        """Return whether `program` covers these shapes; loads nothing."""
        here = self._on(device)
        mine = [] if here is None else here.programs.get(op, [])
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
        here = self._on(device)
        if here is None:
            return
        outside_captures()
        for number in dict.fromkeys(
            k for ones in here.programs.values() for one, _ in ones if not one.general for k in one.kernels
        ):
            if not go_on() or here.out:
                return
            try:
                self._load(here, number, device)
            except (PackError, KernelError):  # reported when a run needs it
                return

    def _on(self, device: int) -> _Here | None:
        with self.lock:
            if device not in self.here:
                self.here[device] = self._begun(device)
            here = self.here[device]
        return None if here is None or here.out else here

    def _begun(self, device: int) -> _Here | None:
        targets = self.pack.index.targets
        arch = cuda.arch_of(device)
        target = best(targets, arch)
        if target is None:
            there = ", ".join(t.name for t in targets)
            _warn(self.pack.path, f"has no kernels for this GPU, {arch.name}; it has {there}", self.model, arch.name)
            return None
        mine = {
            name: [(p, next_number()) for p in entry.programs if p.target == target] for name, entry in self.ops.items()
        }
        return _Here(mine, targets[target].arch.starts_early)

    def _loaded(self, here: _Here, numbers: Sequence[int], device: int) -> bool:
        """Return whether these kernels are loaded; the first failure is reported and ends the use of the pack."""
        try:
            for number in numbers:
                self._load(here, number, device)
        except (PackError, KernelError) as fault:
            self._leave(here, fault)
            return False
        return True

    def _leave(self, here: _Here, fault: PackError | KernelError) -> None:
        here.out = True
        _warn(self.pack.path, f"{fault}", self.model)

    def _load(self, here: _Here, number: int, device: int) -> None:
        if number not in here.loaded:
            kernel = self.pack.index.kernels[number]
            image = partial(self.pack.image, kernel)
            here.loaded[number] = cuda.load_image(image, kernel.digest, kernel.entry, device)


def _kernel(function: Any, early: bool) -> LoadedKernel:
    """Return a kernel for the engine; one that is not loaded yet is loaded when a shape needs it."""
    return LoadedKernel(0 if function is None else function.kernel.ptr, early, function)


def _launched(one: StoredProgram, shapes: tuple[Shape, ...]) -> list[int] | None:
    """Return the indices of the kernels that a program launches for these shapes; None if it does not cover them."""
    numbered = tuple(LoadedKernel(n + 1, False, None) for n in range(len(one.kernels)))
    try:
        found = bridge().evaluated(LaunchProgram(0, one.tape, numbered, (), partial(rooms, device=0)), shapes)
    except RuntimeError as fault:  # the engine checks every word of a program on receipt
        raise PackError(f"is damaged: {fault}") from None
    return None if found is None else sorted(set(_functions(found)))


def _functions(launch: Mapping[str, Any]) -> list[int]:
    return [launch["function"] - 1, *(n for after in launch["then"] for n in _functions(after))]


def _again(model: Path | None, place: Path, arch: str = "") -> str:
    which = str(model) if model is not None else "MODEL"
    command = f"onnxfuse compile {which}{f' --arch {arch}' if arch else ''}"
    return (
        f"Build it: {command}"
        if model is None or place == file.pack_path_of(model)
        else f"Build it: {command} -o {place}"
    )


def _warn(place: Path, fault: str, model: Path | None, arch: str = "") -> None:
    warnings.warn(
        f"{place}: {fault}. It is not used, kernels are compiled as they are needed. {_again(model, place, arch)}",
        RuntimeWarning,
        stacklevel=2,
    )
