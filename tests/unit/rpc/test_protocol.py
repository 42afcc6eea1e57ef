"""Our copy of the protocol against the public one, as tritonclient brings it in the same process."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from serve_app.rpc import kserve_pb2 as ours
from serve_app.rpc import reflection_pb2
from serve_app.rpc.methods import HEALTH, METHODS, REFLECTION, SERVICE

service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")
model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")
public_reflection = pytest.importorskip("grpc_reflection.v1alpha.reflection_pb2")

# Configurations of models: we have the fields that we report. Of everything else we have all.
PARTS = {"ModelConfig", "ModelInput", "ModelOutput"}
UNSERVED = ("SystemSharedMemory", "CudaSharedMemory", "TraceSetting", "LogSettings")


def theirs(name: str) -> Any:
    for module in (service_pb2, model_config_pb2):
        file = module.DESCRIPTOR
        found = file.message_types_by_name.get(name) or file.enum_types_by_name.get(name)
        if found is not None:
            return found
    raise AssertionError(f"the public protocol has no {name}")


def shape(field: FieldDescriptor) -> tuple[Any, ...]:
    """All that decides over the bytes of a field, and over the names in its JSON."""
    inner = field.message_type or field.enum_type
    oneof = field.containing_oneof.name if field.containing_oneof else None
    return (
        field.name,
        field.number,
        field.type,
        field.is_repeated,
        oneof,
        inner.full_name if inner else None,
        field.has_presence,
    )


def same_enum(own: EnumDescriptor, public: EnumDescriptor) -> None:
    assert {v.name: v.number for v in own.values} == {v.name: v.number for v in public.values}


def same_message(own: Descriptor, public: Descriptor) -> None:
    assert own.full_name == public.full_name
    own_fields = {field.number: shape(field) for field in own.fields}
    public_fields = {field.number: shape(field) for field in public.fields}
    if own.name in PARTS:
        public_fields = {number: public_fields[number] for number in own_fields}
    assert own_fields == public_fields
    for nested in own.nested_types:
        same_message(nested, public.nested_types_by_name[nested.name])


@pytest.mark.parametrize("name", sorted(ours.DESCRIPTOR.message_types_by_name))
def test_a_message_has_the_public_fields_and_numbers(name: str) -> None:
    same_message(ours.DESCRIPTOR.message_types_by_name[name], theirs(name))


@pytest.mark.parametrize("name", sorted(ours.DESCRIPTOR.enum_types_by_name))
def test_an_enum_has_the_public_values(name: str) -> None:
    same_enum(ours.DESCRIPTOR.enum_types_by_name[name], theirs(name))


def test_the_service_has_every_public_method_that_is_served() -> None:
    (own,) = ours.DESCRIPTOR.services_by_name.values()
    public = service_pb2.DESCRIPTOR.services_by_name[own.name]
    assert own.full_name == public.full_name == SERVICE

    def kind(method: Any) -> tuple[Any, ...]:
        streams = method.client_streaming, method.server_streaming
        return method.input_type.full_name, method.output_type.full_name, *streams

    served = {m.name: kind(m) for m in public.methods if not m.name.startswith(UNSERVED)}
    assert {method.name: kind(method) for method in own.methods} == served
    assert set(METHODS) == {HEALTH, *REFLECTION, *(f"/{SERVICE}/{name}" for name in served)}


@pytest.mark.parametrize("name", sorted(reflection_pb2.DESCRIPTOR.message_types_by_name))
def test_a_message_of_reflection_is_the_public_one_of_either_version(name: str) -> None:
    def bare(message: Descriptor) -> list[tuple[Any, ...]]:
        return [
            tuple(v.replace("v1alpha", "v1") if isinstance(v, str) else v for v in shape(field))
            for field in message.fields
        ]

    public = public_reflection.DESCRIPTOR.message_types_by_name[name]
    assert bare(reflection_pb2.DESCRIPTOR.message_types_by_name[name]) == bare(public)


def test_both_copies_live_in_one_process() -> None:
    sent = service_pb2.ModelInferRequest(model_name="m", id="7", raw_input_contents=[b"\x01\x00\x00\x00"])
    sent.parameters["priority"].uint64_param = 3
    sent.inputs.add(name="input_ids", datatype="INT32", shape=[1, 1])
    got = ours.ModelInferRequest.FromString(sent.SerializeToString())
    assert got.SerializeToString(deterministic=True) == sent.SerializeToString(deterministic=True)
    assert got.parameters["priority"].uint64_param == 3
    assert got.DESCRIPTOR.file.pool is not sent.DESCRIPTOR.file.pool
