"""The base of every section of the configuration, and the types of its fields."""

from collections.abc import Sequence
from typing import Annotated, Any, Self, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Seconds = PositiveFloat
Name = Annotated[str, Field(min_length=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]


def check_address(url: str) -> str:
    """Return a server's address. Raises ValueError, which does not repeat it, for others, and for
    one with a user or password: records and messages show addresses."""
    scheme, _, rest = url.partition("://")
    if "@" in rest or "@" in url.partition("/")[0]:
        raise ValueError(
            "a user or password in an address would stand in records and messages; leave them out, "
            "and give the server's key as api_key"
        )
    try:
        parts = urlsplit(url)
        is_one = bool(parts.hostname and parts.hostname.encode("idna")) and parts.port != 0
    except ValueError:  # a host or a port that cannot be
        is_one = False
    if scheme not in ("http", "https") or not is_one or not rest.isprintable() or " " in rest:
        raise ValueError("not the address of a server, such as http://localhost:8000/v1")
    return url


Address = Annotated[str, AfterValidator(check_address)]


class Section(BaseModel):
    """Base of every section: frozen, and unknown keys are mistakes."""

    # A name that looks like a number (run.name=2024) is still a name.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
        use_attribute_docstrings=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _check_no_boolean(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and bool not in (annotation, *get_args(annotation)):
            raise ValueError("this is not a key for true or false")
        return value


class Concurrency(Section):
    """Bounds on the requests in flight of a run; its processes have equal shares."""

    max_concurrency_per_server: Positive = 64
    """Most requests of a run in flight at each server; halved at 429, 503 and timeouts,
    regained while replies come in time."""
    max_concurrency: Positive | None = None
    """The same over all servers."""
    _processes: int = PrivateAttr(default=1)

    @model_validator(mode="before")
    @classmethod
    def _fill_from_total(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("max_concurrency") is not None:
            return {"max_concurrency_per_server": data["max_concurrency"], **data}
        return data

    def shared_by(self, processes: int) -> Self:
        """Return the section for one of so many processes that ask the same servers."""
        found = self.model_copy()
        found._processes = processes
        return found

    def in_flight(self, servers: int) -> int:
        """Return the most requests of this process in flight at so many servers, at least 1."""
        most = max(1, self.max_concurrency_per_server // self._processes) * servers
        total = self.max_concurrency
        return min(most, max(1, total // self._processes) if total else most)


class ServersSection(Concurrency):
    """vLLM servers of one model, asked by token ids."""

    base_urls: tuple[str, ...] = ()
    """Addresses up to and with `/v1`, one per server process."""
    api_key: str = Field(default="sk-none", exclude=True)  # kept out of config.json
    """Key of all servers; better `${NAME}`."""
    no_proxy: str | None = None
    """Hosts reached without the proxy."""
    max_concurrency_per_server: Positive = 256
    """See `llm.max_concurrency_per_server`."""
    request_seconds: Seconds = 600.0
    """Timeout of an attempt."""
    attempts: Positive = 5
    """Attempts per request."""
    backoff_seconds: Seconds = 0.5
    """First pause between attempts; doubles."""
    wait_seconds: NonNegativeFloat = 600.0
    """Seconds a request waits for a usable server before it is given up."""

    @field_validator("base_urls")
    @classmethod
    def _check_addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        found = tuple(check_address(url).rstrip("/") for url in urls)
        if len({*found}) < len(found):
            raise ValueError(f"different URLs such as http://localhost:8003/v1, not {list(found)}")
        return found


def check_files_are_read(
    data: str, train_files: Sequence[object], val_files: Sequence[object]
) -> None:
    """Check a section whose rows come from files or follow a known rule. Raises ValueError for
    missing files, and for files that are not read."""
    if data == "files" and not train_files:
        raise ValueError("train_files: name the files to train on, or set data to known_rule")
    if data == "known_rule" and (train_files or val_files):
        raise ValueError("data: known_rule does not read train_files or val_files; set files")
