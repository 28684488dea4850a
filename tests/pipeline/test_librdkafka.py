"""Java's client options against librdkafka itself: it must take what we make of them."""

import pytest
from confluent_kafka import KafkaError, Producer

from odradek.node.embedded import EmbeddedBroker
from odradek.node.secured_broker import SecuredBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.librdkafka import (
    RENAMED,
    TAKEN,
    ClientErrors,
    client_properties,
    jaas_options,
    open_client,
)

SERVERS = "127.0.0.1:1"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
SASL = {"security.protocol": "SASL_PLAINTEXT"}


def properties_of(**options: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return client_properties(named, bootstrap_servers=SERVERS)


def refusal_of(options: dict[str, str]) -> str:
    with pytest.raises(PipelineError) as refused:
        client_properties(options, bootstrap_servers=SERVERS)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_without_options_it_is_a_silent_client_without_security() -> None:
    assert properties_of() == {
        "bootstrap.servers": SERVERS,
        "client.id": "odradek-pipeline",
        "log_level": "0",
        "metadata.recovery.strategy": "none",
        "security.protocol": "PLAINTEXT",
    }


def test_a_client_id_and_tuning_of_java_are_kept() -> None:
    made = properties_of(client_id="job", linger_ms="7", max_request_size="2000000")
    assert made["client.id"] == "job"
    assert made["linger.ms"] == "7"
    assert made["message.max.bytes"] == "2000000"


def test_what_only_a_java_consumer_needs_has_no_effect() -> None:
    assert properties_of(max_poll_records="5", fetch_max_bytes="1") == properties_of()


def test_an_unknown_option_is_refused_by_name_and_without_its_value() -> None:
    text = refusal_of({"sasl.pasword": "secret"})
    assert text == (
        "kafka.sasl.pasword is not an option of this pipeline: correct its name, or remove it"
    )


def test_no_bootstrap_servers_is_one_clear_line() -> None:
    with pytest.raises(PipelineError, match=r"kafka\.bootstrap\.servers is not set"):
        client_properties({}, bootstrap_servers=" ")


def test_a_misspelt_protocol_is_not_plaintext() -> None:
    assert "must be one of PLAINTEXT, SSL" in refusal_of({"security.protocol": "SASL"})


@pytest.mark.parametrize(
    ("mechanism", "module"), [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM), ("SCRAM-SHA-512", SCRAM)]
)
def test_user_and_password_come_out_of_the_jaas_configuration(mechanism: str, module: str) -> None:
    jaas = f'{module} username="alice" password="a \\"b\\"; c=d";'
    made = properties_of(
        security_protocol="SASL_SSL", sasl_mechanism=mechanism, sasl_jaas_config=jaas
    )
    assert made["sasl.mechanism"] == mechanism
    assert made["sasl.username"] == "alice"
    assert made["sasl.password"] == 'a "b"; c=d'


def test_a_jaas_configuration_may_have_line_breaks_and_single_quotes() -> None:
    module, login = jaas_options(f"{PLAIN}\n  username='alice'\n  password=secret;\n")
    assert module.endswith("PlainLoginModule")
    assert login == {"username": "alice", "password": "secret"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "GSSAPI is not supported: set one of PLAIN"),
        ({"sasl.mechanism": "GSSAPI"}, "must be one of PLAIN, SCRAM-SHA-256"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": "nothing"}, "cannot be read: write it as"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{PLAIN} username=a;"}, "no password"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{BEARER};"}, "needs PlainLoginModule"),
        (
            {
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": f"{SCRAM} username=a password=b tokenauth=true;",
            },
            "delegation tokens are not supported",
        ),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": f"{PLAIN};"}, "needs OAuthBearer"),
    ],
)
def test_impossible_logins_are_told(options: dict[str, str], said: str) -> None:
    assert said in refusal_of({**SASL, **options})


