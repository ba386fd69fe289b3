"""The compiled twin has the pure one's signatures."""

from penstock.kernels._pure.receive_buffer import Intake as Intake
