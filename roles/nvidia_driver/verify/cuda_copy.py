"""Runs on the node: initialises CUDA and copies a little to every GPU and back. Prints {"gpus": {bus id: error or ""}}.

Driver API only (cuda.h), so that no toolkit is needed. Exit code 1: CUDA as a whole does not work; the reason is printed.
"""

import ctypes
import json
import os
import sys

SIZE = 1 << 20


def leave(text):
    print(text)
    sys.exit(1)


try:
    CUDA = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    leave("no libcuda.so.1: %s" % error)


def call(function, *arguments):
    """An empty text, or the name of CUDA's error."""
    code = getattr(CUDA, function)(*arguments)
    if code == 0:
        return ""
    name = ctypes.c_char_p()
    CUDA.cuGetErrorName(code, ctypes.byref(name))
    return "%s: error %d %s" % (function, code, (name.value or b"").decode())


def copy(device):
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    error = call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    if error:
        return error
    sent, received = ctypes.create_string_buffer(os.urandom(SIZE), SIZE), ctypes.create_string_buffer(SIZE)
    error = (
        call("cuCtxSetCurrent", context)
        or call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(SIZE))
        or call("cuMemcpyHtoD_v2", memory, sent, ctypes.c_size_t(SIZE))
        or call("cuMemcpyDtoH_v2", received, memory, ctypes.c_size_t(SIZE))
        or call("cuMemFree_v2", memory)
        or call("cuDevicePrimaryCtxRelease_v2", device)
    )
    if not error and sent.raw != received.raw:
        error = "what came back is not what was sent"
    return error


def main():
    error = call("cuInit", 0)
    if error:
        leave(error)
    count, device = ctypes.c_int(), ctypes.c_int()
    error = call("cuDeviceGetCount", ctypes.byref(count))
    if error:
        leave(error)
    gpus = {}
    for ordinal in range(count.value):
        address = ctypes.create_string_buffer(32)
        error = call("cuDeviceGet", ctypes.byref(device), ordinal)
        error = error or call("cuDeviceGetPCIBusId", address, 32, device)
        gpus[address.value.decode().lower() or str(ordinal)] = error or copy(device)
    print(json.dumps({"gpus": gpus}))


main()
