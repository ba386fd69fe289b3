"""The compiled twins have the pure ones' signatures."""

from penstock.kernels._pure.appending import append_bodies as append_bodies
from penstock.kernels._pure.appending import append_event as append_event
from penstock.kernels._pure.columns import decode_events as decode_events
from penstock.kernels._pure.framing import frame_events as frame_events
from penstock.kernels._pure.framing import frame_run as frame_run
from penstock.kernels._pure.splitting import split_batch as split_batch
from penstock.kernels._pure.splitting import split_singles as split_singles
from penstock.kernels._pure.steps import count_steps as count_steps
