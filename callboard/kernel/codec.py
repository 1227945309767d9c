"""The registry of message types, and the codec of payloads."""

from callboard.basp.payload import PayloadCodec as PayloadCodec
from callboard.basp.plain_types import PlainRegistry as PlainRegistry
from callboard.basp.registry import DEFAULT_REGISTRY as DEFAULT_REGISTRY
from callboard.basp.registry import MessageRegistry as MessageRegistry
from callboard.basp.registry import MessageType as MessageType
from callboard.basp.registry import NoteDropped as NoteDropped
from callboard.basp.registry import RecordType as RecordType
