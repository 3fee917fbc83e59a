"""The handoff of a running request from the relay to main, without I/O: `machine` decides, the others are what it decides with.

Output index 0 is sampled by prefill. In pipeline `relay` the relay starts from it by itself, as soon as its KV is whole, and main
takes over when its own KV has crossed the slow link. What main is given then are token ids, which it computes in one pass
(Extend); the last id always goes with `then_decode`, so that main has one to decode from.

    One-Shot: on main's KvReady stop the relay; on Stopped(n) extend with everything and decode.
    Catch-Up: on main's KvReady extend with what there is, less the last id, while the relay goes on; on each Extended with what
      came since; when `estimate.next_move` says so, go on as One-Shot does.

Which one is settled on main's KvReady, by `mode.settled`, and again whenever the relay leans another way. One-Shot in the end is
also what Catch-Up comes to where one extend of everything fits, or where rounds would not converge.

In pipeline `direct` there is no relay: index 0 is shown at once and sent ahead to main, which keeps the Extend until its KV is
whole. In pipeline `singular` there is no main. Either may prove wrong, and the missing decoder joins while the request runs: a
relay where main's KV is late, once main has given the Extend back, and a main where the answer grows longer than expected.
"""
