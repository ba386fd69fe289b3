"""The compiled twin has the pure one's signatures."""

from penstock.kernels._pure.avro_rows import AvroRows as AvroRows
