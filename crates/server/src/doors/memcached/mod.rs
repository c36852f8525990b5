//! memcached's protocols over streams and datagrams.

mod commands;
mod meta_commands;
pub mod packets;
pub mod pipeline;
pub mod protocol;
pub mod slots;
pub mod udp;
