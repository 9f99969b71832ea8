"""The OpenAPI document: it lists what the router serves, and its examples and real answers fit it."""

from __future__ import annotations

import copy
import datetime
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.campus.app import create_app
from fencepost.campus.openapi import document
from fencepost.campus.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

PAGES = {
    ("GET", "/"),
    ("GET", "/more"),
    ("GET", "/pulse"),
    ("GET", "/likes"),
    ("GET", "/likes/more"),
    ("GET", "/activities/{id}/delete"),
    ("GET", "/activities/{id}/edit"),
    ("POST", "/activities/{id}/edit"),
    ("POST", "/activities/{id}/delete"),
    ("GET", "/activities/{id}/seat"),
    ("POST", "/activities/{id}/seat"),
    ("POST", "/activities"),
    ("POST", "/activities/{id}/like"),
    ("POST", "/sign-in"),
    ("POST", "/sign-out"),
    ("GET", "/problems/{slug}"),
    ("", "/static"),
}
NAMES = {
    "integer": int,
    "string": str,
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}


def misfits(value: Any, schema: dict[str, Any], where: str = "it") -> Iterator[str]:
    """What of a value does not fit a schema; knows the words that our schemas use."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        schema = document()["components"]["schemas"][name]
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if type(value) not in [NAMES[name] for name in types]:
        yield f"{where} is {value!r}, not {types}"
        return
    match value:
        case dict():
            known = schema["properties"]
            yield from (f"{where} lacks {name}" for name in schema["required"] if name not in value)
            for name, inner in value.items():
                if name in known:
                    yield from misfits(inner, known[name], f"{where}.{name}")
                elif not schema.get("additionalProperties", True):
                    yield f"{where} has {name}"
        case list():
            for number, inner in enumerate(value):
                yield from misfits(inner, schema["items"], f"{where}[{number}]")
        case bool() | None:
            pass
        case int():
            if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
                yield f"{where} is {value}"
        case str():
            if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10_000):
                yield f"{where} has {len(value)} characters"
            if value not in schema.get("enum", [value]) or value != schema.get("const", value):
                yield f"{where} is {value!r}"
            if schema.get("format") == "date-time":
                assert datetime.datetime.fromisoformat(value).tzinfo is not None


def described() -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, each in document()["paths"].items() for method in each}


def test_the_document_and_the_router_list_the_same() -> None:
    served = {
        (method, route.path)
        for route in create_app(Settings()).routes
        for method in (getattr(route, "methods", None) or {""}) - {"HEAD"}
    }
    assert served - PAGES == described()
    assert served >= PAGES


def test_every_operation_is_whole() -> None:
    names = []
    for path, methods in document()["paths"].items():
        for operation in methods.values():
            names.append(operation["operationId"])
            assert operation["summary"]
            given = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert given == {part[1:-1] for part in path.split("/") if part.startswith("{")}
            assert any(status.startswith("2") for status in operation["responses"])
            assert "500" in operation["responses"]
    assert len(names) == len(set(names))


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for inner in node.values():
            yield from references(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from references(inner)


def test_every_reference_leads_somewhere() -> None:
    schemas = document()["components"]["schemas"]
    found = {each.removeprefix("#/components/schemas/") for each in references(document())}
    assert found == set(schemas)


def examples() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
            for body in bodies:
                for content in body.get("content", {}).values():
                    if "example" in content:
                        yield f"{method} {path}", content["example"], content["schema"]


def test_examples_fit_their_schemas() -> None:
    found = list(examples())
    assert len(found) == 19
    for where, example, schema in found:
        assert list(misfits(example, schema, where)) == []


@pytest.mark.parametrize(
    "harm",
    [{"id": "12"}, {"id": 0}, {"liked": "yes"}, {"title": ""}, {"more": 1}, {"capacity": None}],
)
def test_the_check_of_examples_objects(harm: dict[str, Any]) -> None:
    good = next(each for _, each, schema in examples() if schema["$ref"].endswith("/Activity"))
    bad = copy.deepcopy(good) | harm
    assert list(misfits(bad, {"$ref": "#/components/schemas/Activity"}))


async def test_real_answers_fit_the_document(api: httpx.AsyncClient) -> None:
    new = document()["paths"]["/api/activities"]["post"]["requestBody"]["content"]
    example = new["application/json"]["example"]
    made = await api.post("/api/activities", json=example)
    like = f"/api/activities/{made.json()['id']}/likes/ada"
    for user in ("bob", "eve"):
        for item in (1, 2):
            await api.put(f"/api/activities/{item}/likes/{user}")
    assert await api.app.state.campus.likes.drain(60) == 0  # type: ignore[attr-defined]
    answers = {
        "Activity": [made, await api.get(made.headers["location"] + "?user=ada")],
        "Like": [await api.put(like), await api.put(like), await api.delete(like)],
        "ActivityPage": [
            await api.get("/api/activities?user=ada&limit=3"),
            await api.get("/api/activities?after=1"),
        ],
        "LikerPage": [await api.get("/api/activities/1/likes?limit=1")],
        "LikedPage": [
            await api.get("/api/users/bob/likes?limit=1"),
            await api.get("/api/users/eve/likes"),
        ],
        "Health": [await api.get("/healthz")],
        "Problem": [
            await api.get("/api/activities/4711"),
            await api.get("/api/activities?limit=x"),
            await api.post("/healthz"),
        ],
    }
    for name, each in answers.items():
        for answer in each:
            schema = {"$ref": f"#/components/schemas/{name}"}
            assert list(misfits(answer.json(), schema, str(answer.url))) == []
    assert (await api.get("/openapi.json")).json() == document()


async def test_the_type_of_each_problem_is_a_page_that_explains_it(api: httpx.AsyncClient) -> None:
    for url in document()["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]:
        page = await api.get(url, headers={"Accept": "text/html"})
        assert page.status_code == 200
        assert url.removeprefix("/problems/") in page.text
    assert (await api.get("/problems/none-of-ours")).status_code == 404
