"""Kafka's client options as the Java clients have them, turned into librdkafka's.

Whoever changes from the stock connector keeps the options, so each is either taken over, known to
be without effect here, or refused with what to write instead. The names are Kafka's, without the
`kafka.` that Spark's options begin with. Values are never shown: some are passwords. librdkafka
logs nothing (`log_level` 0); ClientErrors keeps what it reports.
"""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from odradek.pipeline.errors import PipelineError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

TAKEN: Final = frozenset(
    {
        "acks",
        "allow.auto.create.topics",
        "api.version.request",
        "batch.size",
        "broker.address.family",
        "broker.address.ttl",
        "check.crcs",
        "client.id",
        "client.rack",
        "compression.level",
        "compression.type",
        "connections.max.idle.ms",
        "delivery.timeout.ms",
        "enable.metrics.push",
        "enable.ssl.certificate.verification",
        "linger.ms",
        "max.in.flight.requests.per.connection",
        "message.max.bytes",
        "metadata.max.age.ms",
        "partitioner",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.password",
        "sasl.username",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.timeout.ms",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.cipher.suites",
        "ssl.crl.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.key.pem",
        "transaction.timeout.ms",
    }
)
"""Options that librdkafka has under the same name."""

RENAMED: Final[Mapping[str, str]] = {
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}

WITHOUT_EFFECT: Final = frozenset(
    {
        # Of fetches and groups, which are not librdkafka's here.
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "default.api.timeout.ms",
        "enable.auto.commit",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "isolation.level",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "session.timeout.ms",
        # How a Java client would wait or be put together.
        "buffer.memory",
        "client.dns.lookup",
        "key.serializer",
        "max.block.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "sasl.login.callback.handler.class",
        "socket.connection.setup.timeout.max.ms",
        "value.serializer",
        # Of the JVM's TLS. OpenSSL agrees on TLS 1.3 or 1.2 with the cluster.
        "ssl.enabled.protocols",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        # Passwords of stores in PEM, which have none.
        "ssl.truststore.password",
    }
)

_REPLACEMENTS: Final[Mapping[str, str]] = {
    "sasl.kerberos.service.name": "Kerberos is not supported: use SCRAM, OAUTHBEARER or TLS",
    "sasl.client.callback.handler.class": "remove it: Java classes cannot be used here",
    "sasl.login.class": "remove it: Java classes cannot be used here",
    "ssl.engine.factory.class": "remove it: Java classes cannot be used here",
    "interceptor.classes": "remove it: Java classes cannot be used here",
    "partitioner.class": "remove it, or name librdkafka's `partitioner`",
    "transactional.id": "remove it: set the option transactionalIdPrefix",
    "enable.idempotence": "remove it: the sink is always transactional",
}

_JAAS: Final = re.compile(
    r"\s*(\S+)\s+(?:required|requisite|sufficient|optional)\b\s*(.*?);?\s*$", re.DOTALL
)
_JAAS_OPTION: Final = re.compile(
    r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;"']+))"""
)

PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""Why a record was not delivered: none of its own, its transaction or its producer has ended."""

Client = TypeVar("Client")


def client_properties(options: Mapping[str, str], *, bootstrap_servers: str) -> dict[str, str]:
    """The configuration of a producer, consumer or AdminClient of confluent-kafka.

    PipelineError for an option that is unknown or impossible, in words that say what to write.
    """
    if not bootstrap_servers.strip():
        raise PipelineError("kafka.bootstrap.servers is not set: name at least one HOST:PORT")
    properties = {
        "bootstrap.servers": bootstrap_servers,
        "client.id": "odradek-pipeline",
        "log_level": "0",
        # By default, when all brokers are gone, it forgets those that it has learned. A group's
        # coordinator that it forgot so is asked nothing any more when it is back, and a transaction
        # with offsets waits for ever (librdkafka's issue 5511).
        "metadata.recovery.strategy": "none",
    }
    left = {name: value for name, value in options.items() if name != "bootstrap.servers"}
    _take_protocol(left, properties)
    _take_mechanism(left, properties)
    _take_truststore(left, properties)
    _take_keystore(left, properties)
    for name, value in left.items():
        if name in TAKEN:
            properties[name] = value
        elif name in RENAMED:
            properties[RENAMED[name]] = value
        elif name not in WITHOUT_EFFECT:
            advice = _REPLACEMENTS.get(name, "correct its name, or remove it")
            raise PipelineError(f"kafka.{name} is not an option of this pipeline: {advice}")
    return properties


class ClientErrors:
    """What a client of librdkafka reports meanwhile: its `error_cb`.

    librdkafka retries for ever and tells the reason only here: a refused connection, a certificate
    that it does not trust.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        """Without repetitions, the first ones first."""

    def __call__(self, error: KafkaError) -> None:
        """Note an error; the code "all brokers are down" is none by itself."""
        text = error.str()
        is_summary = error.code() == KafkaError._ALL_BROKERS_DOWN
        if not is_summary and text not in self.texts:
            self.texts.append(text)

    def explain(self) -> str:
        """` (reason)` with the first reported error; empty without one."""
        return f" ({self.texts[0]})" if self.texts else ""


_SILENT: Final = logging.Logger("librdkafka", logging.CRITICAL + 1)


def open_client(kind: Callable[..., Client], properties: Mapping[str, object]) -> Client:
    """A client of confluent-kafka; PipelineError if librdkafka does not take a property's value.

    It logs nothing: `log_level` 0 alone leaves fatal errors, which are raised as well.
    """
    try:
        return kind({"logger": _SILENT, **properties})
    except KafkaException as error:
        raise PipelineError(f"Kafka's client refuses its options: {reason_of(error)}") from error


def cause_of(error: KafkaException, producer: Producer) -> KafkaException:
    """The error itself, or what made the producer unusable if `produce` only says that it is."""
    if error.args[0].code() != KafkaError._FATAL:
        return error
    try:
        producer.poll(0)
    except KafkaException as cause:
        return cause
    return error


def wait_for_queue(producer: Producer, produce: Callable[[], None]) -> None:
    """Call `produce` until the producer's queue has room. A KafkaException is the cause."""
    try:
        while True:
            try:
                produce()
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    except KafkaException as error:
        raise cause_of(error, producer) from None


def reason_of(error: KafkaException) -> str:
    """The exception's text without its representation as an object."""
    inner = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner)


