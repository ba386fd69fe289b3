"""The compiled twin has the pure one's signatures."""

from penstock.kernels._pure.intake import Intake as Intake
