//! Access: who may do what at a server's doors, and how bytes get there unread.
//!
//! ```text
//!   users file ─► users ─► gate ◄─ login (name, password) ─ a door
//!                            │ ◄─ token                   ─ a door
//!                            └─► identity ─► rights ─ may it? ─ asker ─ each request ─► served: the store
//!   certificate, key ─► tls ─► the configuration of each door
//! ```
//! Invariants:
//! 1. A door asks its client's [`identity::Identity`] before each request: what was taken away ends there.
//! 2. A password is looked at by two threads at the most, with memory of the server's budget, and by no thread of a door.
//! 3. Nothing of a password is kept but its Argon2id hash, and for a minute a keyed digest of one that was right.
//!
//! Threads: everything here is for many.

pub mod asker;
pub mod credentials;
mod current;
mod desk;
pub mod gate;
pub mod identity;
pub mod password;
mod remembered;
pub mod rights;
pub mod secret_file;
pub mod served;
mod slowness;
pub mod tls;
mod token;
pub mod users;
