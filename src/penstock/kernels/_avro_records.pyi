"""The compiled twin has the pure one's signatures."""

from penstock.kernels._pure.avro_records import AvroRows as AvroRows
