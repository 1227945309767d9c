"""Secrets, permissions and rights of peers."""

from callboard.proxies.rights.permissions import LinkAccess as LinkAccess
from callboard.proxies.rights.permissions import Secrets as Secrets
from callboard.proxies.rights.rights import CORE_NAME as CORE_NAME
from callboard.proxies.rights.rights import MASTER_NAME as MASTER_NAME
from callboard.proxies.rights.rights import NAMED as NAMED
from callboard.proxies.rights.rights import TOPICS as TOPICS
from callboard.proxies.rights.rights import Level as Level
from callboard.proxies.rights.rights import NamedRight as NamedRight
from callboard.proxies.rights.rights import Rights as Rights
