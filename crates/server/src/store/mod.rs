//! The store that is served: what the doors ask of it, how it is opened, looked after and warmed.

pub mod backup_progress;
pub mod backups;
pub mod errands;
pub mod failure_log;
pub mod follower;
mod fullness;
pub mod hot_keys;
pub mod opening;
mod room_probe;
pub mod standby;
pub mod standby_claim;
pub mod steward;
pub mod store_slot;
pub(crate) mod unfinished;