def test_oauthbearer_with_a_token_endpoint_is_oidc() -> None:
    made = properties_of(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=f'{BEARER} clientId="me" clientSecret="secret" scope="kafka";',
        sasl_oauthbearer_token_endpoint_url="https://127.0.0.1:1/token",
    )
    assert made["sasl.oauthbearer.method"] == "oidc"
    assert made["sasl.oauthbearer.client.id"] == "me"
    assert made["sasl.oauthbearer.client.secret"] == "secret"
    assert made["sasl.oauthbearer.scope"] == "kafka"
    open_client(Producer, made)


def test_oauthbearer_without_signature_is_for_development() -> None:
    made = properties_of(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=f'{BEARER} unsecuredLoginStringClaim_sub="alice";',
    )
    assert made["sasl.oauthbearer.config"] == "principal=alice"
    open_client(Producer, made)


def test_stores_in_pem_are_files_of_certificates_and_a_key() -> None:
    made = properties_of(
        security_protocol="SSL",
        ssl_truststore_location="/etc/kafka/ca.pem",
        ssl_truststore_type="PEM",
        ssl_keystore_location="/etc/kafka/client.pem",
        ssl_keystore_type="PEM",
        ssl_key_password="secret",
        ssl_endpoint_identification_algorithm="",
    )
    assert made["ssl.ca.location"] == "/etc/kafka/ca.pem"
    assert made["ssl.certificate.location"] == made["ssl.key.location"] == "/etc/kafka/client.pem"
    assert made["ssl.key.password"] == "secret"
    assert made["ssl.endpoint.identification.algorithm"] == "none"


def test_a_keystore_in_pkcs12_is_taken_as_it_is() -> None:
    made = properties_of(
        security_protocol="SSL", ssl_keystore_location="client.p12", ssl_keystore_password="secret"
    )
    assert made["ssl.keystore.location"] == "client.p12"
    assert made["ssl.keystore.password"] == "secret"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ssl.truststore.location": "ca.jks"}, "export the certificates with `keytool"),
        (
            {"ssl.truststore.location": "ca", "ssl.truststore.type": "pkcs12"},
            "ssl.truststore.location is PKCS12, which librdkafka cannot read",
        ),
        ({"ssl.keystore.location": "me.keystore"}, "-deststoretype PKCS12"),
        ({"ssl.keystore.location": "me.pem", "ssl.keystore.type": "JKS"}, "is JKS, which"),
    ],
)
def test_stores_of_java_are_refused_with_the_way_out(options: dict[str, str], said: str) -> None:
    assert said in refusal_of({"security.protocol": "SSL", **options})


def test_librdkafka_knows_every_name_that_is_passed_on() -> None:
    unknown = []
    for name in sorted(TAKEN | set(RENAMED.values())):
        try:
            open_client(Producer, {"log_level": 0, name: "no value at all"})
        except PipelineError as error:
            if "No such configuration property" in str(error):
                unknown.append(name)
    assert unknown == []


def test_a_value_that_librdkafka_refuses_is_one_clear_line() -> None:
    with pytest.raises(PipelineError, match=r"refuses its options: .*compression\.codec"):
        open_client(Producer, properties_of(compression_type="much"))


def test_reported_errors_are_kept_once_and_without_the_summary() -> None:
    errors = ClientErrors()
    assert errors.explain() == ""
    for _ in range(2):
        errors(KafkaError(KafkaError._TRANSPORT, "connection refused"))
        errors(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert errors.texts == ["connection refused"]
    assert errors.explain() == " (connection refused)"


def test_a_node_takes_a_client_without_security(kafka_broker: EmbeddedBroker) -> None:
    made = client_properties({}, bootstrap_servers=kafka_broker.bootstrap_servers)
    assert open_client(Producer, made).list_topics(timeout=30).brokers


@pytest.mark.parametrize(
    ("mechanism", "module"), [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM), ("SCRAM-SHA-512", SCRAM)]
)
def test_a_node_takes_the_user_of_a_jaas_configuration(
    kafka_broker_secured: SecuredBroker, mechanism: str, module: str
) -> None:
    made = client_properties(
        {
            **SASL,
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{module} username="{kafka_broker_secured.user}"'
            f' password="{kafka_broker_secured.password}";',
        },
        bootstrap_servers=kafka_broker_secured.bootstrap_servers,
    )
    assert open_client(Producer, made).list_topics(timeout=30).brokers
