"""The server's configuration: one YAML file, read once; environment variables override single values.

`RETICENT_LEDGER__PATH=/var/lib/ledger.db` overrides `ledger.path`, and so on: prefix `RETICENT_`, `__` between levels.
Relative paths are taken from the folder of the YAML file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from reticent.plugin.location import is_url, without_password
from reticent.rewards.address import require_loopback
from reticent.rewards.bounds import parse_bound
from reticent.rewards.errors import ProfileInvalid
from reticent.rewards.profile import ModelProfile
from reticent.rewards.scores.registry import ScoreModels

__all__ = [
    "ROUTES",
    "BudgetSettings",
    "ConfigurationError",
    "PrivItpSettings",
    "RewardModelSettings",
    "RewardSettings",
    "SelectionSettings",
    "Settings",
    "TenantPolicy",
    "TenantSettings",
    "load_settings",
]

ROUTES = (
    "/v1/chat/completions",
    "/v1/models",
    "/v1/reticent/budget",
    "/v1/reticent/scopes",
    "/v1/reticent/certificate",
    "/health",
    "/ready",
    "/metrics",
)
"""Everything that the server answers."""

RuleName = Literal["privbon", "privitp", "bon", "itp"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, lt=1)]
ScopeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class ConfigurationError(ValueError):
    """The configuration cannot be used; the message names the file, the field and what is wrong with it."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BudgetSettings(_Section):
    """A lifetime guarantee: the scope's answers together are (epsilon, delta)-private."""

    epsilon: Positive
    delta: Probability = 1e-6


class DatasetSettings(BudgetSettings):
    """The protected data set D. `order` is the Rényi order α of its ledger, fixed for its life."""

    id: ScopeName
    order: Annotated[float, Field(gt=1, allow_inf_nan=False)]
    guarantee: Literal["dp", "probabilistic"] = "dp"


class ModelSettings(_Section):
    """The base model. `revision` goes into fingerprints: a commit or a hash of the weights, stated by the operator."""

    name: str
    revision: str = "unspecified"
    upstreams: tuple[str, ...] = ()
    upstream_key: str | None = Field(default=None, repr=False)


