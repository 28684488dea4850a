"""The settings of a broker that say whether access control lists are in force, and for whom."""

from typing import Final

from odradek.cluster.metadata.config_definitions import ConfigScope, ConfigValue, satisfying
from odradek.cluster.metadata.config_schema import boolean, converted, settings, string
from odradek.cluster.metadata.image import ConfigResourceType

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_AUTHORIZER: Final = "odradek.node.router.authorizer"


def super_users_of(text: str) -> tuple[str, ...]:
    """The principals of a value of super.users."""
    return tuple(each.strip() for each in text.split(";") if each.strip())


def _are_principals(value: ConfigValue) -> bool:
    return all(
        kind and name
        for kind, _, name in (each.partition(":") for each in super_users_of(str(value)))
    )


@settings(ConfigResourceType.BROKER)
class AuthorizerSettings:
    """The keys of Kafka's StandardAuthorizer. To change them takes ALTER on the cluster, as to
    change ACLs: ALTER_CONFIGS alone would be enough to become a super user."""

    authorizer_class_name: str = string(
        "",
        f"{STANDARD_AUTHORIZER}: access control lists are in force, and who is allowed nothing may"
        " do nothing. Empty: every client may do everything.",
        enforced_by=_AUTHORIZER,
        validator=satisfying(
            f"There is one authorizer: {STANDARD_AUTHORIZER}. Leave it empty to have none.",
            lambda value: value in ("", STANDARD_AUTHORIZER),
        ),
    )
    super_users: tuple[str, ...] = converted(
        string(
            "",
            "The principals that may do everything, separated by semicolons: User:alice;User:bob."
            " Those of a node's own configuration are super users there whatever else is set.",
            enforced_by=_AUTHORIZER,
            validator=satisfying(
                "Must be principals as in User:name, separated by semicolons", _are_principals
            ),
        ),
        super_users_of,
    )
    allow_everyone_if_no_acl_is_found: bool = boolean(
        False,
        "Whether everybody may do everything with resources that no access control list is about.",
        enforced_by=_AUTHORIZER,
        name="allow.everyone.if.no.acl.found",
    )
    audit_log_path: str = string(
        "",
        "The file that gets a JSON line for each request that changes the cluster and for each that"
        " is denied; empty: none. To rotate it, move it away. It is taken from the node's own"
        " configuration only, when the node starts: whoever could set it while the node runs could"
        " stop the log, or have any file written.",
        enforced_by="odradek.node.router.process",
        scope=ConfigScope.READ_ONLY,
    )


ACCESS_CONTROL_KEYS: Final = frozenset(
    {"authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found"}
)
"""Those of these settings that change while a node runs."""
