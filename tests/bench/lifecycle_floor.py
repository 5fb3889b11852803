"""The least an NRI plugin could be: it decodes each call and answers it with nothing, and sets the masks of a VM's
threads when a container is created and stopped. Arguments: the runtime's socket, the VM's pid (0 for none), the CPU
of the pool and the container's.
"""

import os
import socket
import sys

from vmpin.wire import nri_messages, ttrpc
from vmpin.wire.nri_enums import METHODS, Verb
from vmpin.wire.nri_messages import MESSAGES


def main(path: str, pid: str, pool: str, other: str) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(ttrpc.frames(ttrpc.RUNTIME, ttrpc.encode(ttrpc.Call(
        1, nri_messages.RUNTIME_SERVICE, "RegisterPlugin",
        MESSAGES["RegisterPluginRequest"](plugin_name="floor", plugin_idx="90").SerializeToString()))))
    masks = {Verb.POST_CREATE: {int(other)}, Verb.STOP: {int(pool)}}
    demux = ttrpc.Demux()
    decoders = {ttrpc.PLUGIN: ttrpc.TtrpcDecoder(), ttrpc.RUNTIME: ttrpc.TtrpcDecoder()}
    while data := connection.recv(65536):
        for stream, payload in demux.feed(data):
            for message in decoders[stream].feed(payload):
                if isinstance(message, ttrpc.Call):
                    verb = METHODS.get(message.method)
                    if verb is not None:
                        MESSAGES.decode("EventRequest", message.payload)
                    if verb in masks and pid != "0":
                        for tid in map(int, os.listdir(f"/proc/{pid}/task")):
                            os.sched_setaffinity(tid, masks[verb])
                            os.sched_getaffinity(tid)
                    connection.sendall(ttrpc.frames(ttrpc.PLUGIN, ttrpc.encode(
                        ttrpc.Reply(message.stream, ttrpc.OK, "", b""))))


if __name__ == "__main__":
    main(*sys.argv[1:])
