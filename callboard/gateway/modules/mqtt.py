"""The module `mqtt`: a client of an MQTT server; needs paho-mqtt (extra `mqtt`)."""

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, Final

from pydantic import Field

from callboard.gateway.errors import ModuleFailed
from callboard.gateway.module import Module, ModuleArguments
from callboard.gateway.modules.record import filled
from callboard.gateway.wire.message import Message
from callboard.kernel.errors import MailboxFull
from callboard.support.seconds import LONGEST

#: Seconds that a message waits for a connection which broke.
PATIENCE: Final = 2.0


class MqttArguments(ModuleArguments):
    """Arguments of an MQTT module.

    Attributes:
        host: of the server.
        port: of the server.
        client_id: chosen by the server if it is empty.
        username: if the server wants one.
        password: if the server wants one.
        tls: encrypt the connection, and check the server's certificate.
        subscribe: filters whose messages are published in the gateway, with the property
            `topic`.
        publish: the topic that received messages go to; `{name}` stands for a property.
        qos: of subscriptions and messages.
        retain: let the server keep the last message.
        timeout: seconds that the first connection and each message may take.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=1883, ge=1, le=65535)
    client_id: str = ""
    username: str | None = None
    password: str | None = Field(default=None, repr=False)
    tls: bool = False
    subscribe: list[str] = []
    publish: str | None = None
    qos: int = Field(default=0, ge=0, le=2)
    retain: bool = False
    timeout: float = Field(default=10.0, gt=0, le=LONGEST, strict=False)


class MqttModule(Module):
    """Publishes to an MQTT server what it receives, and in the gateway what it subscribes to.

    A connection that is lost is made again, and the subscriptions with it.
    """

    Arguments = MqttArguments
    detached: ClassVar[bool] = True  # it waits for the server

    def create(self, args: Mapping[str, Any]) -> None:
        """Make a client that is not connected yet."""
        self._args = settings = MqttArguments.read(args)
        try:
            from paho.mqtt import client
        except ImportError as error:
            msg = "the module mqtt needs paho-mqtt; pip install 'callboard[mqtt]'"
            raise ModuleFailed(msg) from error
        self._client = client.Client(
            client.CallbackAPIVersion.VERSION2,
            client_id=settings.client_id,
            clean_session=not settings.client_id or None,
        )
        self._ready = threading.Event()
        #: Set while there is a connection.
        self._linked = threading.Event()
        self._refusal = ""
        #: A message that the server has not confirmed in time, and what the client says of it.
        self._unconfirmed: tuple[Message | None, Any] = (None, None)
        if settings.username is not None:
            self._client.username_pw_set(settings.username, settings.password)
        if settings.tls:
            self._client.tls_set()
        self._client.on_connect = self._connected
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = self._arrived
        self._client.on_disconnect = lambda *_: self._linked.clear()

    def start(self) -> None:
        """Connect and subscribe."""
        settings = self._args
        self._client.connect(settings.host, settings.port)
        self._client.loop_start()
        if not self._ready.wait(settings.timeout) or self._refusal:
            self._client.loop_stop()
            why = self._refusal or f"no answer in {settings.timeout:g} s"
            msg = f"{settings.host}:{settings.port} does not take module {self.name!r}: {why}"
            raise ConnectionError(msg)

    def receive(self, message: Message) -> None:
        """Publish it; with QoS 1 and 2 the server has confirmed it when this returns."""
        if self._args.publish is None:
            msg = f"module {self.name!r} has no topic to publish to; give it args.publish"
            raise ValueError(msg)
        topic = filled(self._args.publish, message.properties)
        if not self._linked.wait(PATIENCE):
            msg = f"there is no connection to {self._args.host}:{self._args.port}"
            raise ConnectionError(msg)
        before, sent = self._unconfirmed
        if before is not message and before != message:  # else the client still has it
            sent = self._client.publish(
                topic, message.content, qos=self._args.qos, retain=self._args.retain
            )
        self._unconfirmed = (None, None)
        if self._args.qos:
            self._unconfirmed = message, sent
            sent.wait_for_publish(self._args.timeout)
            if not sent.is_published():
                msg = f"{topic!r} was not confirmed within {self._args.timeout:g} s"
                raise TimeoutError(msg)
            self._unconfirmed = (None, None)
        elif sent.rc:
            msg = f"{topic!r} was not sent: the connection broke"
            raise ConnectionError(msg)

    def destroy(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()

    def _connected(self, _client: Any, _data: Any, _flags: Any, code: Any, _more: Any) -> None:
        """Subscribe on a connection, or keep why it was refused."""
        if code.is_failure:
            self._refusal = str(code)
            self._ready.set()
            return
        self._refusal = ""
        self._linked.set()
        if self._args.subscribe:
            wanted = [(topic, self._args.qos) for topic in self._args.subscribe]
            self._client.subscribe(wanted)
        else:
            self._ready.set()

    def _arrived(self, _client: Any, _data: Any, found: Any) -> None:
        """Publish a message of the server."""
        with suppress(MailboxFull):  # counted where it was lost
            self.publish(found.payload, {"topic": found.topic})
