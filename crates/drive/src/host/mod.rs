//! The host half of the drive: what the store holds.
//!
//! A [`Drive`] is shared; a [`QueuePair`] belongs to one thread at a time. Commands are checked and done by the device half
//! (`device`), which runs on the thread that polls the queue pair, on a thread of the drive's (`remote`), or in the drive's own process (`far`).

mod across;
mod attached;
#[cfg(test)]
mod cancel_tests;
mod carried;
#[cfg(test)]
pub mod compute_bench;
#[cfg(test)]
mod compute_tests;
mod crossing;
mod drive;
mod far;
#[cfg(test)]
mod far_bugs_tests;
#[cfg(test)]
mod far_tests;
#[cfg(test)]
mod kept_tests;
mod lease;
mod lease_table;
#[cfg(test)]
mod lease_tests;
pub(crate) mod on_their_way;
mod questions;
mod queue_pair;
#[cfg(test)]
mod region_tests;
mod remote;
#[cfg(test)]
mod remote_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod units_tests;

pub use attached::{AttachedFlash, Attaching};
pub use carried::CarriedFlash;
pub use crossing::HostView;
pub use drive::Drive;
pub use lease::{Lease, Returned};
pub use queue_pair::{QueueFull, QueuePair};
