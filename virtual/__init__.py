"""A whole mesh in one process, without waiting: a virtual clock, and a network in memory for unmodified stubs and servicers.

Used by tests and benchmarks alone. Nothing in `pdd`, `services` or `gateway` imports it.

    clock, tasks, guards, ordered     time, and what keeps a run reproducible
    network                           sites, hosts, links between them: where a test begins
    link, line, charge                what a link does to messages, and what each costs it
    connection, dialer                TCP and HTTP/2 between a channel and a server
    stream, pipe                      one call on a connection
    channel, call, calls              gRPC's client side
    server, context                   gRPC's server side

tests/conformance holds the network against grpc.aio, behaviour by behaviour. What is not alike, and why:

- Where gRPC does one thing or another by chance, it always does the same here: the one that tells less (tests/unit/virtual,
  test_choices). A write that waits while its call ends hides the cause even from who reads; in a handler it fails before the
  cancellation comes.
- Two reads of a client's call at once raise UsageError; gRPC serves both, or hangs.
- A write for which there is room returns without giving way to other tasks.
- A handler that is an async generator is closed as soon as its client is gone; gRPC leaves that to the garbage collector.
- A request that can't be serialised raises where the call is made, not where it is awaited.
- Both ends of a connection learn of a reset, a crash, or too long a silence at the same instant, without a packet between them,
  and room in a receiver's window is known to its sender at once.
- The words of errors that tell of sockets differ, and call credentials, TLS, compression and interceptors do not exist.
"""
