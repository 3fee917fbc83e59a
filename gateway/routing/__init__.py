"""Which pipeline and which instances serve a request. Pure: data in, data out; start reading at `router`."""
