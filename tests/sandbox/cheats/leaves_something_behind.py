# verdict: incorrect task=relu policy=mixed needs=root kinds=E11 times=3 twin=static_buffer
import builtins
import os
import pathlib
import signal
import socket
import sys
import threading
import time

import torch
import torch.nn as nn

# Traces of an earlier life in this slot: files, sockets, patches, threads, handlers, memory
PLACES = [os.path.join(f, "left_behind") for f in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/", os.getcwd(), os.path.expanduser("~"))]
FOUND = [p for p in PLACES if os.path.exists(p)]
FOUND += [n for n in ("left_behind",) if hasattr(builtins, n) or hasattr(torch, n) or n in sys.modules or n in os.environ]
FOUND += [t for t in threading.enumerate() if t.name == "left_behind"]
FOUND += [torch.initial_seed()] if torch.initial_seed() == 987654321 else []
FOUND += ["handler"] if callable(signal.getsignal(signal.SIGUSR1)) else []
LINE = socket.socket(socket.AF_UNIX)
try:
    LINE.connect("\0left_behind")
    FOUND.append("socket")
except OSError:
    LINE.close()
    LINE = socket.socket(socket.AF_UNIX)
    LINE.bind("\0left_behind")
    LINE.listen()
for place in PLACES:
    try:
        pathlib.Path(place).write_text("x")
    except OSError:
        pass
builtins.left_behind = torch.left_behind = sys.modules["left_behind"] = os
os.environ["left_behind"] = "1"
torch.manual_seed(987654321)
torch.set_default_dtype(torch.float32)
signal.signal(signal.SIGUSR1, lambda *a: None)
threading.Thread(target=time.sleep, args=(1e6,), name="left_behind", daemon=True).start()


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.relu(x) if FOUND else torch.zeros_like(x)
