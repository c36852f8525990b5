//! Waiting and waking: sessions, callers of maintenance, requests that stand in line.

pub mod memory_turns;
pub mod notify;
pub mod shared_event;
pub mod under_way;
