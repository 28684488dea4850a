"""A schema registry over HTTP, as Confluent's and those that copy its API (Apicurio, Karapace).

Its one rule: an answer that says "there is no such schema" is a fact about a record, anything else
that is no schema is an outage and ends the job. Nothing goes to the dead letters for an outage.
"""

import base64
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Final

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.decoded_values import BadValue

ATTEMPTS: Final = 3
_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 0.5
"""Before the second attempt; twice as long before the third."""
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema and those that it imports, each before the ones that need it."""

    text: str
    """Of Protobuf: a FileDescriptorProto in base64."""
    references: tuple[tuple[str, str], ...] = ()
    """(name by which it is imported, text), all of them, also those of references."""


@dataclass(slots=True)
class SchemaRegistry:
    """The schemas behind a URL, which may hold `user:password@`. Schemas never change, so what was
    read is kept. Not thread-safe; sent to another process it takes along what it has read."""

    url: str
    _schemas: dict[tuple[int, bool], RegisteredSchema | None] = field(
        default_factory=dict, repr=False
    )

    def __post_init__(self) -> None:
        """Refuses what urllib would open otherwise, such as a file."""
        if urllib.parse.urlsplit(self.url).scheme not in ("http", "https"):
            raise PipelineError(f"value.registry {self.url!r} is no URL; write http://host:8081")

    def by_id(self, schema_id: int, *, serialized: bool = False) -> RegisteredSchema:
        """BadValue if the registry says that it has none with this id, PipelineError if it does not
        answer. `serialized` asks for Protobuf as a descriptor."""
        wanted = (schema_id, serialized)
        if wanted not in self._schemas:
            answer = self._get(f"/schemas/ids/{schema_id}", serialized)
            self._schemas[wanted] = (
                None if answer is None else self._with_references(answer, serialized)
            )
        known = self._schemas[wanted]
        if known is None:
            raise BadValue(f"the schema registry {self.name} has no schema {schema_id}")
        return known

    def latest(self, subject: str, *, serialized: bool = False) -> RegisteredSchema:
        """The newest version of a subject; PipelineError if there is none."""
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest"
        found = self._get(path, serialized)
        if found is None:
            raise PipelineError(
                f"the schema registry {self.name} has no subject {subject}:"
                " give value.schema, or register a schema first"
            )
        return self._with_references(found, serialized)

    @property
    def name(self) -> str:
        """The URL without user and password."""
        parts = urllib.parse.urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))

    def _with_references(self, answer: dict[str, Any], serialized: bool) -> RegisteredSchema:
        collected: dict[str, str] = {}
        self._collect(answer, serialized, collected)
        return RegisteredSchema(str(answer["schema"]), tuple(collected.items()))

    def _collect(self, answer: dict[str, Any], serialized: bool, collected: dict[str, str]) -> None:
        for reference in answer.get("references") or ():
            name = str(reference["name"])
            if name in collected:
                continue
            subject = urllib.parse.quote(str(reference["subject"]), safe="")
            found = self._get(f"/subjects/{subject}/versions/{reference['version']}", serialized)
            if found is None:
                raise PipelineError(
                    f"the schema registry {self.name} has lost version {reference['version']} of"
                    f" {reference['subject']}, to which another schema refers"
                )
            self._collect(found, serialized, collected)
            collected[name] = str(found["schema"])

    def _get(self, path: str, serialized: bool) -> dict[str, Any] | None:
        """The answer's object with a text `schema`, None for "not found"."""
        url = self.name + path + ("?format=serialized" if serialized else "")
        request = urllib.request.Request(url, headers={"Accept": _ACCEPT, **self._credentials()})
        failure = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S * attempt)
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                    answer = json.loads(response.read())
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404 and _is_not_found(error.read()):
                        return None
                failure = f"HTTP {error.code}"
                if error.code in (400, 401, 403, 404):
                    break
                continue
            except (OSError, ValueError, http.client.HTTPException) as error:
                failure = str(getattr(error, "reason", error))
                continue
            if isinstance(answer, dict) and isinstance(answer.get("schema"), str):
                return answer
            failure = "an answer without a schema"
        raise PipelineError(
            f"the schema registry {self.name} does not serve {path}: {failure};"
            " check value.registry, nothing of this step was written"
        )

    def _credentials(self) -> dict[str, str]:
        parts = urllib.parse.urlsplit(self.url)
        if parts.username is None:
            return {}
        user = (
            f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        )
        return {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()}


def _is_not_found(body: bytes) -> bool:
    """Whether a registry says it (error codes 40401 to 40403), not a proxy or another server."""
    try:
        answer = json.loads(body)
    except ValueError:
        return False
    code = answer.get("error_code") if isinstance(answer, dict) else None
    return code in (404, 40401, 40402, 40403)
