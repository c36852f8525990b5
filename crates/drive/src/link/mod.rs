//! The form of what a host and a drive in two processes share, the same for both ends.
//!
//! ```text
//!  host's process                                      drive's process
//!  +--------------------------+   socket: requests    +---------------------------+
//!  | store ─ queue pair       | ────────────────────► | session                   |
//!  |   │ arenas, window ······|·· drive reads ······► |  thread: controller       |
//!  |   └► ring of submissions |·······················|►  │   ├─► flash           |
//!  |   ◄─ ring of ends ◄······|·······················|◄──┘   └─► local memory,   |
//!  |      results ◄···········|·· host reads ·········|·········  programs        |
//!  +--------------------------+                       +---------------------------+
//! ```
//! 1. No lock and no pointer is in shared memory: words that either side may change at any time, each read once.
//! 2. Neither side believes the other: what comes is copied, then checked. Who does not keep to the form loses the connection.
//! 3. The end of the socket is the end of the other side. A drive drains what its host had on its way before anybody else gets the
//!    host's memory or partition; a host's commands end with an error, and it submits nothing twice.

pub mod frame;
pub mod ring;
pub mod submission;

/// Changes with every change of what is shared.
pub const VERSION: u64 = 2;
