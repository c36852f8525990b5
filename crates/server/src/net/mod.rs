//! Sockets, workers and connections, and the budget of what clients may hold.

pub mod arrivals;
pub mod connection;
pub mod gets;
pub mod limits;
pub mod listen;
pub mod out;
pub mod worker;
