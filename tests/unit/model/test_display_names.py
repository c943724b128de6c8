"""Names of kernels and operators, as tables show them."""

from onnxfuse.model.display_names import plain_name, short


def test_short_counts_equal_neighbours() -> None:
    """What a column has room for."""
    assert short(["Add", "Add", "Relu"]) == "2 Add + Relu"
    assert short(["Div", "Erf", "Add", "Mul", "Cast", "Neg"]) == "Div + Erf + Add + 3 more"
    assert short(["Transpose", "Transpose", "Conv", "Transpose", "Add", "Relu"]) == "Conv + Add + Relu + 3 more"
    assert short(["Reshape", "Transpose", "Cast", "Reshape", "Squeeze"]) == "Reshape + Transpose + Cast + 2 more"


def test_a_kernels_plain_name_is_without_types_and_parameters() -> None:
    """What is nothing else stays as it is."""
    assert plain_name("void ort::cuda::Gather<long, 8>(int, const half*)") == "ort::cuda::Gather"
    assert plain_name("nvjet_sm90_hsh_192x128") == "nvjet_sm90_hsh_192x128"
    assert plain_name("<lambda>(int)") == "<lambda>(int)"