class ServerSettings(_Section):
    """Address and limits."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    max_body_bytes: Annotated[int, Field(gt=0)] = 1_000_000
    max_messages: Annotated[int, Field(gt=0)] = 100
    max_concurrent: Annotated[int, Field(gt=0)] = 64
    max_concurrent_per_tenant: Annotated[int, Field(gt=0)] | None = None
    request_seconds: Positive = 120.0
    open_routes: tuple[str, ...] = ()
    metrics: Literal["open", "operator"] = "operator"

    @property
    def local_url(self) -> str:
        """The server's address as this machine reaches it, without a slash at the end."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104 - read, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def most_of_one_tenant(self) -> int:
        """Open requests that one tenant may have: half of all, unless configured, so that none shuts out the others."""
        return self.max_concurrent_per_tenant or max(1, self.max_concurrent // 2)

    @field_validator("open_routes")
    @classmethod
    def _not_our_own(cls, routes: tuple[str, ...]) -> tuple[str, ...]:
        for route in routes:
            if not route.startswith("/") or route in ROUTES:
                raise ValueError("must be vLLM's routes, not those that reticent answers itself")
        return routes


class LedgerSettings(_Section):
    """Where the ledger lives, a file or a PostgreSQL database, and how long a reservation may stay open."""

    path: Path | None = None
    url: SecretStr | None = None
    lease_seconds: Positive = 300.0
    keep_answers_seconds: Annotated[float, Field(gt=0, le=2_592_000)] = 86_400.0
    """How long an answer is kept for who sends its request again with the same idempotency key; at most 30 days."""

    @property
    def location(self) -> str:
        """Path or URL, as `open_ledger` takes it. It may hold a password: for messages there is `name`."""
        return self.url.get_secret_value() if self.url is not None else str(self.path)

    @property
    def name(self) -> str:
        """Path, or URL without a password."""
        return without_password(self.location)

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not is_url(url.get_secret_value()):
            raise ValueError("must begin with postgresql://")
        return url

    @model_validator(mode="after")
    def _is_in_one_place(self) -> LedgerSettings:
        if (self.path is None) == (self.url is None):
            raise ValueError("needs path or url, and not both")
        return self


class RewardModelSettings(_Section):
    """A reward model that is no certified head. Its fields are those of `ModelProfile`; R is `reward_max`."""

    backend: Literal["transformers", "vllm", "http"]
    name: str
    revision: str
    bound: str
    reward_max: Positive = 1.0
    max_length: Annotated[int, Field(ge=1)]
    folder: Path | None = None
    url: str | None = None
    key_file: Path | None = None
    template: str = "chat"
    long_input: Literal["truncate-prompt", "zero"] = "truncate-prompt"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    route: Literal["classify", "pooling"] = "classify"
    device: str = "cpu"
    batch_tokens: Annotated[int, Field(ge=1)] = 8192
    timeout_seconds: Positive = 20.0
    retries: Annotated[int, Field(ge=0, le=5)] = 1

    def profile(self) -> ModelProfile:
        """What worker and server know of the model. Errors: `ProfileInvalid`, `UnsafeAddress`."""
        fields = self.model_dump(exclude={"bound", "reward_max"})
        try:
            bound = parse_bound(self.bound, self.reward_max)
        except ValueError as error:
            raise ProfileInvalid(str(error)) from None
        return ModelProfile(**fields, bound=bound)

    @model_validator(mode="after")
    def _is_a_profile(self) -> RewardModelSettings:
        self.profile()
        return self


class RewardSettings(_Section):
    """The reward worker and its model: a certified `head`, or another `model`.

    Δ is read from the head's certificate, or is R (`range`), or is declared with a reason. Of a `model` nothing is
    certified.
    """

    head: Path | None = None
    model: RewardModelSettings | None = None
    socket: Path | None = None
    host: str | None = None
    port: Annotated[int, Field(ge=1, le=65535)] = 8991
    secret_file: Path
    managed: bool = True
    sensitivity: Literal["certified", "range", "declared"] = "certified"
    declared_sensitivity: Positive | None = None
    declared_reason: str | None = None
    timeout_seconds: Positive = 30.0
    threads: Annotated[int, Field(ge=1)] = 2

    @model_validator(mode="after")
    def _declared_has_a_reason(self) -> RewardSettings:
        if self.sensitivity == "declared" and not (self.declared_sensitivity and self.declared_reason):
            raise ValueError("sensitivity: declared needs declared_sensitivity and declared_reason")
        return self

    @model_validator(mode="after")
    def _is_one_model_in_one_place(self) -> RewardSettings:
        if (self.head is None) == (self.model is None):
            raise ValueError("needs head or model, and not both")
        if self.model is not None and self.sensitivity == "certified":
            raise ValueError("no sensitivity of a model is certified: set sensitivity to range, or declare it")
        if (self.socket is None) == (self.host is None):
            raise ValueError("needs socket or host, and not both")
        if self.host is not None:
            require_loopback(self.host)
            if self.managed:
                raise ValueError("a worker at a host is started by `reticent rewards serve`: set managed to false")
        return self


class PrivItpSettings(_Section):
    """PrivITP's parameters (privacy.md, symbols): β, σ_X, σ_Z, L in reward units; how its phase 2 is charged.

    `accounting` changes what an answer costs, never which answer is given (privacy.md, section 5).
    """

    regularization: Positive
    threshold_noise: Positive
    reward_noise: Positive
    truncation: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    accounting: Literal["renyi", "ville"] = "renyi"
    chunk: Annotated[int, Field(ge=1)] = 8


class SelectionSettings(_Section):
    """Rules and their parameters. A client may lower `candidates` and choose a rule, never a noise scale."""

    rule: RuleName = "privbon"
    candidates: Annotated[int, Field(ge=1)] = 8
    max_candidates: Annotated[int, Field(ge=1, le=4096)] = 16
    max_choices: Annotated[int, Field(ge=1, le=128)] = 8
    """Most independent selections that one request may ask for (`n`); each is drawn, scored and charged."""
    noise_scale: Positive
    privitp: PrivItpSettings

    @model_validator(mode="after")
    def _within_maximum(self) -> SelectionSettings:
        if self.candidates > self.max_candidates:
            raise ValueError("candidates exceeds max_candidates")
        return self


class SamplingSettings(_Section):
    """Sampling defaults, and the most tokens that one candidate may have."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 0.7
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: Annotated[int, Field(ge=1)] = 256
    max_tokens_limit: Annotated[int, Field(ge=1)] = 1024

    @model_validator(mode="after")
    def _within_limit(self) -> SamplingSettings:
        if self.max_tokens > self.max_tokens_limit:
            raise ValueError("max_tokens exceeds max_tokens_limit")
        return self


class PromptSettings(_Section):
    """How evidence is rendered into the last user message; `{evidence}` and `{question}` are replaced."""

    evidence_template: str = "{evidence}\n\n{question}"
    evidence_separator: str = "\n"
    no_evidence: str = ""

    @model_validator(mode="after")
    def _has_both_places(self) -> PromptSettings:
        for place in ("{evidence}", "{question}"):
            if self.evidence_template.count(place) != 1:
                raise ValueError(f"evidence_template must contain {place} exactly once")
        return self


class ScoreModelSettings(_Section):
    """Folders of models that the gate's score needs. Where they stand is in no fingerprint; what is in them is."""

    entailment: Path | None = None
    causal: Path | None = None
    embedder: Path | None = None

    @property
    def folders(self) -> ScoreModels:
        """As scores take them."""
        return ScoreModels(self.entailment, self.causal, self.embedder)


class VerifierSettings(_Section):
    """The service that an `external` score asks. It must not depend on D, and sees answers before they are released."""

    url: Annotated[str, Field(pattern=r"^https?://")]
    timeout_seconds: Positive = 10.0


class GateSettings(_Section):
    """The score that the gate reads, all its constants (null: its defaults), and the certificates it may rely on."""

    score: str = "self_consistency"
    score_constants: dict[str, Any] | None = None
    score_models: ScoreModelSettings = ScoreModelSettings()
    verifier: VerifierSettings | None = None
    certificates: tuple[Path, ...] = ()
    reload_seconds: Annotated[float, Field(ge=0.05, le=3600)] = 5.0
    """How often the running server looks whether these files have changed."""


class TenantPolicy(_Section):
    """What a tenant may ask for and what it gets when its answers are not certified or its budget is spent."""

    rules: tuple[RuleName, ...] = ("privbon", "privitp")
    allow_nonprivate: bool = False
    on_exhausted: Literal["base", "refuse"] = "refuse"
    gate: Literal["abstain", "observe"] = "abstain"
    max_candidates: Annotated[int, Field(ge=1)] | None = None
    max_choices: Annotated[int, Field(ge=1)] | None = None
    subgroups: tuple[ScopeName, ...] = ()
    """Registered subgroups that this tenant's requests belong to. With one, all do; with several, each names its own;
    with none, no request belongs to any."""


class TenantSettings(_Section):
    """A tenant: its keys (SHA-256, never the key), its lifetime budget, the budget of each of its users, its policy."""

    id: ScopeName
    key_sha256: Annotated[tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], ...], Field(min_length=1)]
    budget: BudgetSettings
    user_budget: BudgetSettings
    max_users: Annotated[int, Field(ge=1)] = 10_000
    policy: TenantPolicy = TenantPolicy()


