"""The broker of Dynamo's event plane: it keeps the workers' events on this machine.

Without one each worker listens for subscribers on every address of the machine, without authentication, and nothing can
change that. With one, workers and subscribers connect to it.
"""

from __future__ import annotations

import zmq
from zmq.devices import ThreadProxy

from pdplugins.errors import HostError

HOST = "127.0.0.1"


class Broker:
    """Passes events on, in a thread of this process, until it ends. Raises HostError when it cannot listen."""

    def __init__(self) -> None:
        proxy = ThreadProxy(zmq.XSUB, zmq.XPUB)  # type: ignore[no-untyped-call]
        try:
            publishers = proxy.bind_in_to_random_port(f"tcp://{HOST}")
            subscribers = proxy.bind_out_to_random_port(f"tcp://{HOST}")
        except zmq.ZMQError as error:
            raise HostError(f"cannot listen on {HOST} for workers' events ({error})") from None
        proxy.start()
        self.url = f"xsub=tcp://{HOST}:{publishers} , xpub=tcp://{HOST}:{subscribers}"
        """What ``DYN_ZMQ_BROKER_URL`` says to Dynamo."""
