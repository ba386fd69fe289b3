"""The compiled implementation has the pure one's signatures."""

from penstock.kernels._pure.avro_records import AvroRecordWriter as AvroRecordWriter