class Settings(BaseSettings):
    """The whole configuration."""

    model_config = SettingsConfigDict(
        env_prefix="RETICENT_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    model: ModelSettings
    server: ServerSettings = ServerSettings()
    dataset: DatasetSettings
    ledger: LedgerSettings
    rewards: RewardSettings
    selection: SelectionSettings
    sampling: SamplingSettings = SamplingSettings()
    prompt: PromptSettings = PromptSettings()
    gate: GateSettings = GateSettings()
    tenants: tuple[TenantSettings, ...] = ()
    tenants_file: Path | None = None
    operator_key_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment first, then the file (which `load_settings` passes as arguments)."""
        return env_settings, init_settings


def load_settings(path: Path) -> Settings:
    """Read and check a configuration file.

    Raises:
        ConfigurationError: unreadable, not YAML, unknown, wrong or repeated fields, tenants named twice. Values are not
            repeated in the message, because a mistyped key must not end in a log.
    """
    document = _read_mapping(path)
    tenants_file = os.environ.get("RETICENT_TENANTS_FILE") or document.get("tenants_file")
    if isinstance(tenants_file, str):
        _add_tenants(document, path.parent / tenants_file)
    try:
        settings = Settings(**document)
    except ValidationError as error:
        lines = [f"  {'.'.join(str(p) for p in e['loc']) or '(file)'}: {e['msg']}" for e in error.errors()]
        raise ConfigurationError(f"{path}: the configuration is wrong:\n" + "\n".join(lines)) from None
    except SettingsError:
        # Its text and its cause may hold the value of an environment variable.
        raise ConfigurationError(f"{path}: a RETICENT_ environment variable is not of the form it must have") from None
    seen: set[str] = set()
    for tenant in settings.tenants:
        for name in (tenant.id, *tenant.key_sha256):
            if name in seen:
                raise ConfigurationError(f"{path}: tenant {tenant.id}: its name or a key stands there twice")
            seen.add(name)
    return _resolve_paths(settings, path.parent.resolve())


def _add_tenants(document: dict[str, Any], path: Path) -> None:
    """Put the tenants and the operator's key of another file into the document."""
    more = _read_mapping(path)
    if unknown := sorted(more.keys() - {"tenants", "operator_key_sha256"}):
        raise ConfigurationError(f"{path}: only tenants and operator_key_sha256 may stand here, not {unknown}")
    lists = [document.get("tenants") or [], more.get("tenants") or []]
    if not all(isinstance(tenants, list) for tenants in lists):
        raise ConfigurationError(f"{path}: tenants must be a list")
    document["tenants"] = [tenant for tenants in lists for tenant in tenants]
    if "operator_key_sha256" in more:
        document.setdefault("operator_key_sha256", more["operator_key_sha256"])


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader, but a key that stands twice is an error: the first one would be lost in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """See `yaml.SafeLoader`."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len(keys) != len({repr(key) for key in keys}):
            raise yaml.constructor.ConstructorError(None, None, "a key stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)  # noqa: S506 - a safe loader
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.constructor.ConstructorError as error:
        # Not every text of these is free of values; the place is enough to find it.
        where = f", near line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigurationError(f"{path}{where}: a key stands twice, or a value is of no plain type") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ConfigurationError(f"{path}: is not YAML") from None
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigurationError(f"{path}: must be a mapping of sections")
    return document


def _resolve_paths(settings: Settings, folder: Path) -> Settings:
    """The settings with every path that stands in a section relative to `folder`."""
    sections = {name: getattr(settings, name) for name in type(settings).model_fields}
    found = {name: _below(section, folder) for name, section in sections.items() if isinstance(section, _Section)}
    return settings.model_copy(update=found)


def _below(value: Any, folder: Path) -> Any:
    if isinstance(value, Path):
        return folder / value
    if isinstance(value, tuple):
        return tuple(_below(item, folder) for item in value)
    if isinstance(value, _Section):
        found = {name: _below(getattr(value, name), folder) for name in type(value).model_fields}
        return value.model_copy(update=found)
    return value
