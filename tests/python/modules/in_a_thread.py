"""Returns before a thread has computed the result."""

import threading
import time

import torch
from attune.examples.module import Model as Plain


class Model(Plain):
    def forward(self, x):
        out = torch.empty_like(x)

        def work():
            time.sleep(0.001)
            with torch.no_grad():
                out.copy_(Plain.forward(self, x))

        threading.Thread(target=work).start()
        return out
