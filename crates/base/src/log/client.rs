//! A client of the log: whoever has records in it, beside those of other clients in the same groups and zones.
//!
//! ```text
//! zone of the sealed buffer   │ a │ b │ a │ c │ b │        the base, for the engine that installs what the buffer had of its own
//!                               └───────┴── needed by a     1 asks all others to checkpoint through the buffer's last stamp
//!                                                           2 waits until none needs a record of it: leave to trim (`base/log_trim.rs`)
//!                                                           3 the frame of the install says so: the zone is free
//! ```
//! 1. A zone is given to another buffer only when no client needs a record in it any more.
//! 2. What a client does to need a record no longer appends nothing: the log may be full until it has.
//! 3. What a client does not need any more it never needs again.
//!
//! Writers that outrun a client wait for room, as they do for a flush; none waits for ever, as a checkpoint is bounded work.

pub trait LogClient: Send + Sync {
    /// It needs no record with a lower stamp, whatever happens; `u64::MAX`: none at all.
    fn stamp_needed(&self) -> u64;

    /// It is to come to need no record up to this stamp, by a job of maintenance.
    fn checkpoint_through(&self, stamp: u64);

    /// Runs `change` while none of its writers is between an append and what readers see of it. If that gives a buffer, the log has
    /// gone on to it. Locks are taken in the order of clients, before the log's.
    fn hold_writers(&self, change: &mut dyn FnMut() -> Option<u64>);
}
