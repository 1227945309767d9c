"""CBOR, the registry of message types, and the errors of decoding."""

from callboard.basp.cbor.collisions import check_hashes as check_hashes
from callboard.basp.cbor.pieces import CONTAINER as CONTAINER
from callboard.basp.cbor.pieces import check_weight as check_weight
from callboard.basp.cbor.plain import is_natural as is_natural
from callboard.basp.cbor.reader import CborReader as CborReader
from callboard.basp.cbor.reader import RunsUserCode as RunsUserCode
from callboard.basp.cbor.reader import bad_content as bad_content
from callboard.basp.cbor.reader import read_as as read_as
from callboard.basp.cbor.writer import encode_int as encode_int
from callboard.basp.cbor.writer import encode_text as encode_text
from callboard.basp.cbor.writer import head as head
from callboard.basp.errors import *  # noqa: F403 - all of them may reach a package
from callboard.basp.payload import PayloadCodec as PayloadCodec
from callboard.basp.plain_types import PlainRegistry as PlainRegistry
from callboard.basp.registry import DEFAULT_REGISTRY as DEFAULT_REGISTRY
from callboard.basp.registry import MessageRegistry as MessageRegistry
from callboard.basp.registry import MessageType as MessageType
from callboard.basp.registry import NoteDropped as NoteDropped
from callboard.basp.registry import RecordType as RecordType
