"""Messages of gRPC to tensors and back: typed and raw contents, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serve_app.api.kserve.datatype import ELEMENTS, tensor_of, tensor_of_strings
from serve_app.api.kserve.message import InferResponse
from serve_app.errors import InvalidBody, InvalidField
from serve_app.rpc import kserve_pb2 as pb
from serve_app.rpc.tensors import CONTENTS, FINAL, decoded, encoded, infer_message


def request(**fields: Any) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(model_name="demo", **fields)


def tensor(name: str = "input_ids", datatype: str = "INT32", shape: Any = (1, 2), **contents: Any) -> Any:
    found = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    if contents:
        found.contents.CopyFrom(pb.InferTensorContents(**contents))
    return found


def typed(datatype: str, values: list[Any]) -> Any:
    return tensor(datatype=datatype, shape=(1, len(values)), **{CONTENTS[datatype]: values})


@pytest.mark.parametrize("datatype", [name for name in CONTENTS if name != "BYTES"])
def test_typed_contents_are_the_raw_bytes_of_the_same_numbers(datatype: str) -> None:
    values = [True, False] if datatype == "BOOL" else [1, 100]
    raw = np.asarray(values, ELEMENTS[datatype]).tobytes()
    by_type = decoded(request(inputs=[typed(datatype, values)]))
    by_bytes = decoded(request(inputs=[tensor(datatype=datatype)], raw_input_contents=[raw]))
    assert by_type.inputs == by_bytes.inputs
    assert by_type.inputs["input_ids"].data == raw


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_travels_raw(datatype: str) -> None:
    found = decoded(request(inputs=[tensor(datatype=datatype)], raw_input_contents=[b"\x00\x3c\x00\x40"]))
    assert found.inputs["input_ids"].data == b"\x00\x3c\x00\x40"
    with pytest.raises(InvalidField, match="raw_input_contents"):
        decoded(request(inputs=[tensor(datatype=datatype, fp32_contents=[1, 2])]))


def test_strings_come_typed_and_raw() -> None:
    words = ["a", "Grüße"]
    sent = [word.encode() for word in words]
    by_type = decoded(request(inputs=[typed("BYTES", sent)]))
    assert by_type.inputs["input_ids"] == tensor_of_strings(words, (1, 2))


@pytest.mark.parametrize(
    ("datatype", "value"),
    [("INT8", 128), ("INT8", -129), ("INT16", 2**15), ("UINT8", 256), ("UINT16", 2**16)],
)
def test_a_number_outside_a_narrow_type_is_refused(datatype: str, value: int) -> None:
    with pytest.raises(InvalidField, match=datatype):
        decoded(request(inputs=[typed(datatype, [value])]))


def test_ids_versions_parameters_and_outputs_are_taken_over() -> None:
    message = request(
        id="9001", model_version="2", inputs=[typed("INT32", [5])], outputs=[{"name": "output_ids"}]
    )
    message.parameters["priority"].uint64_param = 2**63
    message.parameters["note"].string_param = "x"
    message.parameters["on"].bool_param = True
    found = decoded(message)
    assert (found.model, found.version, found.id) == ("demo", "2", "9001")
    assert found.parameters == {"priority": 2**63, "note": "x", "on": True}
    assert found.outputs == ("output_ids",)
    bare = decoded(request(inputs=[typed("INT32", [5])]))
    assert (bare.version, bare.id, bare.outputs) == (None, None, None)


def shared(kind: Any) -> Any:
    kind.parameters["shared_memory_region"].string_param = "r"
    return kind


IDS = tensor(int_contents=[1, 2])
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no inputs": ({}, "inputs: must hold 1 to"),
    "too many inputs": ({"inputs": [tensor(f"t{i}", int_contents=[1, 2]) for i in range(257)]}, "inputs"),
    "no name": ({"inputs": [tensor("", int_contents=[1, 2])]}, "each must have a name"),
    "twice": ({"inputs": [IDS, IDS]}, "input_ids: is there twice"),
    "raw for some": ({"inputs": [IDS, tensor("b")], "raw_input_contents": [b"1"]}, "for all 2 inputs"),
    "raw for more": ({"inputs": [tensor()], "raw_input_contents": [b"", b""]}, "for all 1 inputs"),
    "raw and typed": ({"inputs": [IDS], "raw_input_contents": [b"12345678"]}, "beside raw_input_contents"),
    "raw too short": ({"inputs": [tensor()], "raw_input_contents": [b"1234567"]}, "needs 8 bytes of INT32"),
    "raw too long": ({"inputs": [tensor()], "raw_input_contents": [b"123456789"]}, "needs 8 bytes of INT32"),
    "too few": ({"inputs": [tensor(int_contents=[1])]}, "needs 8 bytes of INT32"),
    "another field": ({"inputs": [tensor(int64_contents=[1, 2])]}, "must be in contents.int_contents"),
    "two fields": (
        {"inputs": [tensor(int_contents=[1, 2], bool_contents=[True])]},
        "must be in contents.int_contents",
    ),
    "datatype": ({"inputs": [tensor(datatype="INT4", int_contents=[1, 2])]}, "datatype must be one of"),
    "negative size": ({"inputs": [tensor(shape=(-1, 2), int_contents=[1, 2])]}, "shape must be"),
    "huge size": ({"inputs": [tensor(shape=(2**40,), int_contents=[1])]}, "shape must be"),
    "strings cut off": (
        {"inputs": [tensor(datatype="BYTES", shape=(1,))], "raw_input_contents": [b"\xff\xff\xff\xffx"]},
        "reaches beyond",
    ),
    "long id": ({"inputs": [IDS], "id": "x" * 1025}, "id: must be"),
    "shared input": ({"inputs": [shared(tensor())]}, "shared memory is not available"),
    "shared output": (
        {"inputs": [IDS], "outputs": [shared(pb.ModelInferRequest.InferRequestedOutputTensor(name="o"))]},
        "shared memory is not available",
    ),
    "output twice": ({"inputs": [IDS], "outputs": [{"name": "o"}, {"name": "o"}]}, "different names"),
    "output without a name": ({"inputs": [IDS], "outputs": [{}]}, "each must have a name"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_together_is_refused_by_name(case: str) -> None:
    fields, message = WRONG[case]
    with pytest.raises(InvalidField) as caught:
        decoded(request(**fields))
    assert message in caught.value.message


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(InvalidBody):
        infer_message(b"\xff\xff\xff")
    assert infer_message(request(id="1").SerializeToString()).id == "1"


@pytest.mark.parametrize("final", [True, False])
def test_a_response_is_raw_and_says_in_streams_whether_it_is_the_last(final: bool) -> None:
    outputs = {
        "output_ids": tensor_of("INT32", [7, 8], (1, 1, 2)),
        "cum_log_probs": tensor_of("FP32", [-1.5], (1, 1)),
    }
    response = InferResponse(model="demo", version="3", id="a", outputs=outputs, is_final=final)
    streamed = encoded(response, in_stream=True)
    assert streamed.parameters[FINAL].bool_param is final
    assert (streamed.model_name, streamed.model_version, streamed.id) == ("demo", "3", "a")
    assert [(o.name, o.datatype, list(o.shape)) for o in streamed.outputs] == [
        ("output_ids", "INT32", [1, 1, 2]),
        ("cum_log_probs", "FP32", [1, 1]),
    ]
    assert list(streamed.raw_output_contents) == [tensor.data for tensor in outputs.values()]
    assert not encoded(response, in_stream=False).parameters