def _take_protocol(options: dict[str, str], properties: dict[str, str]) -> None:
    protocol = options.pop("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise PipelineError(f"kafka.security.protocol must be one of {', '.join(PROTOCOLS)}")
    properties["security.protocol"] = protocol
    algorithm = options.pop("ssl.endpoint.identification.algorithm", None)
    if algorithm is not None:
        # Java's empty text is librdkafka's "none".
        properties["ssl.endpoint.identification.algorithm"] = algorithm.lower() or "none"


def _take_mechanism(options: dict[str, str], properties: dict[str, str]) -> None:
    mechanism = options.pop("sasl.mechanism", options.pop("sasl.mechanisms", None))
    jaas = options.pop("sasl.jaas.config", None)
    endpoint = options.pop("sasl.oauthbearer.token.endpoint.url", None)
    if not properties["security.protocol"].startswith("SASL_"):
        return
    if mechanism is None:
        raise PipelineError(
            "kafka.sasl.mechanism is not set, and Kafka's default GSSAPI is not supported:"
            f" set one of {', '.join(MECHANISMS)}"
        )
    if mechanism.upper() not in MECHANISMS:
        raise PipelineError(f"kafka.sasl.mechanism must be one of {', '.join(MECHANISMS)}")
    properties["sasl.mechanism"] = mechanism.upper()
    if endpoint is not None:
        properties["sasl.oauthbearer.method"] = "oidc"
        properties["sasl.oauthbearer.token.endpoint.url"] = endpoint
    if jaas is not None:
        properties |= _login_of(mechanism.upper(), jaas)


def _login_of(mechanism: str, jaas: str) -> dict[str, str]:
    """The credentials of `module required key="value" ...;`."""
    module, login = jaas_options(jaas)
    if mechanism == "OAUTHBEARER":
        return _bearer_of(module, login)
    if not module.endswith((".PlainLoginModule", ".ScramLoginModule")):
        raise PipelineError(
            f"kafka.sasl.jaas.config names {module}: {mechanism} needs PlainLoginModule or"
            " ScramLoginModule"
        )
    if login.get("tokenauth") == "true":
        raise PipelineError(
            "kafka.sasl.jaas.config has tokenauth: delegation tokens are not supported by"
            " librdkafka, use a user of SCRAM"
        )
    missing = [name for name in ("username", "password") if name not in login]
    if missing:
        raise PipelineError(f'kafka.sasl.jaas.config has no {missing[0]}: add {missing[0]}="..."')
    return {"sasl.username": login["username"], "sasl.password": login["password"]}


def _bearer_of(module: str, login: Mapping[str, str]) -> dict[str, str]:
    if not module.endswith(".OAuthBearerLoginModule"):
        raise PipelineError(
            f"kafka.sasl.jaas.config names {module}: OAUTHBEARER needs OAuthBearerLoginModule"
        )
    subject = login.get("unsecuredLoginStringClaim_sub")
    if subject is not None:
        return {
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal={subject}",
        }
    names = {
        "clientId": "sasl.oauthbearer.client.id",
        "clientSecret": "sasl.oauthbearer.client.secret",
        "scope": "sasl.oauthbearer.scope",
    }
    return {names[key]: value for key, value in login.items() if key in names}


def jaas_options(jaas: str) -> tuple[str, dict[str, str]]:
    """Name of the login module, and its options, of Java's `sasl.jaas.config`."""
    match = _JAAS.match(jaas)
    if match is None:
        raise PipelineError(
            "kafka.sasl.jaas.config cannot be read: write it as"
            ' `org.apache.kafka.common.security.plain.PlainLoginModule required username="..."'
            ' password="...";`'
        )
    found = {}
    for option in _JAAS_OPTION.finditer(match[2]):
        name, doubly, singly, bare = option.groups()
        quoted = re.sub(r"\\(.)", r"\1", doubly) if doubly is not None else singly
        found[name] = quoted if quoted is not None else bare
    return match[1], found


def _take_truststore(options: dict[str, str], properties: dict[str, str]) -> None:
    location = options.pop("ssl.truststore.location", None)
    kind = _store_type(options.pop("ssl.truststore.type", None), location)
    if location is None:
        return
    if kind != "PEM":
        raise PipelineError(
            f"kafka.ssl.truststore.location is {kind}, which librdkafka cannot read: export the"
            " certificates with `keytool -exportcert -rfc` into a PEM file and set"
            " kafka.ssl.truststore.type to PEM"
        )
    properties["ssl.ca.location"] = location


def _take_keystore(options: dict[str, str], properties: dict[str, str]) -> None:
    location = options.pop("ssl.keystore.location", None)
    password = options.pop("ssl.keystore.password", None)
    kind = _store_type(options.pop("ssl.keystore.type", None), location)
    if location is None:
        return
    if kind == "PEM":
        # Java wants the key and its chain of certificates in one file; librdkafka takes it twice.
        properties["ssl.certificate.location"] = location
        properties["ssl.key.location"] = location
    elif kind == "PKCS12":
        properties["ssl.keystore.location"] = location
        if password is not None:
            properties["ssl.keystore.password"] = password
    else:
        raise PipelineError(
            f"kafka.ssl.keystore.location is {kind}, which librdkafka cannot read: convert it with"
            " `keytool -importkeystore -deststoretype PKCS12` and set kafka.ssl.keystore.type to"
            " PKCS12"
        )


def _store_type(named: str | None, location: str | None) -> str:
    """PEM, PKCS12 or JKS: as named, or else by the file's name."""
    if named is not None:
        return named.upper()
    ending = (location or "").lower().rpartition(".")[2]
    return {"jks": "JKS", "keystore": "JKS", "p12": "PKCS12", "pfx": "PKCS12"}.get(ending, "PEM")
