"""A client without any .proto of ours learns the services by reflection, and calls them."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from serve_app.rpc import reflection_pb2 as pb
from serve_app.rpc.methods import REFLECTION, SERVICE
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import fake_app
from tests.support.rpc_server import rpc_served

WAIT_S = 60.0
NOT_FOUND = grpc.StatusCode.NOT_FOUND.value[0]


def server() -> AbstractAsyncContextManager[str]:
    return rpc_served(fake_app(FakeBackend()))


async def test_an_unmodified_client_learns_the_services_and_calls_them() -> None:
    def learn_and_call(address: str) -> tuple[set[str], Any, Any]:
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            pool = DescriptorPool(database)
            method = pool.FindServiceByName(SERVICE).FindMethodByName("ModelMetadata")
            request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
            call = channel.unary_unary(
                f"/{SERVICE}/{method.name}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            check = pool.FindServiceByName("grpc.health.v1.Health").FindMethodByName("Check")
            return set(database.get_services()), call(request(name="demo"), timeout=WAIT_S), check

    async with server() as address:
        services, answer, check = await asyncio.to_thread(learn_and_call, address)
    assert services == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"}
    assert answer.name == "demo"
    assert "input_ids" in {tensor.name for tensor in answer.inputs}
    assert check.output_type.full_name == "grpc.health.v1.HealthCheckResponse"


@pytest.mark.parametrize("path", REFLECTION)
async def test_each_question_on_a_stream_has_one_answer(path: str) -> None:
    ask = pb.ServerReflectionRequest
    unknown = pb.ExtensionRequest(containing_type="inference.ModelInferRequest", extension_number=5)
    questions = [
        ask(list_services="", host="here"),
        ask(file_by_filename="serve_app/rpc/health.proto"),
        ask(file_by_filename="/etc/passwd"),
        ask(file_containing_symbol="inference.ModelInferRequest.InferInputTensor"),
        ask(file_containing_symbol=f"{SERVICE}.ModelInfer"),
        ask(file_containing_symbol="inference.Nothing"),
        ask(all_extension_numbers_of_type="inference.ModelInferRequest"),
        ask(all_extension_numbers_of_type="nothing"),
        ask(file_containing_extension=unknown),
        ask(),
    ]
    async with server() as address, grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(
            path,
            request_serializer=ask.SerializeToString,
            response_deserializer=pb.ServerReflectionResponse.FromString,
        )
        answers = [answer async for answer in call(iter(questions), timeout=WAIT_S)]
    assert [answer.original_request for answer in answers] == questions
    assert answers[0].valid_host == "here"
    kinds = [answer.WhichOneof("message_response") for answer in answers]
    files, errors = "file_descriptor_response", "error_response"
    assert kinds == [
        "list_services_response", files, errors, files, files, errors,
        "all_extension_numbers_response", errors, errors, errors,
    ]  # fmt: skip
    assert {a.error_response.error_code for a in answers if a.WhichOneof("message_response") == errors} == {
        NOT_FOUND
    }
    assert not answers[6].all_extension_numbers_response.extension_number


async def test_a_question_has_a_bound() -> None:
    question = pb.ServerReflectionRequest(file_containing_symbol="x" * 10_000)
    async with server() as address, grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(REFLECTION[0])(iter([question.SerializeToString()]), timeout=WAIT_S)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "8192 bytes" in await call.details()
