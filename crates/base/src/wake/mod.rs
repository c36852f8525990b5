//! Who waits for what, and how they are woken: sessions, callers of maintenance, requests that stand in line.

pub mod memory_turns;
pub mod notify;
pub mod shared_event;
pub mod under_way;
