"""The module `mqtt`: a client of an MQTT server; needs paho-mqtt (extra `mqtt`)."""

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, Final, NoReturn

from pydantic import Field

from callboard.gateway.errors import ModuleFailed
from callboard.gateway.module import Module, ModuleArguments
from callboard.gateway.modules.record import filled
from callboard.gateway.wire.message import Message
from callboard.kernel.errors import MailboxFull
from callboard.support.seconds import MAX_SECONDS

#: Seconds that a message waits for a broken connection.
PATIENCE: Final = 2.0


class MqttArguments(ModuleArguments):
    """Arguments of an MQTT module.

    Attributes:
        host: the host of the server.
        port: the port of the server.
        client_id: chosen by the server if it is empty.
        username: if the server requires one.
        password: if the server requires one.
        tls: encrypt the connection, and check the server's certificate.
        subscribe: filters whose messages are published in the gateway, with the property
            `topic`.
        publish: the topic for received messages; `{name}` is replaced by a property.
        qos: the QoS of subscriptions and messages.
        retain: whether the server keeps the last message.
        timeout: seconds for the first connection, and for each message.
        attempts: how often the server may end the connection in place of confirming a message,
            for example because it is too large. Then it is a dead letter.
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
    timeout: float = Field(default=10.0, gt=0, le=MAX_SECONDS, strict=False)
    attempts: int = Field(default=5, ge=1)


class MqttModule(Module):
    """Publishes received messages on an MQTT server, and subscribed messages in the gateway.

    A lost connection and its subscriptions are restored.
    """

    Arguments = MqttArguments
    detached: ClassVar[bool] = True  # it waits for the server

    def create(self, args: Mapping[str, Any]) -> None:
        """Make the client, which connects in `start`."""
        self._args = MqttArguments.read(args)
        self._ready = threading.Event()
        #: Set while there is a connection.
        self._linked = threading.Event()
        self._refusal = ""
        #: A message that the server has not confirmed in time, and the client's record of it.
        self._unconfirmed: tuple[Message | None, Any] = (None, None)
        #: Connections that ended while this message was unconfirmed.
        self._broken = 0
        self._client = self._make_client()

    def _make_client(self) -> Any:
        """Return a client that is not connected.

        Raises:
            ModuleFailed: paho-mqtt is not installed.
        """
        settings = self._args
        try:
            from paho.mqtt import client
        except ImportError as error:
            msg = "the module mqtt needs paho-mqtt; pip install 'callboard[mqtt]'"
            raise ModuleFailed(msg) from error
        mqtt_client = client.Client(
            client.CallbackAPIVersion.VERSION2,
            client_id=settings.client_id,
            clean_session=not settings.client_id or None,
        )
        if settings.username is not None:
            mqtt_client.username_pw_set(settings.username, settings.password)
        if settings.tls:
            mqtt_client.tls_set()
        mqtt_client.on_connect = self._connected
        mqtt_client.on_subscribe = lambda *_: self._ready.set()
        mqtt_client.on_message = self._arrived
        mqtt_client.on_disconnect = self._disconnected
        return mqtt_client

    def start(self) -> None:
        """Connect and subscribe."""
        settings = self._args
        self._client.connect(settings.host, settings.port)
        self._client.loop_start()
        if not self._ready.wait(settings.timeout) or self._refusal:
            self._client.loop_stop()
            reason = self._refusal or f"no answer in {settings.timeout:g} s"
            server = f"{settings.host}:{settings.port}"
            msg = f"{server} does not accept module {self.name!r}: {reason}"
            raise ConnectionError(msg)

    def receive(self, message: Message) -> None:
        """Publish a message; with QoS 1 and 2, return after the server has confirmed it."""
        if self._args.publish is None:
            msg = f"module {self.name!r} has no topic to publish to; set args.publish"
            raise ValueError(msg)
        topic = filled(self._args.publish, message.properties)
        if not self._linked.wait(PATIENCE):
            msg = f"the connection to {self._args.host}:{self._args.port} is down"
            raise ConnectionError(msg)
        previous, delivery = self._unconfirmed
        if previous is not message and previous != message:  # else the client still has it
            delivery = self._client.publish(
                topic, message.content, qos=self._args.qos, retain=self._args.retain
            )
            self._broken = 0
        self._unconfirmed = (None, None)
        if self._args.qos:
            self._unconfirmed = message, delivery
            delivery.wait_for_publish(self._args.timeout)
            if not delivery.is_published():
                if self._broken >= self._args.attempts:
                    self._give_up(topic)
                msg = f"{topic!r} was not confirmed within {self._args.timeout:g} s"
                raise TimeoutError(msg)
            self._unconfirmed = (None, None)
        elif delivery.rc:
            msg = f"{topic!r} was not sent: the connection broke"
            raise ConnectionError(msg)

    def _give_up(self, topic: str) -> NoReturn:
        """Make a message that the server does not accept a dead letter.

        The client would send it again on each connection, so another one takes its place.

        Raises:
            ValueError: always.
        """
        self._unconfirmed = (None, None)
        self.destroy()
        self._ready.clear()
        self._linked.clear()
        self._client = self._make_client()
        with suppress(OSError):  # the next message tries again
            self.start()
        msg = f"the server ended {self._broken} connections in place of accepting {topic!r}"
        raise ValueError(msg)

    def destroy(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()

    def _connected(self, _client: Any, _data: Any, _flags: Any, code: Any, _more: Any) -> None:
        """Subscribe on a new connection, or store the reason of its refusal."""
        if code.is_failure:
            self._refusal = str(code)
            self._ready.set()
            return
        self._refusal = ""
        self._linked.set()
        if self._args.subscribe:
            filters = [(topic, self._args.qos) for topic in self._args.subscribe]
            self._client.subscribe(filters)
        else:
            self._ready.set()

    def _disconnected(self, *_: Any) -> None:
        """Count the end of a connection while a message is unconfirmed."""
        if self._linked.is_set() and self._unconfirmed[0] is not None:
            self._broken += 1
        self._linked.clear()

    def _arrived(self, _client: Any, _data: Any, message: Any) -> None:
        """Publish a message from the server."""
        with suppress(MailboxFull):  # the loss is counted by the sink
            self.publish(message.payload, {"topic": message.topic})
