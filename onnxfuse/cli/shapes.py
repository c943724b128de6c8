"""The option `--shape`: sizes of a dimension, or the shape of an input."""

import click


class ShapeOption(click.ParamType[tuple[str, tuple[int, ...]]]):
    """`name=1,7` for the values of a dimension, `input=1x3x224x224` for the shape of an input."""

    name = "NAME=SIZES"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...]]:
        """Return the name and the sizes."""
        name, equals, sizes = str(value).rpartition("=")
        numbers = sizes.replace("x", ",").split(",")
        if not equals or not name or not all(n.strip().isdigit() for n in numbers):
            self.fail(f"'{value}' is neither DIMENSION=1,7 nor INPUT=1x3x224x224", param, ctx)
        return name, tuple(int(n) for n in numbers)
