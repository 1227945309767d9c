"""A real client logs in by SCRAM-SHA-256: npm's mqtt, with the method in its own language."""

import json
import os
import subprocess

import pytest

from callboard.mqtt import Router, RouterConfig, Security
from callboard.mqtt.access.scram import make_keys
from tests.interop.npm_modules import node

pytestmark = pytest.mark.slow

TIMEOUT = 20

NODE = """
const crypto = require('crypto');
const mqtt = require('mqtt');
const [url, user, password] = process.argv.slice(2);
const bare = `n=${user},r=${crypto.randomBytes(12).toString('base64')}`;
const hmac = (key, data) => crypto.createHmac('sha256', key).update(data).digest();
const client = mqtt.connect(url, {
  protocolVersion: 5,
  reconnectPeriod: 0,
  properties: {
    authenticationMethod: 'SCRAM-SHA-256',
    authenticationData: Buffer.from(`n,,${bare}`),
  },
});
let expected = '';
client.handleAuth = (packet, done) => {
  const first = packet.properties.authenticationData.toString();
  const [nonce, salt, count] = first.split(',').map((part) => part.slice(2));
  const salted = crypto.pbkdf2Sync(
    password, Buffer.from(salt, 'base64'), Number(count), 32, 'sha256');
  const key = hmac(salted, 'Client Key');
  const rest = `c=biws,r=${nonce}`;
  const message = `${bare},${first},${rest}`;
  const signature = hmac(crypto.createHash('sha256').update(key).digest(), message);
  const proof = Buffer.from(key.map((byte, at) => byte ^ signature[at])).toString('base64');
  expected = 'v=' + hmac(hmac(salted, 'Server Key'), message).toString('base64');
  done(null, {
    cmd: 'auth',
    reasonCode: 24,
    properties: {
      authenticationMethod: 'SCRAM-SHA-256',
      authenticationData: Buffer.from(`${rest},p=${proof}`),
    },
  });
};
client.on('connect', (connack) => {
  const said = connack.properties.authenticationData.toString();
  console.log(JSON.stringify({server: said === expected}));
  client.end();
});
client.on('error', (error) => {
  console.log(JSON.stringify({code: error.code}));
  client.end();
});
"""


@pytest.mark.parametrize(
    ("password", "outcome"), [("secret", {"server": True}), ("guess", {"code": 0x87})]
)
def test_npm_mqtt_and_the_router_prove_themselves_to_each_other(password, outcome):
    program, modules = node()
    security = Security(scram={"ann": make_keys("secret", count=4096)})
    with Router(RouterConfig(security=security, sys_interval=0)) as router:
        url = f"mqtt://127.0.0.1:{router.port}"
        done = subprocess.run(
            [program, "-e", NODE, "script", url, "ann", password],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            env={**os.environ, "NODE_PATH": str(modules)},
        )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == outcome
