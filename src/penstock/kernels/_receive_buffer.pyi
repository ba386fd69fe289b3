"""The compiled implementation has the pure one's signatures."""

from penstock.kernels._pure.receive_buffer import ReceiveBuffer as ReceiveBuffer
